"""Checks of the runs of a rehearsal: each by itself, and compared with one another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from trainwiz.message import Message, say
from trainwiz.rehearsal.check import Check, judged
from trainwiz.rehearsal.result import RunResult
from trainwiz.rehearsal.setup import CHECKPOINT_EVERY, Setup, TrialRun

TOLERANCE = {"no": 1e-5, "bf16": 2e-2}
"""Relative difference between losses of one real batch that was cut in two ways, by the precision of the runs."""
_SEEDS = say(
    "draw random numbers with torch, in loss_sum or in the model, because the loop seeds torch by seed, update "
    "and rank; keep the model's own state in buffers (register_buffer), or checkpoints will not contain it"
)


def checks(setup: Setup, results: Mapping[str, RunResult]) -> Iterator[Check]:
    """The checks of the results, which have their runs' names. A failed or missing run has no other checks."""
    for result in results.values():
        if not result.succeeded:
            yield _failed(result)
    good = {name: result for name, result in results.items() if result.succeeded}
    whole = good.get("whole")
    if whole is None:
        return
    yield _trained(whole, setup)
    if whole.notes and whole.notes[0].get("indices"):
        yield _counted_once(whole, setup)
    if whole.notes and whole.notes[0].get("sent"):
        yield _sent(whole, setup)
    yield _saved(whole, setup)
    if "resumed" in good:
        yield _exactly(whole, good["resumed"], setup)
    one, other = good.get("steady") if "steady" in results else whole, good.get("split")
    if one and other:
        yield _alike(one, other, setup)
        if one.evaluations:
            yield _evaluated(one.evaluations, other.evaluations, setup)


def _failed(result: RunResult) -> Check:
    cause = result.cause or say("no cause found in its log")
    return judged(
        f"run_{result.run.name}",
        result.run.title,
        say("exit code {code}: {cause}", code=result.exit_code, cause=cause),
        result.remedy or say("read its log: {log}", log=result.log),
        {"exit_code": result.exit_code, "log": result.log},
    )


def _trained(result: RunResult, setup: Setup) -> Check:
    losses = list(result.losses.values())
    finite = len(losses) == setup.updates and all(loss is not None and math.isfinite(loss) for loss in losses)
    found = say(
        "ranks: {ranks}, updates: {updates} of {size} samples, loss {first} to {last}",
        ranks=result.run.split.world,
        updates=len(losses),
        size=setup.real_batch,
        first=f"{losses[0]:.4g}" if finite else "-",
        last=f"{losses[-1]:.4g}" if finite else "-",
    )
    fix = None if finite else say("check the losses: {losses}", losses=", ".join(map(str, losses)))
    return judged("training", say("training"), found, fix, {"losses": losses, "seconds": round(result.seconds, 1)})


def _counted_once(result: RunResult, setup: Setup) -> Check:
    per_epoch = setup.updates_per_epoch * result.run.split.accumulation
    wrong: Counter[int] = Counter()
    epochs = setup.updates // setup.updates_per_epoch
    longest = max(max(b) for rank in result.notes for b in rank["indices"][0])
    for epoch in range(epochs):
        times: Counter[int] = Counter()
        for rank in result.notes:
            for batch in rank["indices"][0][epoch * per_epoch : (epoch + 1) * per_epoch]:
                times.update(index for index in batch if index >= 0)
        wrong.update(index for index in range(longest + 1) if times[index] != 1)
    values = {"samples": longest + 1, "epochs": epochs, "wrong": len(wrong)}
    found = say("samples: {samples}, epochs: {epochs}, each sample used once per epoch", **values)
    fix: Message | None = None
    if wrong:
        found = say("samples not used exactly once per epoch: {wrong}", **values)
        fix = say("check RealBatches in batches.py")
    return judged("once_per_epoch", say("each sample once per epoch"), found, fix, values)


def _sent(result: RunResult, setup: Setup) -> Check:
    rank = result.notes[0]
    whole, sent = rank["gradient_bytes"], Counter[int]()
    for micro_batches, size in rank["sent"]:
        if micro_batches:  # before the first one, buckets.py has DDP lay out its buckets
            sent[-(-micro_batches // result.run.split.accumulation)] += size
    values = {"sent": max(sent.values()), "whole": whole, "n": result.run.split.accumulation}
    found = say("each update sends one gradient: {sent} of {whole} bytes; micro-batches: {n}", **values)
    fix: Message | None = None
    if len(sent) != setup.updates or set(sent.values()) != {whole}:
        found = say("an update sends {sent} bytes, but one gradient has {whole} bytes; micro-batches: {n}", **values)
        fix = say("communicate only after the last micro-batch: use accelerator.accumulate")
    numbers = {"gradient_bytes": whole, "sent_bytes": dict(sent)}
    return judged("communication", say("communication"), found, fix, numbers)


def _saved(result: RunResult, setup: Setup) -> Check:
    newest = f"checkpoint-{setup.updates:08d}"
    fix: Message | None = say("check save_model in task.py, and checkpoints.py")
    if result.damaged:
        found = say("do not match their manifests: {names}", names=", ".join(result.damaged))
    elif newest not in result.checkpoints:
        found = say("{newest} is missing; found: {names}", newest=newest, names=", ".join(result.checkpoints) or "-")
    elif setup.saves_weights and not result.weights:
        found = say("the final weights were not written to model/")
    else:
        found, fix = say("complete and match their manifests: {names}", names=", ".join(result.checkpoints)), None
    numbers = {"saved": list(result.checkpoints), "torn": list(result.damaged)}
    return judged("checkpoints", say("checkpoints"), found, fix, numbers)


def _exactly(whole: RunResult, resumed: RunResult, setup: Setup) -> Check:
    start, newest = resumed.start(setup.updates), _before(setup)
    changed = [u for u, loss in resumed.losses.items() if whole.losses.get(u) != loss]
    same = not changed and whole.weights == resumed.weights and start == newest
    values = {"at": setup.updates, "start": start, "digest": whole.weights[:12]}
    if same and whole.weights:
        found = say("killed at update {at}, resumed from {start}: the final weights are identical, {digest}", **values)
    elif same:
        found = say("killed at update {at}, resumed from {start}: all losses are identical", **values)
    elif start != newest:
        found = say("killed at update {at}, resumed from {start} instead of {newest}", newest=newest, **values)
    elif changed:
        found = say(
            "loss at update {at}: {mine} after resuming, {theirs} without interruption",
            at=changed[0],
            mine=resumed.losses[changed[0]],
            theirs=whole.losses.get(changed[0]),
        )
    else:
        found = say("after resuming, the losses are identical but the final weights differ")
    numbers = {"whole": whole.weights, "resumed": resumed.weights, "resumed_from": start, "changed": changed}
    return judged("resume", say("resume after kill -9"), found, None if same else _SEEDS, numbers)


def _before(setup: Setup) -> int:
    """The checkpoint that a run left which was killed in its last update."""
    return (setup.updates - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY


def _alike(one: RunResult, other: RunResult, setup: Setup) -> Check:
    apart = {u: _apart(loss, other.losses.get(u)) for u, loss in one.losses.items()}
    worst = max(apart, key=lambda update: apart[update])
    limit = TOLERANCE[setup.plan.precision.mixed_precision]
    values = {"one": _cut(one.run), "other": _cut(other.run), "apart": f"{apart[worst]:.1e}"}
    found = say("{one} and {other}: losses differ by at most {apart}", **values)
    fix: Message | None = None
    if setup.random_loss:
        found = say(
            "{one} and {other}, same random numbers for each sample: losses differ by at most {apart}", **values
        )
    if apart[worst] > limit:
        over = {"at": worst, "limit": f"{limit:.0e}"}
        found = say("{one} and {other}: losses differ by {apart} at update {at}, more than {limit}", **values, **over)
        fix = say("the loss must be a sum of independent per-sample losses: see the lines about task.py")
    return judged("split", say("a different batch split"), found, fix, {"relative": apart, "limit": limit})


def _evaluated(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]], setup: Setup) -> Check:
    pairs = [(a.get(k), b.get(k)) for a, b in zip(one, other, strict=False) for k in a]
    worst = max((_apart(a, b) for a, b in pairs), default=math.inf)
    good = worst <= 10 * TOLERANCE[setup.plan.precision.mixed_precision] and len(one) == len(other)
    found = say("{names}: differ by at most {apart}", names=", ".join(one[-1]), apart=f"{worst:.1e}")
    fix = None if good else say("make evaluation_sums return sums and counts over the counted samples, never means")
    return judged("evaluation", say("evaluation"), found, fix, {"relative": worst, "metrics": dict(one[-1])})


def _cut(run: TrialRun) -> Message:
    return say("{micro} × {accumulation} × ranks {world}", **asdict(run.split))


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-12)
