"""`trainwiz logs`: what a rank wrote, now or as it goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from trainwiz.store.runs import Run

_CHUNK = 1 << 16
_PAUSE_SECONDS = 0.2


def logs(
    target: str = typer.Argument(
        "latest", metavar="[RUN]", help=t("A run's name or folder, or a project's folder (default: the newest here).")
    ),
    run: str = typer.Option("", "--run", metavar="RUN", help=t("Which run (default: the newest).")),
    rank: int = typer.Option(0, "--rank", metavar="N", min=0, help=t("Whose log.")),
    follow: bool = typer.Option(False, "--follow", "-f", help=t("Go on until the run ends; Ctrl-C leaves it running.")),
) -> None:
    """Show a rank's log on stdout, byte for byte."""
    from trainwiz.store import history

    found = history.find(run, Path(target)) if run else history.find(target)
    file = _file(found, rank, follow)
    # Whoever only looks is not interrupted by Ctrl-C: he has seen enough.
    try:
        _pass_on(file, lambda: follow and _goes_on(found))
    except KeyboardInterrupt:
        sys.stdout.flush()


def _file(run: Run, rank: int, follow: bool) -> Path:
    from trainwiz.errors import UsageError
    from trainwiz.message import say
    from trainwiz.store import history

    logs = history.logs(run)
    if rank in logs or (follow and _goes_on(run)):
        return run.log(rank)
    if not logs:
        raise UsageError(say("run {name} has no logs", name=run.name))
    raise UsageError(
        say("run {name} has no log of rank {rank}", name=run.name, rank=rank),
        say("it has those of the ranks {ranks}", ranks=", ".join(map(str, logs))),
    )


def _pass_on(file: Path, goes_on: Callable[[], bool]) -> None:
    stream: IO[bytes] | None = None
    try:
        while True:
            # Asked first: what was written before the end must be shown after it.
            more = goes_on()
            stream = _show(file, stream)
            if not more:
                return
            time.sleep(_PAUSE_SECONDS)
    finally:
        if stream:
            stream.close()


def _show(file: Path, stream: IO[bytes] | None) -> IO[bytes] | None:
    """Show what is new; a restart puts the log aside and begins another."""
    if stream:
        _drain(stream)
        with contextlib.suppress(OSError):
            if os.path.samestat(file.stat(), os.fstat(stream.fileno())):
                return stream
            stream.close()
            stream = None
    if stream is None:
        # A rank that has not begun has no log.
        with contextlib.suppress(FileNotFoundError):
            stream = file.open("rb")
            _drain(stream)
    return stream


def _drain(stream: IO[bytes]) -> None:
    while data := stream.read(_CHUNK):
        _write(data)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _goes_on(run: Run) -> bool:
    from trainwiz.store import liveness

    return not run.read("outcome") and liveness.runs(run.read("command")) is True
