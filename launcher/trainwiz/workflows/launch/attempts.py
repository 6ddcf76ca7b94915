"""The attempts of one run: each is supervised, what follows is decided, and all of them are recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz import recovery
from trainwiz.batch import Batch
from trainwiz.message import Message
from trainwiz.outcome import Outcome
from trainwiz.process import ranks
from trainwiz.process.ranks import Audience, Inbox
from trainwiz.process.standby import StandbyRanks
from trainwiz.recovery import Attempt, Retry
from trainwiz.workflows.launch import build_locks
from trainwiz.workflows.launch.prepared import Prepared

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis

RESUMING = ("--resume", "auto")
"""Arguments with which a generated script goes on from its newest checkpoint, if there is one."""
_BATCH = ("per_device_batch_size", "gradient_accumulation_steps", "num_processes")


@dataclasses.dataclass
class Attempts:
    """The result of a run's attempts."""

    prepared: Prepared
    """What runs."""
    entries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """One for each attempt, the last one included, as `outcome.json` keeps them."""
    standby: StandbyRanks | None = None
    """The processes that the next attempt starts from."""

    def run(self, once: Callable[[Prepared, Inbox], Outcome], audience: Audience, update: Callable[[], int]) -> Outcome:
        """Repeat attempts until the run ends or must. `once` runs one; `update` is the last one that was trained."""
        prepared, began, started = self.prepared, time.time(), time.monotonic()
        policy = recovery.Policy(
            max_restarts=prepared.max_restarts,
            per_hour=prepared.request.restarts_per_hour,
            auto_batch=prepared.request.auto_batch,
        )
        decide = recovery.Recovery(policy, planned_batch(prepared) if policy.auto_batch else None)
        with ranks.listening() as inbox, self._standing_by():
            while True:
                outcome = once(prepared, inbox)
                diagnosis = self._diagnosis(outcome)
                attempt = _attempt(outcome, update(), diagnosis)
                follows = decide.after(attempt, time.monotonic())
                self.entries.append(entry(attempt, decide.batch, follows))
                if len(self.entries) > 1:  # the run took as long as all of them, with the waiting
                    outcome = dataclasses.replace(outcome, seconds=time.monotonic() - started)
                if isinstance(follows, Message):
                    audience.say(follows)
                if follows is None or isinstance(follows, Message):
                    return outcome
                for words in (diagnosis.how, diagnosis.cause) if diagnosis else ():
                    audience.say(words)
                audience.say(follows.why)
                if signum := ranks.pause(inbox, follows.delay):
                    return dataclasses.replace(outcome, signal=signum)
                self._put_logs_aside(len(self.entries))
                build_locks.remove_stale_locks(prepared.command.environ, began, audience.say)
                prepared = _with_batch(self.prepared, decide.batch)

    @contextlib.contextmanager
    def _standing_by(self) -> Iterator[None]:
        if not self.prepared.standby:
            yield
            return
        self.standby = StandbyRanks(self.prepared.run.metrics.resolve())
        try:
            yield
        finally:
            self.standby.close()

    def _diagnosis(self, outcome: Outcome) -> Diagnosis | None:
        if not outcome.exit_code or outcome.interrupted or outcome.stopped:
            return None
        from trainwiz.workflows import diagnose  # not before a first rank has failed

        return diagnose.of_failed_rank(self.prepared.run, outcome)

    def _put_logs_aside(self, number: int) -> None:
        # What the next attempt says is then alone in `rank-N.log`: to be followed, and to be diagnosed.
        for log in self.prepared.run.logs.glob("*"):
            if log.suffix in (".beat", ".log", ".peak", ".stack") and ".attempt-" not in log.name:
                with contextlib.suppress(OSError):
                    os.replace(log, log.with_name(f"{log.stem}.attempt-{number}{log.suffix}"))


def _attempt(outcome: Outcome, update: int, diagnosis: Diagnosis | None) -> Attempt:
    return Attempt(
        outcome=outcome,
        update=update,
        passing=diagnosis.transient if diagnosis else None,
        out_of_memory=diagnosis is not None and diagnosis.name in recovery.OUT_OF_MEMORY,
    )


def planned_batch(prepared: Prepared) -> Batch | None:
    """The batch as planned, with what the arguments say instead; None without a plan."""
    plan = prepared.plan
    if plan is None:
        return None
    values = [plan.batch.per_device_batch_size, plan.batch.gradient_accumulation_steps, plan.machine.num_processes]
    micro, accumulation, world = (
        _given(prepared.request.arguments, name) or value for name, value in zip(_BATCH, values, strict=True)
    )
    return Batch(micro=micro, accumulation=accumulation, world=world)


def _given(arguments: Sequence[str], name: str) -> int | None:
    found = None
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        value = following if word == f"--{name}" else word.removeprefix(f"--{name}=")
        if word.startswith(f"--{name}") and value.isdecimal():
            found = int(value)  # the last of two equal options counts
    return found


def _with_batch(prepared: Prepared, batch: Batch | None) -> Prepared:
    """The same for another attempt in the same run folder."""
    resuming = RESUMING if prepared.plan and not prepared.continues else ()
    split = batch.arguments if batch and batch != planned_batch(prepared) else ()
    argv = (*prepared.command.argv, *resuming, *split)
    return dataclasses.replace(prepared, command=dataclasses.replace(prepared.command, argv=argv))


def entry(attempt: Attempt, batch: Batch | None, follows: Retry | Message | None) -> dict[str, Any]:
    """An attempt as `outcome.json` keeps it."""
    outcome = attempt.outcome
    why = follows if isinstance(follows, Message) or follows is None else follows.why
    return {
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": outcome.exit_code,
        "first_failed_rank": outcome.first_failed,
        "seconds": round(outcome.seconds, 3),
        "hung": outcome.hung,
        "update": attempt.update,
        "out_of_memory": attempt.out_of_memory,
        "then": str(why) if why else None,
        "batch": dataclasses.asdict(batch) if batch else None,
    }
