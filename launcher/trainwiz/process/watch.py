"""A thread that watches for signs of life, asks ranks where they are after a long silence, and names the slow one."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwiz.hangs import Verdict, compare
from trainwiz.message import Message, say
from trainwiz.process.heartbeats import WINDOW_SECONDS, Heartbeats, Straggler, silent_seconds
from trainwiz.process.progress import FLOOR_SECONDS, LEARNED_UPDATES, Progress
from trainwiz.process.stacks import Look, Stacks

_TICK_SECONDS = 1.0
_BETWEEN_LOOKS_SECONDS = 1.0
STALE_SECONDS = 120.0
"""A machine whose beats are as old is silent: caches of network file systems hide a write for a minute."""
_CONFIRM_SECONDS = 60.0
"""Before a run is stopped: how long, at most, nothing may have moved after the first look."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What to watch, and what to do about a hang."""

    files: Callable[[], Sequence[Path]]
    """Names the files whose growth is a sign of life."""
    metrics: Path
    """The metrics, whose growth is an update."""
    stacks: Path
    """The folder that the ranks write stacks and heartbeats into."""
    ranks: Sequence[int]
    """The ranks of this machine."""
    floor: float = FLOOR_SECONDS
    """The shortest silence that counts as a hang, in seconds."""
    stop: bool = False
    """Whether a hang ends the run."""
    machine: int | None = None
    """The rank of this machine, where the world spans several. Rank 0 alone writes the metrics, so on the other
    machines heartbeats are the signs of life."""
    others: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The ranks of each other machine, whose beats are in the same folder if the machines share it."""
    over: Callable[[], bool] = lambda: False
    """Whether the run is over on the first machine. Only then does another machine end its part of a hang: the first
    alone sees whether the training goes on."""


@dataclass(frozen=True, kw_only=True)
class Stall:
    """No sign of life for too long."""

    silence: float
    """Seconds since the last sign."""
    limit: float
    """Seconds that were allowed."""
    verdict: Verdict
    """Where the ranks are."""
    stop: bool = False
    """Whether nothing moved between two looks, so that the run may be ended."""
    machine: int | None = None
    """The rank of this machine, where the world spans several."""


# docs/decisions/supervision.md: Ctrl-Z stops the launcher, and the ranks go on
@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Signs of life after a reported stall."""

    silence: float
    """Seconds that it lasted."""
    suspects: tuple[int, ...]
    """The ranks that the others had waited for."""


# docs/decisions/supervision.md: Only the first machine ends a hung run
class Watch:
    """Runs until `close`. `codes` gives each rank's exit code, None while it runs; `tell` gets what is found."""

    def __init__(
        self,
        watching: Watching,
        codes: Callable[[], Mapping[int, int | None]],
        tell: Callable[[Stall | Resumed | Straggler], None],
    ) -> None:
        self._watching, self._codes, self._tell = watching, codes, tell
        self._stacks = Stacks(watching.stacks)
        self._heartbeats = Heartbeats(watching.stacks, watching.ranks, min(WINDOW_SECONDS, max(8.0, watching.floor)))
        self._signs = 0
        self._tick = min(_TICK_SECONDS, watching.floor / 4)
        self._sizes: dict[Path, int] = {}
        self._grown: set[Path] = set()
        self._told: Stall | None = None
        self._stopped = False
        self._before: Look | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        progress = Progress(time.monotonic(), self._watching.floor)
        while not self._ended.wait(self._tick):
            now = time.monotonic()
            codes = self._codes()
            if any(code is None for code in codes.values()) and 0 in codes.values():
                progress.ended_well(now)
            moved = self._heartbeats.read(now)
            if self._grew() or (moved and self._watching.machine):
                self._signs += 1
                gap = progress.sign(now, update=self._watching.metrics in self._grown)
                if self._told:
                    self._tell(Resumed(silence=gap, suspects=self._told.verdict.suspects))
                self._told, self._stopped = None, False
                self._name_straggler(now)
            elif progress.silence(now) > progress.limit(now):
                self._overdue(progress.silence(now), progress.limit(now), may_stop=progress.known)

    def _name_straggler(self, now: float) -> None:
        if self._heartbeats.due(now):
            slow = self._heartbeats.straggler(moving=self._signs >= LEARNED_UPDATES)
            self._signs = 0
            if slow:
                self._tell(slow)

    def _grew(self) -> bool:
        sizes = {}
        for file in (*self._watching.files(), self._watching.metrics):
            try:
                sizes[file] = file.stat().st_size
            except OSError:
                continue
        self._grown = {file for file, size in sizes.items() if size != self._sizes.get(file, 0)}
        self._sizes = sizes
        return bool(self._grown)

    def _overdue(self, silence: float, limit: float, *, may_stop: bool) -> None:
        if self._told is None:
            first = self._stacks.look(self._codes())
            if self._ended.wait(min(_BETWEEN_LOOKS_SECONDS, limit)):
                return
            self._before = self._stacks.look(self._codes(), first)
            self._told = self._stall(silence, limit, first, self._before)
            self._tell(self._told)
        elif self._before and not self._stopped and silence >= self._told.silence + min(_CONFIRM_SECONDS, limit / 2):
            later = self._stacks.look(self._codes(), self._before)
            told = self._stall(silence, limit, self._before, later)
            self._before = later
            self._stopped = told.verdict.still and self._may_end(told.verdict, may_stop)
            changed = told.verdict.suspects and told.verdict.suspects != self._told.verdict.suspects
            self._told = dataclasses.replace(told, stop=self._stopped)
            if self._stopped or changed:
                self._tell(self._told)

    def _may_end(self, verdict: Verdict, known: bool) -> bool:
        if self._watching.machine:
            return self._watching.over()
        return self._watching.stop and (known or verdict.stuck)

    def _stall(self, silence: float, limit: float, before: Look, after: Look) -> Stall:
        machine = self._watching.machine
        verdict = compare(before.ranks, after.ranks, elsewhere=machine is not None)
        verdict = dataclasses.replace(verdict, sentences=(*verdict.sentences, *self._silent_machines(silence)))
        return Stall(silence=silence, limit=limit, verdict=verdict, machine=machine)

    def _silent_machines(self, silence: float) -> Iterator[Message]:
        """The other machines of which no rank shows a sign of life; even a rank that waits or hangs shows one."""
        here = self._watching
        for machine, ranks in here.others.items():
            seconds = silent_seconds(here.stacks, ranks, here.ranks)
            if seconds is not None and seconds > min(STALE_SECONDS, silence / 2):
                yield say(
                    "machine {machine} has shown no sign of life since {clock} ({seconds:.0f} s): it is frozen or "
                    "off, or its network is down",
                    machine=machine,
                    clock=time.strftime("%H:%M:%S", time.localtime(time.time() - seconds)),
                    seconds=seconds,
                )
