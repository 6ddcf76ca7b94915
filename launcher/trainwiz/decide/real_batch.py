"""How many samples an update has by default."""

from __future__ import annotations

import math

from trainwiz.decide.amount import documents_per_sample, is_own, samples_of
from trainwiz.decide.decision import Decision
from trainwiz.decide.size import SMALL_MODEL, size_of
from trainwiz.message import Message, say
from trainwiz.vocabulary import EMBEDDED

_GPT3 = (
    (0.2e9, 6e-4, 2**19),
    (0.5e9, 3e-4, 2**19),
    (1.0e9, 2.5e-4, 2**19),
    (2.0e9, 2e-4, 2**20),
    (4.0e9, 1.6e-4, 2**20),
    (10e9, 1.2e-4, 2**21),
    (math.inf, 1e-4, 2**21),
)
"""Up to this many parameters: learning rate, tokens per update. GPT-3, table 2.1: https://arxiv.org/abs/2005.14165."""
_SMALL_REAL_BATCH = 32
_SMALLEST_REAL_BATCH = 4
"""Documents of an update, however little own data there is."""
_UPDATES_PER_EPOCH = 32
"""That own data should have at least."""


def usual_real_batch(d: Decision) -> tuple[float, Message]:
    """The samples of an update, before ranks and micro-batches divide them, and why so many."""
    tokens, samples = gpt3_row(d)[2], samples_of(d)
    target: float
    if d.on_cpu or d.task.own_code or size_of(d) < SMALL_MODEL:
        target, why = _SMALL_REAL_BATCH, say("small, for quick updates")
    elif not d.values["model.from_scratch"]:
        target, why = 64, say("common when continuing from trained weights")
    else:
        target = max(1, tokens // int(d.values["batch.sequence_length"]))
        why = say("about {tokens} tokens per update, like GPT-3 at a similar size", tokens=tokens)
    if samples is None:
        most = _embedded_at_most(d)
        if most is None or most >= target:
            return target, why
        few = min(_SMALL_REAL_BATCH, 2 ** (most.bit_length() - 1))
        return few, say("the embedded data has at most {samples} samples", samples=most)
    few = max(_SMALL_REAL_BATCH, samples // 10)
    if is_own(d):
        few = 2 ** max(0, math.floor(math.log2(max(1, samples / _UPDATES_PER_EPOCH))))
        few = max(few, math.ceil(_SMALLEST_REAL_BATCH / documents_per_sample(d)))
        if few < target:
            updates = math.ceil(samples / few)
            return few, say("{updates} updates for about {samples} samples", updates=updates, samples=samples)
    if few < target:
        target, why = (
            few,
            say("about a tenth of the {samples} samples, to get more than one update per epoch", samples=samples),
        )
    return target, why


def _embedded_at_most(d: Decision) -> int | None:
    """How many samples embedded data has at most, where the model's own tokens are not counted."""
    return d.data.samples_at_most or None if d.data and d.values["data.train"] == EMBEDDED else None


def gpt3_row(d: Decision) -> tuple[float, float, int]:
    """GPT-3's row for a model of this size."""
    return next(row for row in _GPT3 if size_of(d) <= row[0])
