"""What trainwiz raises, and the exit code of each.

    TrainwizError            1  the work failed
    ├── UsageError           2  the command line, an answer or a file cannot be understood
    │   └── PlanError        2  one or more keys of a plan are wrong; all of them are named
    ├── Refused              1  findings of level error; nothing was started
    └── Cancelled          130  Ctrl-C
    Ended                128+n  signal n: SIGTERM, or SIGHUP when the terminal is gone

Anything else that reaches the top is a bug in trainwiz: exit code 3 and a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainwiz.message import Message, say

if TYPE_CHECKING:
    from trainwiz.finding import Place


class TrainwizError(Exception):
    """A failure that is explained to the person in one message, and ends with what to type.

    `remedy` is what to do about it, and `place` the line of the file that is at fault, where they are known.
    """

    exit_code = 1

    def __init__(self, message: Message, remedy: Message | None = None, *, place: Place | None = None) -> None:
        super().__init__(str(message))
        self.message = message
        self.remedy = remedy
        self.place = place


class UsageError(TrainwizError):
    """The command line, an answer or a file cannot be understood."""

    exit_code = 2


class PlanError(UsageError):
    """Keys of a plan are wrong.

    `problems` names each one, and `places` says where each is in the file, where there is one. All are reported
    together, under `head` if there is one.
    """

    def __init__(
        self,
        problems: Sequence[Message],
        source: str = "",
        *,
        head: Message | None = None,
        remedy: Message | None = None,
        places: Sequence[Place | None] = (),
    ) -> None:
        if head is None and source:
            head = say("{source}: invalid values in the plan: {n}", source=source, n=len(problems))
        super().__init__(head or say("invalid values in the plan: {n}", n=len(problems)), remedy)
        self.problems = tuple(problems)
        self.places = tuple(places) or (None,) * len(self.problems)
        self.source = source

    def __str__(self) -> str:
        return "\n".join([str(self.message), *(f"  {p}" for p in self.problems)])


class Refused(TrainwizError):
    """Findings of level error stand in the way; nothing was started."""


class Cancelled(TrainwizError):
    """The person pressed Ctrl-C; what was entered is kept where the message says."""

    exit_code = 130


class Ended(BaseException):
    """A signal asked for the end. No `Exception`: nothing on the way may keep it."""

    def __init__(self, signum: int) -> None:
        from trainwiz.outcome import SIGNAL_BASE, signal_name

        super().__init__(signum)
        self.signum = signum
        self.name = signal_name(signum)
        self.exit_code = SIGNAL_BASE + signum
