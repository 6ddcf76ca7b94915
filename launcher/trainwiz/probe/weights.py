"""The whole weights of a checkpoint, gathered by the Python that trains. Neither GPUs nor other ranks are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    size_bytes: int = 0
    different: tuple[str, ...] = ()
    """The names of tensors that differ from the checkpoint."""
    problem: str = ""
    """Why nothing was written."""


def gather(python: str, *, project: Path, checkpoint: Path, output: Path, seconds: float = SECONDS) -> Gathered:
    """Write the weights into `output`, as the project's task writes its final ones. Nothing is raised."""
    places = [str(path.resolve()) for path in (project, checkpoint, output)]
    said = Running([python, str(_GATHER), *places]).result(seconds)
    if said.code:
        return Gathered(problem=said.last_line or f"exit code {said.code}")
    try:
        found: dict[str, Any] = json.loads(said.stdout.strip().splitlines()[-1])
        return Gathered(
            tensors=int(found["tensors"]),
            known=int(found["known"]),
            size_bytes=int(found["bytes"]),
            different=tuple(found["different"]),
        )
    except (IndexError, ValueError, KeyError, TypeError):
        return Gathered(problem=said.last_line or "no answer")
