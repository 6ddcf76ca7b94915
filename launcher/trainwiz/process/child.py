"""Start one process of a launch."""

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


class Running(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    pid: int

    def wait(self) -> int: ...


Spawn = Callable[[Process, Mapping[str, str]], Running]


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
        preexec_fn=tied_to_parent(),
    )
