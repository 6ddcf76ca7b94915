"""What to do after a failed attempt: continue, perhaps with a smaller micro-batch, or give up.

Decides only: it is told how each attempt ended and when, so that a test replays any history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainwiz.batch import Batch
from trainwiz.message import Message, say
from trainwiz.outcome import HANG_CODE, Outcome

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 60.0
"""Back-off: doubled from the first for every attempt in a row that trained nothing; none after one that did."""
SAME_PLACE = 3
"""After this many attempts in a row that end at the same rank and update in the same way, so would the next."""
HOUR_SECONDS = 3600.0
OUT_OF_MEMORY = ("cuda_memory", "host_memory")
"""The diagnoses that a smaller micro-batch helps against."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user allows."""

    max_restarts: int = 0
    """Restarts in all."""
    per_hour: int = 10
    """Restarts within an hour."""
    auto_batch: bool = False
    """A smaller micro-batch when out of memory."""
    elastic: bool = False
    """Going on with fewer machines than planned."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt that ended."""

    outcome: Outcome
    """How it ended."""
    update: int = 0
    """The last update that was trained."""
    passing: bool | None = None
    """Whether the diagnosis considers the failure transient; None: unknown."""
    out_of_memory: bool = False
    """Whether memory ran out."""
    lost: bool = False
    """Whether a machine was lost."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Try again."""

    why: Message
    """The reason, for the user."""
    delay: float = 0.0
    """Seconds to wait before."""
    batch: Batch | None = None
    """The batch from now on, if it changes."""


class Recovery:
    """The attempts of one run. Times are seconds of one monotonic clock."""

    def __init__(self, policy: Policy, batch: Batch | None = None) -> None:
        self.batch = batch
        self.restarts = 0
        self._policy = policy
        self._recent: list[float] = []
        self._history: list[Attempt] = []

    def after(self, attempt: Attempt, now: float) -> Retry | Message | None:
        """What follows an attempt: another one, the end with a reason, or the end without a message."""
        outcome = attempt.outcome
        trained = attempt.update > (self._history[-1].update if self._history else 0)
        self._history.append(attempt)
        if outcome.exit_code == 0 or outcome.stopped or outcome.interrupted or None in outcome.codes.values():
            return None
        if attempt.out_of_memory and self._policy.auto_batch and self.batch:
            return self._smaller(self.batch)
        if not self._policy.max_restarts and not self._free(attempt):
            return None
        return self._refusal(attempt, now) or self._retry(attempt, trained, now)

    def _free(self, attempt: Attempt) -> bool:
        """Whether another attempt does not count as a restart: machines come and go in an elastic run."""
        return attempt.lost and self._policy.elastic

    def _smaller(self, batch: Batch) -> Retry | Message:
        half = batch.halved()
        if half is None:
            return say("out of memory with micro-batch {micro}, which cannot be halved", micro=batch.micro)
        self.batch = half
        return Retry(
            why=say(
                "out of memory with micro-batch {before}: continuing with {micro}; the real batch stays the same: "
                "{real} = {micro} × {accumulation} × {world}",
                before=batch.micro,
                real=half.real,
                micro=half.micro,
                accumulation=half.accumulation,
                world=half.world,
            ),
            batch=half,
        )

    def _refusal(self, attempt: Attempt, now: float) -> Message | None:
        limit = self._policy.max_restarts
        if not is_passing(attempt):
            return say("no restart: this failure would happen again in the same way")
        if self.restarts >= limit and not self._free(attempt):
            return say("no restart: --max-restarts allows {n}, and all are used up", n=limit)
        if _same(self._history[-SAME_PLACE:]):
            return say(
                "no restart: {n} attempts in a row ended the same way after update {update}",
                n=SAME_PLACE,
                update=attempt.update,
            )
        self._recent = [at for at in self._recent if now - at < HOUR_SECONDS]
        if len(self._recent) >= self._policy.per_hour:
            return say("no restart: {n} restarts within an hour, the limit of --restarts-per-hour", n=len(self._recent))
        return None

    def _retry(self, attempt: Attempt, trained: bool, now: float) -> Retry:
        self.restarts += not self._free(attempt)
        self._recent.append(now)
        idle = 0 if trained else _idle(self._history)
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (idle - 1)) if idle else 0.0
        if self._free(attempt):
            return Retry(why=say("continuing from the newest complete checkpoint"), delay=delay)
        return Retry(
            why=say(
                "restart {n} of {limit} in {seconds:g} s, from the newest complete checkpoint",
                n=self.restarts,
                limit=self._policy.max_restarts,
                seconds=delay,
            ),
            delay=delay,
        )


def is_passing(attempt: Attempt) -> bool:
    """Whether the failure may be transient: by the diagnosis, otherwise for a death by signal or a hang."""
    outcome = attempt.outcome
    if attempt.lost or (outcome.exit_code == HANG_CODE and outcome.hung):
        return True
    if attempt.passing is not None:
        return attempt.passing
    rank = outcome.first_failed
    return rank is not None and (outcome.codes.get(rank) or 0) < 0


def _same(attempts: Sequence[Attempt]) -> bool:
    if len(attempts) < SAME_PLACE:
        return False
    return len({(a.update, a.outcome.exit_code, a.outcome.first_failed) for a in attempts}) == 1


def _idle(history: Sequence[Attempt]) -> int:
    """Attempts in a row, from the last one back, that got no further than the one before."""
    updates = [0, *(attempt.update for attempt in history)]
    idle = 0
    for before, after in zip(reversed(updates[:-1]), reversed(updates), strict=False):
        if after > before:
            break
        idle += 1
    return idle
