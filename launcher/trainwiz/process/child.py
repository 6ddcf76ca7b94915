"""Start one process of a launch."""

from __future__ import annotations

import signal
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
    """Its rank."""
    argv: Sequence[str]
    """Program and arguments."""
    environ: Mapping[str, str]
    """Variables that are added to the environment."""
    cwd: str
    """Its working directory."""
    log: Path
    """Where its output goes."""
    agent: bool = False
    """Whether it is a launcher such as torchrun, whose children are the ranks that are asked to save."""
    ignored: tuple[int, ...] = ()
    """Signals that it starts with ignored; its ranks hear them again (`inside/sitecustomize.py`)."""


class Running(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    pid: int

    def wait(self) -> int: ...


Spawn = Callable[[Process, Mapping[str, str]], Running]


def _before(ignored: Sequence[int]) -> Callable[[], None] | None:
    """What the child does before exec."""
    tie = tied_to_parent()
    if not ignored:
        return tie

    def both() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        if tie:
            tie()

    return both


def start(process: Process, environ: Mapping[str, str]) -> Running:
    """Start it with this whole environment. Raises `OSError`."""
    with open(process.log, "ab") as log:
        return spawn(process.argv, process, environ, log)


def spawn(
    argv: Sequence[str], process: Process, environ: Mapping[str, str], output: IO[bytes], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Run a program in the process's place, in a session of its own that ends with this process."""
    return subprocess.Popen(
        list(argv),
        env=dict(environ),
        cwd=process.cwd,
        # Rank 0 keeps the terminal's input, so that a `breakpoint()` in it can be answered.
        stdin=None if process.rank == 0 else subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=_before(process.ignored),
    )
