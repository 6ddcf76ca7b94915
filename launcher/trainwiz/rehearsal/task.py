"""The checks of task.py: samples, micro-batches and loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwiz import strategies
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.rehearsal.check import Check, judged

EXACT = 1e-4
"""Relative; float32 sums in another order differ by 1e-6, a mean instead of a sum by more than a tenth."""
_LISTED = 3


# docs/decisions/wizard.md: A rehearsal collects two kinds of evidence
def checks(found: Mapping[str, Any], plan: Plan) -> Iterator[Check]:
    """The checks of what the child process found before it stopped."""
    if "error" in found:
        fix = (
            say("run it alone in the project folder: python -c 'import train'") if found["stage"] == "import" else None
        )
        words = _stopped(found["stage"], found["error"])
        yield Check(name="task", title=say("task.py"), verdict="failed", found=words, fix=fix, numbers=found["error"])
    if "unfixed_collate" in found:
        yield _samples(found)
    if "unfixed_weights" in found:
        yield _randomness(found)
    if "loss" in found:
        loss = found["loss"]
        yield _summed(loss)
        yield _padding(loss)
        yield _gradients(loss, plan)
        yield _waits(loss)


def _stopped(stage: str, error: Mapping[str, str]) -> Message:
    if error["where"]:
        return say("{stage} failed at {where}: {what}", stage=stage, **error)
    return say("{stage} failed: {what}", stage=stage, what=error["what"])


def _samples(found: Mapping[str, Any]) -> Check:
    fix = None
    if found["unfixed_samples"]:
        words = say(
            "sample {index} is different each time it is read: its random numbers cannot be reproduced",
            index=found["unfixed_samples"][0],
        )
        fix = say("in __getitem__, use torch.Generator().manual_seed(index), or augment in augment(sample, generator)")
    elif found["unfixed_collate"]:
        words = say(
            "collate gives different results for the same samples each time: the result depends on how the batch "
            "is split"
        )
        fix = say("draw random numbers per sample, in augment(sample, generator) of the data, not per micro-batch")
    else:
        words = say("samples: {length}; those read twice were identical", length=found["length"])
    numbers = {"length": found["length"], "unfixed": found["unfixed_samples"]}
    return judged("samples", say("samples"), words, fix, numbers)


def _randomness(found: Mapping[str, Any]) -> Check:
    loss, title = found.get("loss", {}), say("randomness")
    if loss.get("random") and not found["unfixed_weights"] and not loss["stray_dropout"]:
        return Check(
            name="randomness",
            title=title,
            verdict="warning",
            found=say(
                "the loss uses random numbers ({draws}): reproducible by seed, update and rank, but different in "
                "another split of the batch. Below, each sample gets the same numbers",
                draws=_places(loss["draws"]),
            ),
            fix=say("to get the same numbers in any split, draw them in augment(sample, generator) of the data"),
            numbers={"draws": loss["draws"]},
        )
    fix: Message | None = say(
        "use torch's generator, which the loop seeds by seed, update and rank, or seed your own the same way"
    )
    if found["unfixed_weights"]:
        words = say("build_model creates different weights from the same torch seed: a second run would differ")
    elif loss.get("unkeyed"):
        words = say(
            "loss_sum gives a different loss with the same torch seed: it uses random numbers from random or numpy"
        )
    elif loss.get("stray_dropout"):
        words = say(
            "dropout is also active in evaluation, which makes it random: {calls}", calls=_places(loss["stray_dropout"])
        )
        fix = say("pass training=self.training, or use torch.nn.Dropout")
    elif found.get("keyed_samples"):
        words = say("random numbers are drawn per sample, from its own generator: the same in any split of the batch")
        fix = None
    else:
        words, fix = say("weights and loss are the same with the same torch seed"), None
    return judged("randomness", title, words, fix, {"draws": loss.get("stray_dropout", [])})


def _places(calls: Sequence[Sequence[str]]) -> str:
    seen = [f"{name} at {where}" if where else name for name, where in calls]
    return ", ".join(seen[:_LISTED])


def _summed(loss: Mapping[str, Any]) -> Check:
    whole, parts, counts = loss["whole"], loss["parts"], loss["counts"]
    fix, total = None, sum(parts)
    values = {"whole": f"{whole:.6g}", "total": f"{total:.6g}", "n": len(parts)}
    weighted = sum(part * count for part, count in zip(parts, counts, strict=True)) / max(1, sum(counts))
    if not loss["finite"]:
        words = say("the first loss is {whole}, before any update", **values)
        fix = say("check the model's input: an empty sample, a division by zero, an overflow")
    elif loss["count"] != sum(counts):
        words = say(
            "collate counts {whole} for the samples together, but {total} one by one",
            whole=loss["count"],
            total=sum(counts),
        )
        fix = say("count what the loss sums over, regardless of which samples share a micro-batch")
    elif _near(whole, total):
        words = say("{n} samples give {whole} together, {total} one by one", **values)
    elif len(parts) > 1 and (_near(whole, weighted) or _near(whole, total / len(parts))):
        words = say("loss_sum averages: {n} samples give {whole} together, {total} one by one", **values)
        fix = say('sum in loss_sum (reduction="sum"): the loop divides by the count of the whole real batch')
    elif loss["batch_norms"]:
        names = ", ".join(loss["batch_norms"])
        words = say(
            "{names} depends on the whole micro-batch: {n} samples give {whole} together, {total} one by one",
            names=names,
            **values,
        )
        fix = say("use GroupNorm or LayerNorm: training must not depend on how the batch is split")
    else:
        words = say(
            "a sample's loss depends on its micro-batch: {n} samples give {whole} together, {total} one by one",
            **values,
        )
        fix = say("make loss_sum treat each sample independently, and mask padding")
    numbers = {"together": whole, "one_by_one": parts, "counts": counts}
    return judged("summed_loss", say("summed loss"), words, fix, numbers)


def _padding(loss: Mapping[str, Any]) -> Check:
    (half, counted), (meant, right) = loss["half"], loss["half_meant"]
    total, count = float(loss["nothing"][0]), int(float(loss["nothing"][1]))
    fix: Message | None = say(
        "where `counted` is false, count zero and exclude the sample's loss: the sample only pads the end of an epoch"
    )
    if counted != right:
        words = say("collate returns a count of {counted}, expected {right}", counted=counted, right=right)
    elif not _near(half, meant):
        words = say(
            "padding samples affect the training: the loss is {half} with them, {meant} without",
            half=f"{half:.6g}",
            meant=f"{meant:.6g}",
        )
    elif (total, count) != (0.0, 0):
        words = say(
            "with no counted samples, the loss is {loss} and the count is {count}; both must be 0",
            loss=total,
            count=count,
        )
    else:
        words, fix = say("samples that pad an epoch's last batch count zero and add nothing to the loss"), None
    return judged("padding", say("padding"), words, fix)


def _gradients(loss: Mapping[str, Any], plan: Plan) -> Check:
    without, title = loss["without_gradient"], say("gradients")
    if not without:
        return judged("gradients", title, say("every parameter has a gradient after one micro-batch"))
    return Check(
        name="gradients",
        title=title,
        verdict="failed" if strategies.of(plan).needs_every_gradient else "warning",
        found=say("parameters without a gradient: {n} ({first})", n=len(without), first=", ".join(without[:_LISTED])),
        fix=say("use them in the loss, or set requires_grad to False; otherwise DDP stops at the second update"),
        numbers={"without": without},
    )


def _waits(loss: Mapping[str, Any]) -> Check:
    seen = sorted({f"{name} at {where}" if where else name for name, where in loss["waits"]})
    title = say("no waiting for the device")
    if not seen:
        return judged("no_waiting", title, say("loss_sum does not wait for the device"))
    return Check(
        name="no_waiting",
        title=title,
        verdict="warning",
        found=say("loss_sum waits for the device: {seen}", seen=", ".join(seen[:_LISTED])),
        fix=say("keep tensors on the device: in loss_sum, avoid item(), if on a tensor, and indexing by a mask"),
        numbers={"waits": loss["waits"]},
    )


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= EXACT * max(abs(one), abs(other), 1e-12)
