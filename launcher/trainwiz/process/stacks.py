"""Ask ranks for their Python stacks, and the kernel for the states of their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwiz.hangs import BUSY_SHARE, Rank, State, parse

INSIDE = Path(__file__).parent / "inside"
SIGNAL = int(signal.SIGRTMIN) + 20 if hasattr(signal, "SIGRTMIN") else 0
"""A real-time signal: SIGUSR1 and SIGUSR2 belong to schedulers and to people's scripts."""
_ANSWER_SECONDS = 1.0
_SETTLED_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Look:
    """All ranks at one point in time."""

    ranks: tuple[Rank, ...]
    """Where each rank is."""
    cpu: Mapping[int, float]
    """CPU seconds that each rank has used."""
    at: float
    """When, in seconds of the monotonic clock."""


class Stacks:
    """The stacks of one world's ranks. `folder` is where they write them to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def environ(self, environ: Mapping[str, str], rank: int | None) -> dict[str, str]:
        """The environment that makes a rank answer, or the ranks of an agent (`rank` None)."""
        if not SIGNAL:
            return dict(environ)
        paths = [str(INSIDE), *filter(None, [environ.get("PYTHONPATH")])]
        own = {} if rank is None else {"TRAINWIZ_RANK": str(rank)}
        stacks = f"{SIGNAL}:{self._folder}"
        return {**environ, **own, "PYTHONPATH": os.pathsep.join(paths), "TRAINWIZ_STACKS": stacks}

    def look(self, codes: Mapping[int, int | None], before: Look | None = None) -> Look:
        """Where every rank is now; `codes` are the exit codes of those that have ended. Takes up to a second."""
        found = {rank: self._process(rank) for rank in codes}
        sizes = {rank: _ask(self._file(rank), pid) for rank, pid in found.items() if pid and codes[rank] is None}
        dumps = self._answers(sizes)
        now, cpu, ranks = time.monotonic(), {}, []
        for rank, code in codes.items():
            letter, seconds = _of_kernel(found[rank])
            cpu[rank] = seconds
            state = State.ENDED if code is not None else State.STOPPED if letter in "Tt" else State.ASLEEP
            if state is State.ASLEEP and before and now > before.at:
                share = (seconds - before.cpu.get(rank, seconds)) / (now - before.at)
                state = State.BUSY if share > BUSY_SHARE else state
            ranks.append(Rank(rank=rank, state=state, stack=parse(dumps.get(rank, "")), code=code))
        return Look(ranks=tuple(ranks), cpu=cpu, at=now)

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.stack"

    def _process(self, rank: int) -> int | None:
        """The rank's process by what it wrote: the first that is still alive."""
        with contextlib.suppress(OSError):
            for line in self._file(rank).read_text(errors="replace").splitlines():
                word, _, number = line.partition(" ")
                if word == "process" and number.isdecimal() and Path(f"/proc/{number}").exists():
                    return int(number)
        return None

    def _answers(self, sizes: Mapping[int, int | None]) -> dict[int, str]:
        """The text appended to each file, once it has stopped growing."""
        asked = {rank: size for rank, size in sizes.items() if size is not None}
        until, lengths = time.monotonic() + _ANSWER_SECONDS, dict(asked)
        while time.monotonic() < until:
            time.sleep(_SETTLED_SECONDS)
            now = {rank: self._size(rank) for rank in asked}
            if now == lengths and all(now[rank] > size for rank, size in asked.items()):
                break
            lengths = now
        dumps = {}
        for rank, size in asked.items():
            with contextlib.suppress(OSError), self._file(rank).open("rb") as file:
                file.seek(size)
                dumps[rank] = file.read().decode(errors="replace")
        return dumps

    def _size(self, rank: int) -> int:
        try:
            return self._file(rank).stat().st_size
        except OSError:
            return 0


def _ask(file: Path, pid: int) -> int | None:
    """Send the signal, only where it is caught: uncaught it would end the process. The file's size before."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught, 16) >> (SIGNAL - 1) & 1:
            size = file.stat().st_size
            os.kill(pid, SIGNAL)
            return size
    return None


def _of_kernel(pid: int | None) -> tuple[str, float]:
    """State letter and processor seconds (user and system), by proc(5)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return "?", 0.0
