"""The metrics of text that a language model generates: what each measures, and the package that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One way to compare generated text with the data."""

    measures: tuple[str, ...]
    """The metrics of an evaluation, which are all better when large."""
    package: str = ""
    """The distribution that computes it; empty: the generated code does."""
    oldest: str = ""
    """Its oldest version that projects were tried with."""


METRICS: Mapping[str, Written] = {
    "exact_match": Written(measures=("eval_exact_match",)),
    "bleu": Written(measures=("eval_bleu",), package="sacrebleu", oldest="2.6"),
    "rouge": Written(measures=("eval_rouge_1", "eval_rouge_2", "eval_rouge_l"), package="rouge-score", oldest="0.1.2"),
}
"""By their names in `evaluation.generation_metrics`."""


def chosen(names: str | None) -> Mapping[str, Written]:
    """The metrics that a plan names, in its order."""
    return {name: METRICS[name] for name in (part.strip() for part in (names or "").split(",")) if name}
