"""Lines with the times at which they were written, by several pods: shown in that order, and each of them once."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

from trainwiz.schedulers import Scheduler
from trainwiz.ui import console

_OVERLAP_SECONDS = 120
"""How far before the newest line that is known other pods may have written one that is not: clocks of nodes differ,
and pods are asked one after the other."""
_MOST_KNOWN = 20_000


class Dated:
    """What was shown of a job's output, whose scheduler is asked again and again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._newest = ""
        self._time = ""
        self._shown: Counter[tuple[str, str]] = Counter()
        self._asked: Counter[tuple[str, str]] = Counter()

    @property
    def since(self) -> str:
        """The time from which on there may be lines that were not shown; empty: from the beginning."""
        if not self._newest:
            return ""
        at = datetime.strptime(self._newest[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return f"{at - timedelta(seconds=_OVERLAP_SECONDS):%Y-%m-%dT%H:%M:%SZ}"

    def show(self, printed: str) -> None:
        """Show what the scheduler's command printed at once."""
        self.ask_again()
        for line in self._scheduler.in_order(printed):
            self.take(line)

    def ask_again(self) -> None:
        """The next lines are the answer to a new question, which begins `since`."""
        self._asked.clear()
        self._time = ""

    def take(self, line: str) -> None:
        """Show a line, unless the answer to an earlier question held it as often as this one does."""
        time, words = self._scheduler.dated_line(line)
        self._time = time or self._time  # a line without one belongs to the line before it
        known = self._time, words
        self._asked[known] += 1
        if self._asked[known] <= self._shown[known]:
            return
        self._shown[known] += 1
        self._newest = max(self._newest, time)
        console.data(words)
        if len(self._shown) > _MOST_KNOWN:
            self._forget()

    def _forget(self) -> None:
        first = self.since.removesuffix("Z")
        for known in (self._shown, self._asked):
            for old in [each for each in known if each[0] < first]:
                del known[old]
