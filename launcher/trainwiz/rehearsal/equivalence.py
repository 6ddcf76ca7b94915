"""Whether a change of a plan must not change the training, and whether two rehearsed runs confirm it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz.batch import Batch
from trainwiz.message import say
from trainwiz.record.divergence import divergence
from trainwiz.rehearsal.check import Check, judged
from trainwiz.rehearsal.comparison import TOLERANCE
from trainwiz.rehearsal.result import RunResult
from trainwiz.rehearsal.setup import Setup, TrialRun

_NEUTRAL_SECTIONS = ("checkpoint.", "cluster.", "machine.", "strategy.", "supervision.", "tracking.")
_NEUTRAL = frozenset(
    {
        "batch.gradient_accumulation_steps",
        "batch.per_device_batch_size",
        "data.cache_dir",
        "data.num_workers",
        "engine",
        "ignore",
        "model.activation_checkpointing",
        "model.attention",
        "model.compile",
        "model.kernels",
        "model.loss_chunk",
        "version",
    }
)
"""With the sections: they decide how and where things are computed, saved and shown. All others decide the training."""
_SPLIT = ("batch.gradient_accumulation_steps", "batch.per_device_batch_size", "machine.num_processes")
_UNSEEN = (
    *("model.attention", "model.compile", "model.kernels", "model.loss_chunk"),
    *("machine.", "cluster.", "strategy.nvme_path"),
)
"""What CPU ranks cannot show: a rehearsal sets it itself."""
_GRADIENT_SLACK = 10
"""A norm adds up squares of numbers that rounding has moved."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The keys in which two plans differ."""

    neutral: tuple[str, ...] = ()
    """Those that must not matter to gradients and curves."""
    decisive: tuple[str, ...] = ()
    """Those that do."""

    @property
    def splits(self) -> bool:
        """Whether the real batch is cut differently."""
        return any(key in _SPLIT for key in self.neutral)

    @property
    def unseen(self) -> tuple[str, ...]:
        """The neutral ones that CPU ranks cannot show."""
        return tuple(key for key in self.neutral if key.startswith(_UNSEEN))


def change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """What changes between two plans' values, by dotted key."""
    keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    neutral = tuple(key for key in keys if key in _NEUTRAL or key.startswith(_NEUTRAL_SECTIONS))
    return Change(neutral=neutral, decisive=tuple(key for key in keys if key not in neutral))


def runs(before: Setup, after: Setup, changed: Change) -> tuple[TrialRun, TrialRun]:
    """What is trained: both without dropout, whose random numbers depend on how the batch is cut."""
    one = TrialRun(name="before", title=say("before the update"), split=before.main, without_dropout=True)
    return one, TrialRun(
        name="after", title=say("after the update"), split=_split(before, after, changed), without_dropout=True
    )


def _split(before: Setup, after: Setup, changed: Change) -> Batch:
    """How the later run cuts the same real batch: on other ranks only where a new strategy need not be seen on them."""
    if not changed.splits or after.main != before.main:
        return after.main
    if "machine.num_processes" in changed.neutral and not any(key.startswith("strategy.") for key in changed.neutral):
        return after.other
    world = after.main.world
    return Batch(world=world, micro=1, accumulation=after.main.real // world)


def check(before: RunResult, after: RunResult, setups: tuple[Setup, Setup]) -> Check:
    """Compare losses and gradients of the two runs."""
    for result in (before, after):
        if not result.succeeded:
            return judged(
                "proof",
                say("proof"),
                say(
                    "{run}: exit code {code}: {cause}", run=result.run.title, code=result.exit_code, cause=_why(result)
                ),
                result.remedy or say("read its log: {log}", log=result.log),
                {"exit_code": result.exit_code, "log": result.log},
            )
    limit = max(TOLERANCE[setup.plan.precision.mixed_precision] for setup in setups)
    losses = divergence(_only(before, "loss"), _only(after, "loss"), limit)
    norms = divergence(_only(before, "grad_norm_pre_clip"), _only(after, "grad_norm_pre_clip"), limit * _GRADIENT_SLACK)
    shown = {
        "one": _named(setups[0], before),
        "other": _named(setups[1], after),
        "updates": losses.updates,
        "losses": f"{losses.largest:.1e}",
        "norms": f"{norms.largest:.1e}",
    }
    found = say(
        "{one} and {other}: over {updates} updates the losses differ by at most {losses}, the gradient norms by "
        "{norms}",
        **shown,
    )
    good = losses.updates == setups[0].updates and {losses.verdict, norms.verdict} <= {"equal", "alike"}
    fix = None if good else say("check the manual edits in the files: the plan's change alone does not cause this")
    numbers = {
        "losses": losses.to_dict(),
        "gradient_norms": norms.to_dict(),
        "ranks": [before.run.split.world, after.run.split.world],
    }
    return judged("proof", say("proof"), found, fix, numbers)


def _why(result: RunResult) -> Any:
    return result.cause or say("no cause found in its log")


def _only(result: RunResult, name: str) -> list[dict[str, Any]]:
    return [{"update": record["update"], name: record[name]} for record in result.records if name in record]


def _named(setup: Setup, result: RunResult) -> Any:
    split = result.run.split
    return say(
        "{strategy}, {micro} × {accumulation} × ranks {world}",
        strategy=setup.plan.strategy.label,
        micro=split.micro,
        accumulation=split.accumulation,
        world=split.world,
    )
