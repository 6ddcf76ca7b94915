"""The whole weights of a checkpoint, gathered by the Python that trains. Neither GPUs nor other ranks are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainwiz import files
from trainwiz.language import t
from trainwiz.process.capture import Running

SECONDS = 86_400.0
"""Hundreds of gigabytes from a slow disk take hours."""

_GATHER = Path(__file__).parent / "inside" / "gather_weights.py"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The weights that were written and read back."""

    tensors: int = 0
    """The number of tensors."""
    known: int = 0
    """How many of them have a name in the checkpoint, and could be compared."""
    averaged: int = 0
    """How many weights are averages (`optimizer.ema_decay`), not the last ones."""
    size_bytes: int = 0
    """Of all files that were written."""
    different: tuple[str, ...] = ()
    """The names of tensors that differ from the checkpoint."""
    problem: str = ""
    """Why nothing was written."""


def gather(
    python: str,
    *,
    project: Path,
    checkpoint: Path,
    output: Path,
    reading: Path,
    average: bool = True,
    trust: bool = False,
    seconds: float = SECONDS,
) -> Gathered:
    """Write the weights into `output`, as the project's task writes its final ones. Nothing is raised.

    `average` takes the average of the weights where the training keeps one, as the training itself does at its end.
    Only known classes are unpickled, unless `trust`; `reading` is the trust.py that knows them.
    """
    places = [str(files.resolved(path)) for path in (project, checkpoint, output, reading)]
    words = ["average" if average else "last", *(["trust"] if trust else [])]
    said = Running([python, str(_GATHER), *places, *words]).result(seconds)
    found = said.answer if said.code == 0 else None
    if found is None:
        return Gathered(problem=said.problem)
    if found.get("missing") == "unnamed":
        return Gathered(
            problem=t(
                "it was written by an older train.py, without the names of the weights: run launch --resume, then "
                "export"
            )
        )
    if "unknown" in found:
        return Gathered(
            problem=t(
                "it contains {name}, which is not part of a checkpoint and could run any code; nothing was "
                "loaded. If you trust whoever wrote it: trainwiz export --trust",
                name=found["unknown"],
            )
        )
    if "unsound" in found:
        return Gathered(
            problem=t(
                "it does not look like a file written by training ({what}) and could fill the memory; nothing was "
                "loaded. If you trust whoever wrote it: trainwiz export --trust",
                what=found["unsound"],
            )
        )
    if "missing" in found:
        return Gathered(problem=t("the checkpoint contains no part of {names}", names=found["missing"]))
    return Gathered(**{**found, "different": tuple(found["different"])})
