"""The attempts of one run: each supervised, what follows decided, and all of them recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message

if TYPE_CHECKING:
    from pathlib import Path

    from trainwiz.diagnose import Diagnosis
    from trainwiz.outcome import Outcome
    from trainwiz.process.ranks import Audience, Inbox
    from trainwiz.process.spares import Spares
    from trainwiz.recovery import Again, Attempt, Batch
    from trainwiz.workflows.launch.supervise import Launch

_BATCH = ("per_device_batch_size", "gradient_accumulation_steps", "num_processes")


@dataclasses.dataclass
class Attempts:
    """What became of a run's attempts, for `outcome.json`: one entry each, the last one included."""

    launch: Launch
    entries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    spares: Spares | None = None

    def run(self, once: Callable[[Launch, Inbox], Outcome], audience: Audience, update: Callable[[], int]) -> Outcome:
        """Try until it ends, or must. `once` runs one attempt; `update` is the last one that was trained."""
        from trainwiz import recovery
        from trainwiz.process import ranks
        from trainwiz.workflows.launch import build_locks

        policy = recovery.Policy(
            max_restarts=self.launch.max_restarts,
            per_hour=self.launch.restarts_per_hour,
            auto_batch=self.launch.auto_batch,
        )
        decide = recovery.Recovery(policy, batch_of(self.launch) if policy.auto_batch else None)
        launch, began, started = self.launch, time.time(), time.monotonic()
        with ranks.listening() as inbox, self._spared():
            while True:
                outcome = once(launch, inbox)
                diagnosis = self._diagnosis(outcome)
                attempt = _attempt(outcome, update(), diagnosis)
                follows = decide.after(attempt, time.monotonic())
                self.entries.append(_entry(attempt, decide.batch, follows))
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
                build_locks.remove_left_locks(self.launch, began, audience)
                launch = _again(self.launch, decide.batch)

    @contextlib.contextmanager
    def _spared(self) -> Iterator[None]:
        if not (self.launch.spares and self.launch.max_restarts) or self.launch.command.launcher:
            yield
            return
        from trainwiz.process.spares import Spares

        self.spares = Spares(self.launch.run.metrics.resolve())
        try:
            yield
        finally:
            self.spares.close()

    def _diagnosis(self, outcome: Outcome) -> Diagnosis | None:
        from trainwiz.workflows.launch import supervise

        failed = outcome.exit_code and not outcome.interrupted
        return supervise.diagnosed(self.launch, outcome) if failed else None

    def _put_logs_aside(self, number: int) -> None:
        # What the next attempt says is then alone in `rank-N.log`: to be followed, and to be diagnosed.
        for log in self.launch.run.logs.glob("*"):
            if log.suffix in (".beat", ".log", ".stack") and ".attempt-" not in log.name:
                with contextlib.suppress(OSError):
                    os.replace(log, _aside(log, number))


def _attempt(outcome: Outcome, update: int, diagnosis: Diagnosis | None) -> Attempt:
    from trainwiz import recovery

    return recovery.Attempt(
        outcome=outcome,
        update=update,
        passing=diagnosis.transient if diagnosis else None,
        out_of_memory=diagnosis is not None and diagnosis.name in recovery.OUT_OF_MEMORY,
    )


def batch_of(launch: Launch) -> Batch | None:
    """The batch as planned, with what the arguments say instead; None without a plan."""
    from trainwiz.recovery import Batch

    plan = launch.plan
    if plan is None:
        return None
    values = [plan.batch.per_device_batch_size, plan.batch.gradient_accumulation_steps, plan.machine.num_processes]
    micro, accumulation, world = (
        _given(launch.arguments, name) or value for name, value in zip(_BATCH, values, strict=True)
    )
    return Batch(micro=micro, accumulation=accumulation, world=world)


def _given(arguments: Sequence[str], name: str) -> int | None:
    found = None
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        value = following if word == f"--{name}" else word.removeprefix(f"--{name}=")
        if word.startswith(f"--{name}") and value.isdigit():
            found = int(value)  # the last of two equal options counts
    return found


def _again(launch: Launch, batch: Batch | None) -> Launch:
    added = (*launch.again, *(batch.arguments if batch and batch != batch_of(launch) else ()))
    return dataclasses.replace(launch, command=dataclasses.replace(launch.command, argv=(*launch.command.argv, *added)))


def _entry(attempt: Attempt, batch: Batch | None, follows: Again | Message | None) -> dict[str, Any]:
    outcome: Outcome = attempt.outcome
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


def _aside(log: Path, number: int) -> Path:
    return log.with_name(f"{log.stem}.attempt-{number}{log.suffix}")
