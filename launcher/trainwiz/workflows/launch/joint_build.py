"""DeepSpeed's ops on several machines: all of them have theirs, or none begins and every one says why."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.language import text
from trainwiz.message import Message, say
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.workflows.launch import refusal

_CONNECT_SECONDS = 40.0
"""After the roll-call: how long machines may take to connect again."""
_PART_SECONDS = 2.0
_POLL_SECONDS = 0.5

Look = Callable[[], None]
"""Asked while this machine builds: raises `TrainwizError` where another one cannot."""


class _Elsewhere(TrainwizError):
    """What another machine said; it is not told again."""


# docs/decisions/launching.md: A machine that cannot build tells the others at once
@contextlib.contextmanager
def together(link: Coordinator | Participant | None) -> Iterator[Look]:
    """Build on all machines: an error here ends the launch there, and at the end all have built."""
    if link is None:
        yield lambda: None
        return
    side = _Leading(link) if isinstance(link, Coordinator) else _Following(link)
    try:
        yield side.look
    except _Elsewhere:
        raise
    except TrainwizError as error:
        side.fail(refusal.why(error))
        raise
    side.join()


class _Leading:
    """Machine 0's side."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._others = {m.rank: m for m in coordinator.expected if m.rank}

    def look(self) -> None:
        """Pass on that a machine cannot build, or that one is lost."""
        for rank, machine in self._others.items():
            lost, said = self._coordinator.lost.get(rank), self._coordinator.reports.get(rank, {})
            if why := said.get("problem") or (lost and text(lost.why)):
                self._tell(rank, machine.hostname, why)
                raise _unable(rank, machine.hostname, why)

    def fail(self, why: str) -> None:
        """Tell the others why this machine cannot."""
        self._connected()
        self._tell(0, os.uname().nodename, why)

    def join(self) -> None:
        """Wait until all others have built, and let them go on."""
        if missing := self._others.keys() - self._connected():
            rank = min(missing)
            raise _unable(rank, self._others[rank].hostname, text(say("it did not reconnect")))
        while not self._coordinator.wait(
            lambda: self._coordinator.reports.keys() >= self._others.keys(), _POLL_SECONDS
        ):
            self.look()
        self.look()
        for rank in self._others:
            self._coordinator.tell(rank, do="go")

    def _connected(self) -> set[int]:
        """The machines that are, or were, connected within the time for that."""

        def seen() -> set[int]:
            return {*self._coordinator.present, *self._coordinator.lost}

        self._coordinator.wait(lambda: seen() >= self._others.keys(), _CONNECT_SECONDS)
        return seen()

    def _tell(self, rank: int, host: str, why: str) -> None:
        for other in self._others.keys() - {rank}:
            self._coordinator.tell(other, do="unable", machine=rank, host=host, problem=why)


class _Following:
    """The side of any other machine."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant

    def look(self) -> None:
        """Whether machine 0 says that a machine cannot build, or is lost itself."""
        self._heard(self._participant.next(0.0))

    def fail(self, why: str) -> None:
        """Tell machine 0 why this machine cannot."""
        self._participant.report(problem=why)

    def join(self) -> None:
        """Say that this machine has built, and wait until all have."""
        self._participant.report(built=True)
        while not self._heard(self._participant.next(_POLL_SECONDS)):
            pass

    def _heard(self, order: dict[str, Any] | Message | None) -> bool:
        """Whether all have built."""
        if isinstance(order, Message):
            raise _Elsewhere(say("machine 0 is lost ({how})", how=order))
        if order and order["do"] == "unable":
            raise _unable(order["machine"], order["host"], order["problem"])
        return bool(order and order["do"] == "go")


def disconnect(link: Coordinator | Participant) -> None:
    """Close the connections that are no longer needed; machine 0 last, which needs the port again."""
    if isinstance(link, Coordinator):
        link.wait(lambda: len(link.present) == 1, _PART_SECONDS)
    link.close()


def _unable(rank: int, host: str, why: str) -> _Elsewhere:
    return _Elsewhere(
        say("machine {rank} ({host}) cannot start: {problem}", rank=rank, host=host, problem=why),
        say("fix the problem that this machine reports, then launch on all machines again"),
    )
