"""The models that a script loads, by the names written in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trainwiz.script.calls import Call
from trainwiz.script.tree import dotted
from trainwiz.script.values import Values

Counted = Literal["samples", "labels", "next_labels"]
"""What a mean loss is averaged over: samples, labels, or labels without the first of each row."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What `from_pretrained` is asked for."""

    names: tuple[str, ...]
    """The models' names, each once."""
    attention: str | None = None
    """The attention implementation, where all calls ask for the same one."""


def loaded(calls: Iterable[Call], values: Values) -> Loaded:
    """The models that calls load; those of tokenizers, processors and adapters do not count."""
    names: dict[str, None] = {}
    attention: set[object] = set()
    for call in calls:
        owner = dotted(call.node.func).rpartition(".")[0].rpartition(".")[2]
        models = "Model" in owner or "ForCausalLM" in owner or owner.endswith(("ForSequenceClassification", "Config"))
        if call.method != "from_pretrained" or not models:
            continue
        name = values.of(call.argument("pretrained_model_name_or_path", 0))
        if name and isinstance(name.value, str):
            names[name.value] = None
        word = values.of(call.keyword("attn_implementation"))
        if not owner.endswith("Config"):
            attention.add(word.value if word else None)
    only = next(iter(attention)) if len(attention) == 1 else None
    return Loaded(names=tuple(names), attention=only if isinstance(only, str) else None)


def of_transformers(made: str) -> Counted:
    """What the loss of a model of transformers is over, by the names that make it."""
    if "ForCausalLM" in made or "LMHead" in made:
        return "next_labels"
    words = ("ForMaskedLM", "ForConditionalGeneration", "ForSeq2SeqLM", "ForTokenClassification")
    return "labels" if any(word in made for word in words) else "samples"
