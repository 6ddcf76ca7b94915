"""DeepSpeed's ops: which of them fit this machine, which are built, and the program that builds them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz.probe.locks import extensions_folder
from trainwiz.process.capture import Asked, Captured
from trainwiz.surroundings import Op

SECONDS = 90.0
"""Importing DeepSpeed takes 3 to 6 s, and several times as long from a cold network disk."""

_OPS = Path(__file__).parent / "inside" / "ops.py"
_BUILD = Path(__file__).parent / "inside" / "build_ops.py"


Answer = tuple[tuple[Op, ...] | None, str | None]
"""The ops; or None, and why DeepSpeed could not be asked."""


def start(python: str) -> Asked[Answer]:
    """Start asking at once."""
    return Asked([python, str(_OPS), str(extensions_folder())], _understood, seconds=SECONDS)


def _understood(captured: Captured) -> Answer:
    found = captured.answer
    if found is None or "ops" not in found:
        return None, captured.problem
    return tuple(Op(**op) for op in found["ops"]), None


def libraries(op: str, environ: Mapping[str, str]) -> list[Path]:
    """The compiled libraries of an op, for whatever version of Python and CUDA."""
    return _beside(op, f"{op}*.so", environ)


def locked(op: str, environ: Mapping[str, str]) -> bool:
    """Whether a process builds the op, or has left its lock behind."""
    return bool(_beside(op, "lock", environ))


def _beside(op: str, name: str, environ: Mapping[str, str]) -> list[Path]:
    folder = extensions_folder(environ)
    return [file for where in ("", "*/") for file in folder.glob(f"{where}{op}/{name}")]


def building(python: str, names: Sequence[str]) -> list[str]:
    """The program that loads these ops and compiles what is missing; `told` understands its lines."""
    return [python, str(_BUILD), *names]


def told(line: str) -> dict[str, Any] | None:
    """The meaning of a line of that program; None for lines of libraries and compilers."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            return found if isinstance(found, dict) and found.keys() & {"op", "loaded"} else None
    return None
