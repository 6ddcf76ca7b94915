"""Decide what to do with a world of ranks as events come in.

Does nothing itself: it is told what happened and when, and answers with the signals to send and the messages to show.
So a test can replay any history without processes or waiting.

    running ── a rank fails ──→ settling ── deadline ──→ stopping ── deadline ──→ killing ── deadline ──→ given up
       └────── asked to stop ───────────────────────────→    └─── asked again ───→
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainwiz.hangs import listed
from trainwiz.message import Message, say
from trainwiz.outcome import HANG_CODE, SIGNAL_BASE, Outcome, shell_code, signal_name
from trainwiz.process.heartbeats import Straggler
from trainwiz.process.watch import Stall

GRACE_SECONDS = 30.0
"""After a Ctrl-C: how long the ranks may take to finish their update, save and end."""
SETTLE_SECONDS = 0.5
"""After a rank failed: how long the others may end by themselves. A rank that raised may end after those that lost it,
since a process group closes its connections before the interpreter exits; a signal would hide how it ends."""
# docs/decisions/supervision.md: Ranks get 4 s after another rank has died
TEARDOWN_SECONDS = 3.5
"""Then, how long the others may take. They cannot save without it, and within 5 s nothing is left."""
KILL_SECONDS = 10.0
"""After SIGKILL: how long until a rank counts as stuck in the kernel (a driver, a dead network file system)."""

_MOST_KEPT = 100
"""Stalls, and slow ranks, that a record keeps: the last ones. A run of weeks may have any number."""


@dataclass(frozen=True)
class Send:
    """Send a signal to these ranks."""

    signal: int
    """The signal's number."""
    ranks: tuple[int, ...]
    """The ranks that receive it."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """An event on another machine ends this attempt here."""

    why: Message
    """What happened."""
    orderly: bool = False
    """Whether the ranks are to save: all of them can still be reached."""


Action = Send | Message


class Supervisor:
    """The state of one world. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        grace: float = GRACE_SECONDS,
        teardown: float = TEARDOWN_SECONDS,
        stopped_code: int = 0,
    ) -> None:
        """`stopped_code` is what a rank ends with that was stopped in order; it is not a failure."""
        self.codes: dict[int, int | None] = dict.fromkeys(ranks)
        self.deadline: float | None = None
        self.first_failed: int | None = None
        self.asked_by: int | None = None
        self.killed: tuple[int, ...] = ()
        self.hung = False
        self._stalls: deque[Mapping[str, object]] = deque(maxlen=_MOST_KEPT)
        self._stragglers: deque[Mapping[str, object]] = deque(maxlen=_MOST_KEPT)
        self._failed_before_asked = False
        self._settling = False
        self._given_up = False
        self._elsewhere: Elsewhere | None = None
        self._asked_at: float | None = None
        self._ended_at = 0.0
        self._grace, self._teardown = grace, teardown
        self._orderly = {0, stopped_code}

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks that have not ended."""
        return tuple(rank for rank, code in self.codes.items() if code is None)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to wait for."""
        return not self.alive or self._given_up

    def stopped(self, rank: int, code: int, now: float) -> list[Action]:
        """A rank ended."""
        self.codes[rank] = code
        self._ended_at = now
        if code in self._orderly or self.first_failed is not None or self.killed or self.hung or self._elsewhere:
            return []
        self.first_failed = rank
        self._failed_before_asked = self.asked_by is None
        if self._failed_before_asked and self.alive:
            self._settling = True
            self.deadline = now + SETTLE_SECONDS
        return []

    def asked(self, signum: int, now: float) -> list[Action]:
        """A request to stop: the first lets the ranks save, a Ctrl-C after that kills them."""
        if self.asked_by is not None or self._failed_before_asked or self.hung:
            # A shell that closes or a scheduler may signal twice; only a person's second Ctrl-C means "now".
            if signum != signal.SIGINT or self.killed:
                return []
            self.asked_by = self.asked_by or signum
            return [say("ending now: sending SIGKILL to {ranks}", ranks=listed(self.alive)), *self._kill(now)]
        self.asked_by = signum
        self._asked_at = now
        self.deadline = now + self._grace
        return [
            say(
                "{signal}: asked the ranks to save and exit; waiting up to {seconds:g} s for them (press Ctrl-C "
                "again to end them now)",
                signal="Ctrl-C" if signum == signal.SIGINT else signal_name(signum),
                seconds=self._grace,
            ),
            Send(signal.SIGTERM, self.alive),
        ]

    def elsewhere(self, event: Elsewhere, now: float) -> list[Action]:
        """The attempt is over on another machine, or is to be."""
        if self.deadline is not None or self.finished:
            return []
        self._elsewhere = event
        if not event.orderly:  # else no machine is taken away: saving may take its time, and hangs are watched
            self.deadline = now + self._teardown
        return [event.why, Send(signal.SIGTERM, self.alive)]

    def stalled(self, stall: Stall, now: float) -> list[Action]:
        """The watch found a stall."""
        if self.deadline is not None:
            return []
        where = [str(sentence) for sentence in stall.verdict.sentences]
        at = {} if stall.machine is None else {"machine": stall.machine}
        seen = {"seconds": round(stall.silence, 1), "suspects": stall.verdict.suspects, "where": where}
        self._stalls.append({**at, **seen})
        if not stall.stop:
            return [_silence(stall), *stall.verdict.sentences]
        self.hung = True
        self.deadline = now + self._teardown
        return [
            say(
                "no activity for {seconds:.0f} s: ending the run with exit code {code}",
                seconds=stall.silence,
                code=HANG_CODE,
            ),
            Send(signal.SIGTERM, self.alive),
        ]

    def late(self, straggler: Straggler) -> list[Action]:
        """One rank is slower than the others, and the run goes on."""
        self._stragglers.append(straggler.to_dict())
        return [
            say(
                "rank {rank} is slow: over the last {seconds:.0f} s the other ranks waited for it {share:.0%} of "
                "the time; it was mostly in {place}",
                rank=straggler.rank,
                seconds=straggler.seconds,
                share=straggler.share,
                place=straggler.place,
            )
        ]

    def resumed(self, silence: float, suspects: Sequence[int]) -> list[Action]:
        """Progress resumed after a reported stall."""
        if not suspects:
            return [say("progress resumed after {seconds:.0f} s", seconds=silence)]
        return [
            say(
                "progress resumed after {seconds:.0f} s: the ranks were waiting for {ranks}, slower than the others",
                seconds=silence,
                ranks=listed(suspects),
            )
        ]

    def due(self, now: float) -> list[Action]:
        """The deadline may have passed."""
        if self.deadline is None or now < self.deadline or self.finished:
            return []
        if self._settling:
            return self._tear_down(now)
        if self.killed:
            self._given_up = True
            return [
                say(
                    "{ranks} did not exit {seconds:g} s after SIGKILL, stuck in the kernel (a driver or a network "
                    "file system); check `dmesg` and `ps -o pid,stat,wchan`",
                    ranks=listed(self.alive),
                    seconds=KILL_SECONDS,
                )
            ]
        waited = self._grace if self.asked_by is not None else self._teardown
        return [
            say(
                "{ranks} did not exit within {seconds:g} s: sending SIGKILL",
                ranks=listed(self.alive),
                seconds=waited,
            ),
            *self._kill(now),
        ]

    def outcome(self, seconds: float) -> Outcome:
        """How it ended; `seconds` is the time from the first rank's start."""
        return Outcome(
            exit_code=self._exit_code(),
            codes=dict(self.codes),
            first_failed=self.first_failed,
            seconds=seconds,
            signal=self.asked_by,
            killed=self.killed,
            saving_seconds=max(0.0, self._ended_at - self._asked_at) if self._asked_at is not None else None,
            stopped=self._ended_in_order() and any(self.codes.values()),
            hung=self.hung,
            stalls=tuple(self._stalls),
            stragglers=tuple(self._stragglers),
        )

    def _tear_down(self, now: float) -> list[Action]:
        assert self.first_failed is not None
        self._settling = False
        self.deadline = now + self._teardown
        return [
            say(
                "rank {rank} failed ({how}); ending the other ranks: SIGTERM now, SIGKILL after {seconds:g} s",
                rank=self.first_failed,
                how=ending(self.codes[self.first_failed] or 0),
                seconds=self._teardown,
            ),
            Send(signal.SIGTERM, self.alive),
        ]

    def _kill(self, now: float) -> list[Action]:
        self._settling = False
        self.killed = self.alive
        self.deadline = now + KILL_SECONDS
        return [Send(signal.SIGKILL, self.alive)]

    # docs/decisions/supervision.md: The exit code after Ctrl-C is the training's own
    def _exit_code(self) -> int:
        if self._failed_before_asked and self.first_failed is not None:
            return shell_code(self.codes[self.first_failed] or 0)
        if self.hung:
            return HANG_CODE
        if self._ended_in_order():
            return max(code or 0 for code in self.codes.values())
        if self.asked_by is None:
            return SIGNAL_BASE + signal.SIGKILL
        if self.first_failed is not None and self.codes[self.first_failed] == -signal.SIGTERM:
            return SIGNAL_BASE + self.asked_by  # it could not save yet, and caused the failures of the others
        others = {*self._orderly, None, -signal.SIGTERM, -signal.SIGKILL}
        own = [code for code in self.codes.values() if code not in others]
        # Ended by a signal of ours, on behalf of the one that came in: the shell should see that one.
        return shell_code(own[0] or 0) if own else SIGNAL_BASE + self.asked_by

    def _ended_in_order(self) -> bool:
        return all(code in self._orderly for code in self.codes.values())


def _silence(stall: Stall) -> Message:
    values = {"machine": stall.machine, "seconds": stall.silence, "limit": stall.limit}
    if stall.machine is None:
        return say("no progress for {seconds:.0f} s (limit {limit:.0f} s); the ranks are at:", **values)
    return say("machine {machine}: no progress for {seconds:.0f} s (limit {limit:.0f} s); its ranks are at:", **values)


def ending(code: int) -> Message:
    """How a process ended, in words."""
    if code >= 0:
        return say("exit code {code}", code=code)
    return say("signal {name}", name=signal_name(-code))
