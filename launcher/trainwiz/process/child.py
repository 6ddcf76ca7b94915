"""Starting one process of a launch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from trainwiz.process.guardian import tied_to_parent


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process to start."""

    rank: int
    """The rank that it is."""
    argv: Sequence[str]
    """Program and arguments."""
    environ: Mapping[str, str]
    """What is added to the environment."""
    cwd: str
    """The folder that it runs in."""
    log: Path
    """Where its output goes."""
    agent: bool = False
    """A launcher such as torchrun, whose children are the ranks to be asked to save."""


class Running(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    pid: int

    def wait(self) -> int: ...


Spawn = Callable[[Process, Mapping[str, str]], Running]


def start(process: Process, environ: Mapping[str, str]) -> Running:
    """Start it with this whole environment. Raises `OSError`."""
    log: IO[bytes]
    with open(process.log, "ab") as log:
        return subprocess.Popen(
            list(process.argv),
            env=dict(environ),
            cwd=process.cwd,
            # Rank 0 keeps the terminal's input, so that a `breakpoint()` in it can be answered.
            stdin=None if process.rank == 0 else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tied_to_parent(),
        )
