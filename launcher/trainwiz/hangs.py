"""Find out from the ranks' Python stacks which of them keeps the others waiting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from trainwiz.message import Message, say
from trainwiz.quantities import whole

# faulthandler: `File "/x/train.py", line 12 in load_batch`, under `Current thread 0x… (most recent call first):`
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<")
_WAITING_FILES = re.compile(
    r"(?:^|/)torch/distributed/|/torch/autograd/graph\.py|/torch/cuda/__init__\.py|/deepspeed/comm/|/accelerate/utils/operations\.py"
)
"""Where a rank waits for the others: collectives, a backward that reduces gradients, reading the device."""
_WRAPPERS = {
    "wrapper",
    "decorate_context",
    "_fn",
    "wrapped_fn",
    "log_wrapper",
    "inner",
    "_call_impl",
    "_wrapped_call_impl",
}
BUSY_SHARE = 0.1
"""Of a core: a rank that used less between two looks was asleep."""


class State(Enum):
    """The state of a rank's process."""

    ASLEEP = "asleep"
    BUSY = "busy"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    file: str
    """The path of its source."""
    line: int
    """The line that is being run; 0 where Python does not know it."""
    function: str
    """The function's name."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank at one point in time."""

    rank: int
    """Its rank."""
    state: State = State.ASLEEP
    """The state of its process."""
    stack: tuple[Frame, ...] = ()
    """The calls of its main thread, innermost first; empty: unknown."""
    code: int | None = None
    """Its exit code; None while it runs."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for the other ranks."""
        return any(_WAITING_FILES.search(frame.file) for frame in self.stack[:12])

    @property
    def place(self) -> Frame | None:
        """The call that says most: the collective it waits in, else the innermost of the user's own code."""
        if self.waiting:
            inside = [f for f in self.stack if _WAITING_FILES.search(f.file) and f.function not in _WRAPPERS]
            return inside[0] if inside else self.stack[0]
        return self.own or (self.stack[0] if self.stack else None)

    @property
    def own(self) -> Frame | None:
        """The innermost call outside libraries."""
        theirs = (f for f in self.stack if not _LIBRARY.search(f.file) and not _WAITING_FILES.search(f.file))
        return next(theirs, None)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The conclusion from two looks at all ranks."""

    suspects: tuple[int, ...]
    """The ranks that the others wait for."""
    sentences: tuple[Message, ...]
    """Where each rank is, and the conclusion."""
    still: bool
    """Whether nothing moved between two looks."""
    stuck: bool = False
    """Whether nothing can move, whatever the script is like: every rank waits for others, is stopped, or has ended."""


def parse(dump: str) -> tuple[Frame, ...]:
    """The main thread's calls, innermost first, from one dump of faulthandler. It lists the oldest thread last."""
    frames: list[Frame] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            frames = []
        elif match := _FRAME.match(line):
            frames.append(Frame(match["file"], whole(match["line"]) or 0, match["function"]))
    return tuple(frames)


# docs/decisions/supervision.md: A run is ended only if nothing in it moves
def compare(before: Sequence[Rank], after: Sequence[Rank], *, elsewhere: bool = False) -> Verdict:
    """Compare two looks at all ranks, and name those that the others wait for.

    `elsewhere`: other machines have ranks, too.
    """
    suspects = _suspects(after) or ([r for r in after if not r.waiting] if elsewhere else [])
    earlier = {rank.rank: rank for rank in before}
    still = all(_still(earlier.get(rank.rank), rank) for rank in after)
    sentences = [_where(rank) for rank in after]
    return Verdict(
        suspects=tuple(rank.rank for rank in suspects),
        sentences=(*sentences, _beyond(after, suspects) if elsewhere else _conclusion(after, suspects)),
        still=still,
        stuck=still and all(rank.waiting or rank.state in (State.ENDED, State.STOPPED) for rank in after),
    )


def _suspects(ranks: Sequence[Rank]) -> list[Rank]:
    for chosen in (
        [r for r in ranks if r.state is State.ENDED],
        [r for r in ranks if r.state is State.STOPPED],
        [r for r in ranks if not r.waiting and r.state is not State.ENDED],
    ):
        if chosen and len(chosen) < len(ranks):
            return chosen
    return _minority(ranks)


def _minority(ranks: Sequence[Rank]) -> list[Rank]:
    """All wait, or none does: those in another call than most."""
    groups: dict[object, list[Rank]] = {}
    for rank in ranks:
        own = rank.own
        place = rank.place
        groups.setdefault((place and place.function, own and (own.file, own.line)), []).append(rank)
    if len(groups) < 2:
        return []
    largest = max(groups.values(), key=len)
    others = [rank for group in groups.values() if group is not largest for rank in group]
    # Two against two, or one against one: it is not known which of them is wrong.
    return others if len(largest) > len(others) else list(ranks)


def _still(before: Rank | None, after: Rank) -> bool:
    if after.state in (State.ENDED, State.STOPPED):
        return True
    if before is None or before.stack != after.stack or not after.stack:
        return False
    return after.waiting or after.state is State.ASLEEP


def _where(rank: Rank) -> Message:
    if rank.state is State.ENDED:
        return say("rank {rank} has ended (exit code {code})", rank=rank.rank, code=rank.code)
    place, own = rank.place, rank.own
    stopped = rank.state is State.STOPPED
    if place is None:
        if stopped:
            return say("rank {rank} is stopped (SIGSTOP); resume it with `kill -CONT`", rank=rank.rank)
        return say("rank {rank} returned no Python stack: it is running native code or still starting", rank=rank.rank)
    at = own or place
    values = {"rank": rank.rank, "function": place.function, "where": f"{at.file.rpartition('/')[2]}:{at.line}"}
    if stopped:
        return say("rank {rank} is stopped (SIGSTOP) in {function}, {where}", **values)
    if rank.waiting:
        return say("rank {rank} is waiting in {function}, called at {where}", **values)
    if rank.state is State.BUSY:
        return say("rank {rank} is busy in {function}, {where}", **values)
    return say("rank {rank} is sleeping in {function}, {where}", **values)


def _conclusion(ranks: Sequence[Rank], suspects: Sequence[Rank]) -> Message:
    named = listed([rank.rank for rank in suspects])
    if not suspects:
        if all(rank.waiting for rank in ranks) and len(ranks) > 1:
            return say(
                "all ranks are waiting at the same place: check the network between them, or look for a rank that "
                "is elsewhere"
            )
        return say("all ranks are at the same place")
    if len(suspects) == len(ranks):
        return say("the ranks are at different places and wait for each other")
    if all(rank.state is State.ENDED for rank in suspects):
        return say("{ranks} ended while the other ranks are waiting", ranks=named)
    if all(rank.state is State.BUSY for rank in suspects):
        return say("the other ranks are waiting for {ranks}, alive but slow (a straggler)", ranks=named)
    return say("the other ranks are waiting for {ranks}", ranks=named)


def _beyond(ranks: Sequence[Rank], suspects: Sequence[Rank]) -> Message:
    """The conclusion on one of several machines: the ranks that this machine's wait for may be on another."""
    if not suspects:
        return say(
            "all ranks on this machine are waiting for other ranks: see the output of trainwiz on the other machines"
        )
    if len(suspects) < len(ranks):
        return _conclusion(ranks, suspects)
    named = listed([rank.rank for rank in suspects])
    return say("no rank on this machine is waiting: ranks on other machines may be waiting for {ranks}", ranks=named)


def listed(ranks: Sequence[int]) -> Message:
    """One rank or several, by their numbers."""
    if len(ranks) == 1:
        return say("rank {rank}", rank=ranks[0])
    return say("ranks {ranks}", ranks=", ".join(map(str, ranks)))


def functions(ranks: Sequence[Rank]) -> Mapping[str, str]:
    """Rank → the function it is in, for records."""
    return {str(rank.rank): rank.place.function if rank.place else rank.state.value for rank in ranks}
