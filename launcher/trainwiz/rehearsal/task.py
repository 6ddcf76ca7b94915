"""The checks of task.py: samples, micro-batches and loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwiz import strategies
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.rehearsal.check import Check

EXACT = 1e-4
"""Relative; float32 sums in another order differ by 1e-6, a mean instead of a sum by more than a tenth."""
_SAMPLES, _SUM, _PADDING = say("samples"), say("summed loss"), say("padding")
_RANDOMNESS, _GRADIENTS, _WAITS = say("randomness"), say("gradients"), say("no waiting")
_LISTED = 3


def checks(found: Mapping[str, Any], plan: Plan) -> Iterator[Check]:
    """The checks of what the child process found before it stopped."""
    if "error" in found:
        yield Check(
            name="task",
            title=say("task.py"),
            verdict="failed",
            found=_stopped(found["stage"], found["error"]),
            fix=say("run it by itself in the project's folder: python -c 'import train'")
            if found["stage"] == "import"
            else None,
            numbers=found["error"],
        )
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
        return say("{stage} stopped at {where}: {what}", stage=stage, **error)
    return say("{stage} stopped: {what}", stage=stage, what=error["what"])


def _samples(found: Mapping[str, Any]) -> Check:
    fix = None
    if found["unfixed_samples"]:
        words = say(
            "sample {index} is another one each time it is read: its random numbers are nobody's to repeat",
            index=found["unfixed_samples"][0],
        )
        fix = say(
            "in __getitem__, draw from torch.Generator().manual_seed(index), or augment in augment(sample, generator)"
        )
    elif found["unfixed_collate"]:
        words = say("collate makes something else of the same samples each time: it depends on how the batch is cut")
        fix = say("draw random numbers per sample, where the index is known, and not per micro-batch")
    else:
        words = say("of {length} samples, those that were read twice were the same", length=found["length"])
    return Check(
        name="samples",
        title=_SAMPLES,
        verdict="failed" if fix else "passed",
        found=words,
        fix=fix,
        numbers={"length": found["length"], "unfixed": found["unfixed_samples"]},
    )


def _randomness(found: Mapping[str, Any]) -> Check:
    fix = say("draw with torch, whose generator the loop seeds by seed, update and rank; or seed your own so")
    if found["unfixed_weights"]:
        words = say("build_model makes other weights from the same seed of torch: a second run would not be the same")
    elif found.get("loss", {}).get("unkeyed"):
        words = say("loss_sum gives another loss under the same seed of torch: it draws from random or numpy")
    else:
        return Check(
            name="randomness",
            title=_RANDOMNESS,
            verdict="passed",
            found=say("weights and loss repeat under the same seed of torch"),
        )
    return Check(name="randomness", title=_RANDOMNESS, verdict="failed", found=words, fix=fix)


def _summed(loss: Mapping[str, Any]) -> Check:
    whole, parts, counts = loss["whole"], loss["parts"], loss["counts"]
    fix, total = None, sum(parts)
    values = {"whole": f"{whole:.6g}", "total": f"{total:.6g}", "n": len(parts)}
    weighted = sum(part * count for part, count in zip(parts, counts, strict=True)) / max(1, sum(counts))
    if not loss["finite"]:
        words = say("the first loss is {whole}, before anything was learned", **values)
        fix = say("look at what the model is given: an empty sample, a division by zero, an overflow")
    elif loss["count"] != sum(counts):
        words = say("collate counts {whole} together and {total} one by one", whole=loss["count"], total=sum(counts))
        fix = say("count what the loss sums over, whichever samples meet in a micro-batch")
    elif _near(whole, total):
        words = say("{n} samples together {whole}, one by one {total}", **values)
    elif len(parts) > 1 and (_near(whole, weighted) or _near(whole, total / len(parts))):
        words = say("loss_sum averages: {n} samples together {whole}, one by one {total}", **values)
        fix = say('sum in loss_sum (reduction="sum"): the loop divides by the count of the whole real batch')
    elif loss["batch_norms"]:
        names = ", ".join(loss["batch_norms"])
        words = say(
            "{names} looks at the whole micro-batch: {n} samples together {whole}, one by one {total}",
            names=names,
            **values,
        )
        fix = say("use GroupNorm or LayerNorm: what is learned must not depend on how the batch is cut")
    else:
        words = say(
            "a sample's loss depends on its micro-batch: {n} samples together {whole}, one by one {total}", **values
        )
        fix = say("let loss_sum look at each sample by itself, and mask what only fills up")
    return Check(
        name="summed_loss",
        title=_SUM,
        verdict="failed" if fix else "passed",
        found=words,
        fix=fix,
        numbers={"together": whole, "one_by_one": parts, "counts": counts},
    )


def _padding(loss: Mapping[str, Any]) -> Check:
    (half, counted), (meant, right) = loss["half"], loss["half_meant"]
    nothing = float(loss["nothing"][0]), int(float(loss["nothing"][1]))
    fix = say("where `counted` is false, count zero and leave the sample's loss out: it only fills up an epoch's end")
    if counted != right:
        words = say("collate counts {counted} where {right} count", counted=counted, right=right)
    elif not _near(half, meant):
        words = say(
            "samples that only fill up are learned from: the loss is {half} with them, {meant} without",
            half=f"{half:.6g}",
            meant=f"{meant:.6g}",
        )
    elif nothing != (0.0, 0):
        words = say(
            "where nothing counts the loss is {loss} and the count {count}, not 0", loss=nothing[0], count=nothing[1]
        )
    else:
        return Check(
            name="padding",
            title=_PADDING,
            verdict="passed",
            found=say("what only fills up an epoch's last batch counts zero and adds nothing"),
        )
    return Check(name="padding", title=_PADDING, verdict="failed", found=words, fix=fix)


def _gradients(loss: Mapping[str, Any], plan: Plan) -> Check:
    without = loss["without_gradient"]
    if not without:
        return Check(
            name="gradients",
            title=_GRADIENTS,
            verdict="passed",
            found=say("every parameter has one after a micro-batch"),
        )
    return Check(
        name="gradients",
        title=_GRADIENTS,
        verdict="failed" if strategies.of(plan).needs_every_gradient else "warning",
        found=say("parameters that get none: {n} ({first})", n=len(without), first=", ".join(without[:_LISTED])),
        fix=say("use them in the loss or set requires_grad to False; DDP stops at the second update otherwise"),
        numbers={"without": without},
    )


def _waits(loss: Mapping[str, Any]) -> Check:
    seen = sorted({f"{name} at {where}" if where else name for name, where in loss["waits"]})
    if not seen:
        return Check(
            name="no_waiting", title=_WAITS, verdict="passed", found=say("loss_sum asks the device for nothing")
        )
    return Check(
        name="no_waiting",
        title=_WAITS,
        verdict="warning",
        found=say("loss_sum waits for the device: {seen}", seen=", ".join(seen[:_LISTED])),
        fix=say("leave tensors on the device: no item, no if on a tensor, no index by a mask in loss_sum"),
        numbers={"waits": loss["waits"]},
    )


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= EXACT * max(abs(one), abs(other), 1e-12)
