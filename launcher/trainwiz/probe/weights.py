"""A checkpoint's whole weights, gathered by the Python that trains: no GPU, and no other rank, is needed."""

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
    """What was written and read back; `problem` is why there is nothing, `different` names tensors read otherwise.

    `known` counts the tensors whose names are the checkpoint's: only these could be compared.
    """

    tensors: int = 0
    known: int = 0
    size_bytes: int = 0
    different: tuple[str, ...] = ()
    problem: str = ""


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
