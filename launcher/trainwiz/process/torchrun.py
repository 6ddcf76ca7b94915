"""What torchrun needs to be supervised: no signal of its own, and logs that are found."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_LEFT_TO_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


# docs/decisions/launching.md: torchrun ignores the signals that ask for the end
def ignored_signals() -> tuple[tuple[int, ...], dict[str, str]]:
    """The signals that torchrun must ignore, and the variables for that, by which its ranks still handle them."""
    # nohup starts us with SIGHUP ignored, and means it for the ranks as well.
    numbers = tuple(int(number) for number in _LEFT_TO_US if signal.getsignal(number) is not signal.SIG_IGN)
    words = ",".join(map(str, numbers))
    return numbers, {"PET_SIGNALS_TO_HANDLE": "SIGQUIT", "TRAINWIZ_IGNORED": words}


_STREAMS = {"stdout.log": "", "stderr.log": ".err"}


class WorkerLogs:
    """The log files of torchrun's workers, linked as `rank-N.log` (stdout) and `rank-N.err.log` (stderr)."""

    def __init__(self, logs: Path, *, first_rank: int, attempt: int = 0) -> None:
        self._logs, self._first = logs, first_rank
        self._folder = logs / (f"torchrun-{first_rank}.attempt-{attempt}" if attempt else f"torchrun-{first_rank}")

    @property
    def options(self) -> tuple[str, ...]:
        """What to give torchrun so that it writes them."""
        return ("--log-dir", str(self._folder), "--redirects", "3")

    def found(self) -> Sequence[Path]:
        """The first local rank's files, as far as they exist; links are made for all ranks on the way."""
        first = []
        for file in sorted(self._folder.glob("*/attempt_*/*/std*.log")):
            local = file.parent.name
            if local.isdecimal() and file.name in _STREAMS:
                link = self._logs / f"rank-{self._first + int(local)}{_STREAMS[file.name]}.log"
                with contextlib.suppress(FileExistsError):
                    link.symlink_to(os.path.relpath(file, self._logs))
                if local == "0":
                    first.append(file)
        return first
