"""How long the training is: epochs if the data is small, otherwise updates; and the learning rate schedule."""

from __future__ import annotations

import math

from trainwiz.decide.amount import is_own, samples_of
from trainwiz.decide.decision import Decision
from trainwiz.decide.size import SMALL_MODEL, size_of
from trainwiz.message import Message, say

_EPOCHS, _EPOCHS_FROM_SCRATCH, _EPOCHS_OF_PREFERENCES = 3, 10, 1
"""Common in fine-tuning: https://github.com/tatsu-lab/stanford_alpaca, https://arxiv.org/abs/2305.18290 (DPO)."""
_LEAST_UPDATES = 50
"""Fewer hardly change a model, so very small data is seen more often."""
_MOST_EPOCHS, _MOST_EPOCHS_OF_PREFERENCES = 10, 3


def decide_length(d: Decision) -> None:
    """Length, in updates or in passes over the data."""
    epochs = None if d.given("schedule.n_steps") else _usual_epochs(d)
    by_epochs = not d.given("schedule.n_steps") and (d.given("schedule.n_epochs") or epochs is not None)
    why = say("depends on whether n_steps or n_epochs is set")
    d.settle("schedule.train_strategy", "epochs" if by_epochs else "steps", why)
    if d.values["schedule.train_strategy"] == "epochs":
        d.settle("schedule.n_epochs", *(epochs or (1, say("each sample once"))))
        d.settle("schedule.n_steps", None, say("n_epochs sets the length"))
    else:
        d.settle("schedule.n_epochs", None, say("n_steps sets the length"))
        d.settle("schedule.n_steps", *_usual_steps(d))


def decide_rates(d: Decision) -> None:
    """Warm-up and shape; counted in updates."""
    updates = updates_of(d)
    ratio = d.settle_default("schedule.warmup_ratio", say("n_warmup_steps sets the number of updates"))
    if ratio:
        d.settle("schedule.n_warmup_steps", 0, say("warmup_ratio sets the length"))
    elif updates is None:
        why = say("a small number; the number of updates is only known once the data is read")
        d.settle("schedule.n_warmup_steps", 10, why)
    elif updates // 10 == 1:
        none = say("a tenth of {updates} updates is 1, which would be no warm-up", updates=updates)
        d.settle("schedule.n_warmup_steps", 0, none)
    else:
        d.settle("schedule.n_warmup_steps", updates // 10, say("a tenth of {updates} updates", updates=updates))
    d.settle_default("schedule.lr_scheduler_type", say("common for pretraining"))
    d.settle_default("schedule.min_lr_ratio", say("the rate reaches 0 with the last update"))
    d.settle_default("schedule.decay_ratio", say("enough to reach the loss of a cosine schedule"))
    d.settle_default("schedule.decay_type", say("better than linear decay in published comparisons"))
    d.settle_default("schedule.polynomial_power", say("the default of transformers"))


def updates_of(d: Decision) -> int | None:
    """How many updates the training has; None if that depends on data of unknown size."""
    if d.values["schedule.train_strategy"] == "steps":
        steps = d.values["schedule.n_steps"]
        return int(steps) if steps else None
    epochs, each = d.values["schedule.n_epochs"], _updates_per_epoch(d)
    return int(epochs) * each if epochs and each else None


def _updates_per_epoch(d: Decision) -> int | None:
    samples = samples_of(d)
    return None if samples is None else math.ceil(samples / int(d.values["batch.real_batch_size"]))


def _usual_epochs(d: Decision) -> tuple[int, Message] | None:
    """Passes over own data; None where it is too large for one of them, or of unknown amount."""
    each, (most, _) = _updates_per_epoch(d), _usual_steps(d)
    if not is_own(d) or not each or each > most:
        return None
    usual, limit = _EPOCHS, _MOST_EPOCHS
    if d.task.compares or d.task.pairs:
        usual, limit = _EPOCHS_OF_PREFERENCES, _MOST_EPOCHS_OF_PREFERENCES
    elif d.values["model.from_scratch"]:
        usual = _EPOCHS_FROM_SCRATCH
    enough = min(limit, math.ceil(_LEAST_UPDATES / each))
    epochs = max(1, min(max(usual, enough), most // each))
    why = say(
        "{samples} samples are {each} updates, so {epochs} epochs are {updates}",
        samples=samples_of(d),
        each=each,
        epochs=epochs,
        updates=epochs * each,
    )
    return epochs, why


def _usual_steps(d: Decision) -> tuple[int, Message]:
    """Updates for a first test."""
    if d.task.labeled and size_of(d) < SMALL_MODEL:
        return 200, say("a few passes over a few thousand samples")
    if size_of(d) < SMALL_MODEL:
        return 100, say("enough for a first test; a small model learns quickly")
    return 1000, say("enough for a first test of a larger model")
