"""`trainwiz logs`: what a rank wrote, now or until the run ends."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.store import history, liveness
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui.safe import Drawn
from trainwiz.workflows.jobs import output

_CHUNK_BYTES = 1 << 16
_PAUSE_SECONDS = 0.2


def show(target: str, run: str | None, rank: int, *, follow: bool) -> int:
    """Copy a rank's log to stdout: byte for byte, but no command that a terminal would obey to a terminal.

    Ctrl-C ends `follow` and leaves the run as it is.

    Of a job whose folder is elsewhere, its scheduler shows what the rank's machine writes.
    """
    if elsewhere := output.meant(target, run):
        return output.show(*elsewhere, rank, follow=follow)
    with contextlib.suppress(KeyboardInterrupt):
        if output.waits(target, run, follow=follow):
            if file := output.written(target, run):
                _copy(file, lambda: False)
            return 0
    found = history.find(run, Path(target)) if run else history.find(target)
    try:
        _show_run(found, rank, follow=follow)
        while follow and not run and (again := output.next_of_job(found)):
            found = again
            console.talk(t("now run {name}:", name=found.name))
            _show_run(found, rank, follow=follow)
    except KeyboardInterrupt:
        sys.stdout.flush()
    return 0


def _show_run(run: Run, rank: int, *, follow: bool) -> None:
    file = _file(run, rank, follow)
    _copy(file, lambda: follow and _is_running(run))
    if file.is_file() and not file.stat().st_size:
        console.talk(t("rank {rank} of run {name} has no output yet", rank=rank, name=run.name), style="dim")


def _file(run: Run, rank: int, follow: bool) -> Path:
    logs = history.logs(run)
    if rank in logs or (follow and _is_running(run)):
        return run.log(rank)
    if not logs:
        raise UsageError(say("run {name} has no logs", name=run.name))
    raise UsageError(
        say("run {name} has no log of rank {rank}", name=run.name, rank=rank),
        say("choose one of the ranks that have logs: {ranks}", ranks=", ".join(map(str, logs))),
    )


def _copy(file: Path, goes_on: Callable[[], bool]) -> None:
    stream: IO[bytes] | None = None
    shown = Drawn().piece if sys.stdout.isatty() else bytes
    try:
        while True:
            # Asked first: what was written before the end must be shown after it.
            more = goes_on()
            stream = _copy_new(file, stream, shown)
            if not more:
                return
            time.sleep(_PAUSE_SECONDS)
    finally:
        if stream:
            stream.close()


def _copy_new(file: Path, stream: IO[bytes] | None, shown: Callable[[bytes], bytes]) -> IO[bytes] | None:
    """Copy what is new. A restart renames the log and begins another, so that the file is opened again."""
    if stream:
        _drain(stream, shown)
        with contextlib.suppress(OSError):
            if os.path.samestat(file.stat(), os.fstat(stream.fileno())):
                return stream
            stream.close()
            stream = None
    if stream is None:
        stream = _opened(file)
        if stream:
            _drain(stream, shown)
    return stream


def _opened(file: Path) -> IO[bytes] | None:
    try:
        return files.opened(file)
    except FileNotFoundError:
        return None  # a rank that has not started has no log
    except OSError as error:
        raise UsageError(say("{file} cannot be read: {problem}", file=file, problem=error.strerror or error)) from None


def _drain(stream: IO[bytes], shown: Callable[[bytes], bytes]) -> None:
    while data := stream.read(_CHUNK_BYTES):
        console.write(sys.stdout.fileno(), shown(data))


def _is_running(run: Run) -> bool:
    return not run.read("outcome") and liveness.is_running(run.read("command"), run.beat) is True
