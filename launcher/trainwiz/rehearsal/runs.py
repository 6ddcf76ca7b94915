"""What the rehearsal's runs say, held against each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwiz.message import Message, say
from trainwiz.rehearsal.check import Check
from trainwiz.rehearsal.scene import CHECKPOINT_EVERY, Act, Scene

KILLED = 128 + 9
TOLERANCE = {"no": 1e-5, "bf16": 2e-2}
"""Relative, between losses of one real batch that was cut in two ways, by the precision it was computed in."""
_SEEDS = say(
    "draw random numbers where seed, update and rank decide them: with torch, in loss_sum or the model; what the model "
    "remembers belongs into a buffer (register_buffer), or no checkpoint holds it"
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a run left. `ranks` are the notes of its ranks, `weights` the hash of its final weights.

    `saved` names its checkpoints, `torn` those whose files are not as their manifest says.
    """

    act: Act
    code: int
    seconds: float
    records: Sequence[Mapping[str, Any]] = ()
    weights: str = ""
    ranks: Sequence[Mapping[str, Any]] = ()
    saved: Sequence[str] = ()
    torn: Sequence[str] = ()
    cause: Message | None = None
    remedy: Message | None = None
    log: str = ""

    @property
    def losses(self) -> dict[int, float]:
        """By update."""
        return {r["update"]: r["loss"] for r in self.records if "loss" in r}

    @property
    def evaluated(self) -> list[dict[str, float]]:
        """The metrics of each evaluation."""
        return [{n: v for n, v in r.items() if n != "update"} for r in self.records if "loss" not in r]

    def started_after(self, scene: Scene) -> int:
        """The update that it went on from."""
        taken = self.ranks[0]["micro_batches"] if self.ranks else 0
        return scene.updates - int(taken) // self.act.split.accumulation

    @property
    def went_well(self) -> bool:
        """Whether it ended as it was meant to."""
        return self.code == (KILLED if self.act.killed_at else 0)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """All runs by name, in a scene."""

    scene: Scene
    seen: Mapping[str, Seen] = field(default_factory=dict)

    def checks(self) -> Iterator[Check]:
        """The checks of the runs that there are; those of runs that never came are skipped."""
        for run in self.seen.values():
            if not run.went_well:
                yield _ended_badly(run)
        whole = self.seen.get("whole")
        if whole is None or not whole.went_well:
            return
        yield _trained(whole, self.scene)
        if whole.ranks and whole.ranks[0].get("indices"):
            yield _counted_once(whole, self.scene)
        if whole.ranks and whole.ranks[0].get("sent"):
            yield _sent(whole, self.scene)
        yield _saved(whole, self.scene)
        yield from self._resumed(whole)
        yield from self._split(whole)

    def _resumed(self, whole: Seen) -> Iterator[Check]:
        resumed = self.seen.get("resumed")
        if resumed and resumed.went_well:
            yield _exactly(whole, resumed, self.scene)

    def _split(self, whole: Seen) -> Iterator[Check]:
        other = self.seen.get("split")
        if other is None or not other.went_well:
            return
        steady = self.seen.get("steady", whole)
        if steady.went_well:
            yield _alike(steady, other, self.scene)
            if steady.evaluated:
                yield _evaluated(steady.evaluated, other.evaluated, self.scene)


def _ended_badly(run: Seen) -> Check:
    return Check(
        name=f"run_{run.act.name}",
        title=run.act.title,
        verdict="failed",
        found=say("exit code {code}: {cause}", code=run.code, cause=run.cause or say("no reason was found in its log")),
        fix=run.remedy or say("read its log: {log}", log=run.log),
        numbers={"exit_code": run.code, "log": run.log},
    )


def _trained(run: Seen, scene: Scene) -> Check:
    losses = list(run.losses.values())
    finite = len(losses) == scene.updates and all(loss is not None and math.isfinite(loss) for loss in losses)
    values = {
        "ranks": run.act.split.world,
        "updates": len(losses),
        "size": scene.real_batch,
        "first": f"{losses[0]:.4g}" if finite else "-",
        "last": f"{losses[-1]:.4g}" if finite else "-",
    }
    return Check(
        name="training",
        title=say("training"),
        verdict="passed" if finite else "failed",
        found=say("ranks: {ranks}, updates: {updates} of {size} samples, loss {first} to {last}", **values),
        fix=None if finite else say("look at the losses: {losses}", losses=", ".join(map(str, losses))),
        numbers={"losses": losses, "seconds": round(run.seconds, 1)},
    )


def _counted_once(run: Seen, scene: Scene) -> Check:
    per_epoch = scene.updates_per_epoch * run.act.split.accumulation
    wrong: Counter[int] = Counter()
    epochs = scene.updates // scene.updates_per_epoch
    longest = max(max(b) for rank in run.ranks for b in rank["indices"][0])
    for epoch in range(epochs):
        times: Counter[int] = Counter()
        for rank in run.ranks:
            for batch in rank["indices"][0][epoch * per_epoch : (epoch + 1) * per_epoch]:
                times.update(index for index in batch if index >= 0)
        wrong.update(index for index in range(longest + 1) if times[index] != 1)
    values = {"samples": longest + 1, "epochs": epochs, "wrong": len(wrong)}
    return Check(
        name="once_per_epoch",
        title=say("every sample once"),
        verdict="failed" if wrong else "passed",
        found=say("samples that an epoch did not take exactly once: {wrong}", **values)
        if wrong
        else say("samples: {samples}, epochs: {epochs}, each sample once in each", **values),
        fix=say("look at RealBatches in batches.py") if wrong else None,
        numbers=values,
    )


def _sent(run: Seen, scene: Scene) -> Check:
    rank = run.ranks[0]
    whole, sent = rank["gradient_bytes"], Counter[int]()
    for micro_batches, size in rank["sent"]:
        sent[-(-micro_batches // run.act.split.accumulation)] += size
    most = max(sent.values())
    good = len(sent) == scene.updates and set(sent.values()) == {whole}
    values = {"sent": most, "whole": whole, "n": run.act.split.accumulation}
    return Check(
        name="communication",
        title=say("communication"),
        verdict="passed" if good else "failed",
        found=say("each update sends one gradient: {sent} bytes of {whole}, micro-batches: {n}", **values)
        if good
        else say("an update sends {sent} bytes where one gradient has {whole}, micro-batches: {n}", **values),
        fix=None if good else say("let ranks communicate after the last micro-batch only: accelerator.accumulate"),
        numbers={"gradient_bytes": whole, "sent_bytes": dict(sent)},
    )


def _saved(run: Seen, scene: Scene) -> Check:
    newest = f"checkpoint-{scene.updates:08d}"
    good = not run.torn and newest in run.saved and bool(run.weights or not scene.saves_weights)
    found = say("complete and as written: {names}", names=", ".join(run.saved))
    if run.torn:
        found = say("not as their manifests say: {names}", names=", ".join(run.torn))
    elif newest not in run.saved:
        found = say("{newest} is missing among {names}", newest=newest, names=", ".join(run.saved) or "-")
    elif not good:
        found = say("no final weights were written to model/")
    return Check(
        name="checkpoints",
        title=say("checkpoints"),
        verdict="passed" if good else "failed",
        found=found,
        fix=None if good else say("look at save_model in task.py and at checkpoints.py"),
        numbers={"saved": list(run.saved), "torn": list(run.torn)},
    )


def _exactly(whole: Seen, resumed: Seen, scene: Scene) -> Check:
    start = resumed.started_after(scene)
    changed = [u for u, loss in resumed.losses.items() if whole.losses.get(u) != loss]
    same = not changed and whole.weights == resumed.weights and start == _before(scene)
    values = {"at": scene.updates, "start": start, "digest": whole.weights[:12]}
    if same and whole.weights:
        found = say("killed at update {at}, resumed from {start}: the final weights are the same, {digest}", **values)
    elif same:
        found = say("killed at update {at}, resumed from {start}: every loss is the same", **values)
    elif start != _before(scene):
        found = say(
            "killed at update {at}, it resumed from {start} and not from {newest}", newest=_before(scene), **values
        )
    elif changed:
        first = changed[0]
        found = say(
            "the loss of update {at} is {mine} after resuming, {theirs} without",
            at=first,
            mine=resumed.losses[first],
            theirs=whole.losses.get(first),
        )
    else:
        found = say("the losses are the same after resuming, the final weights are not")
    return Check(
        name="resume",
        title=say("resume after kill -9"),
        verdict="passed" if same else "failed",
        found=found,
        fix=None if same else _SEEDS,
        numbers={"whole": whole.weights, "resumed": resumed.weights, "resumed_from": start, "changed": changed},
    )


def _before(scene: Scene) -> int:
    """The checkpoint that a run left which was killed in its last update."""
    return (scene.updates - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY


def _alike(one: Seen, other: Seen, scene: Scene) -> Check:
    apart = {u: _apart(loss, other.losses.get(u)) for u, loss in one.losses.items()}
    worst = max(apart, key=lambda update: apart[update])
    limit = TOLERANCE[scene.plan.precision.mixed_precision]
    good = apart[worst] <= limit
    values = {
        "one": _cut(one.act),
        "other": _cut(other.act),
        "apart": f"{apart[worst]:.1e}",
        "at": worst,
        "limit": f"{limit:.0e}",
    }
    return Check(
        name="split",
        title=say("cut another way"),
        verdict="passed" if good else "failed",
        found=say("{one} and {other}: losses apart by {apart} at most", **values)
        if good
        else say("{one} and {other}: losses apart by {apart} at update {at}, more than {limit}", **values),
        fix=None if good else say("a loss must be a sum over samples, each by itself: see the lines on task.py"),
        numbers={"relative": apart, "limit": limit},
    )


def _evaluated(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]], scene: Scene) -> Check:
    pairs = [(a.get(k), b.get(k)) for a, b in zip(one, other, strict=False) for k in a]
    worst = max((_apart(a, b) for a, b in pairs), default=math.inf)
    good = worst <= 10 * TOLERANCE[scene.plan.precision.mixed_precision] and len(one) == len(other)
    return Check(
        name="evaluation",
        title=say("evaluation"),
        verdict="passed" if good else "failed",
        found=say("{names}: apart by {apart} at most", names=", ".join(one[-1]), apart=f"{worst:.1e}"),
        fix=None if good else say("let evaluation_sums return sums and counts over what counts, never means"),
        numbers={"relative": worst, "metrics": dict(one[-1])},
    )


def _cut(act: Act) -> Message:
    split = act.split
    return say(
        "{per_device} × {accumulation} × ranks {world}",
        per_device=split.per_device,
        accumulation=split.accumulation,
        world=split.world,
    )


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-12)
