"""How much data there is, and what follows: the part kept for evaluation, packing, and how often it is evaluated."""

from __future__ import annotations

import math

from trainwiz.decide.decision import Decision
from trainwiz.engines.transformers import takes_masks
from trainwiz.message import Message, say
from trainwiz.project import is_part, share_of
from trainwiz.vocabulary import EMBEDDED

_LEAST_TO_SPLIT = 20
"""Different documents without which nothing is kept for evaluation."""
_LEAST_KEPT, _MOST_KEPT = 20, 500
"""Documents that an evaluation should have, and those that are enough."""
_LEAST_PACKED = 20
"""Rows per rank without which packing would leave too few updates."""
_EVALUATIONS = 10


# docs/decisions/wizard.md: The amount of own data decides its defaults
def decide_evaluation_data(d: Decision) -> None:
    """What the model is evaluated on: of own data, a part that is kept from training."""
    data, amount = d.data, d.data.amount if d.data else None
    if d.values["data.train"] == EMBEDDED:
        d.settle("data.eval", EMBEDDED, say("the part of the embedded data that is held out from training"))
    elif data and data.evaluation_part:
        why = say("its part {name} is meant for evaluation", name=data.evaluation_part)
        d.settle("data.eval", d.values["data.train"], why, "found")
    elif amount and d.task.from_hub and _read(d, amount.different) >= _LEAST_TO_SPLIT:
        documents = _read(d, amount.documents)
        part = "5%" if 0.05 * documents >= _LEAST_KEPT else "10%"
        part = str(_MOST_KEPT) if 0.05 * documents > _MOST_KEPT else part
        kept = round(share_of(part, documents) * documents)
        why = say("kept out of training: about {kept} of {documents} samples", kept=kept, documents=documents)
        d.settle("data.eval", part, why)
    else:
        d.settle("data.eval", None, say("no evaluation data is specified"))


def decide_packing(d: Decision) -> None:
    """Whether documents share rows: not where too few rows would be left for the ranks."""
    if not d.task.packs:
        d.settle("data.packing", False, say("only causal_lm and sft support packing"))
        return
    if mixing := _mixes(d):
        d.settle("data.packing", False, mixing)
        return
    rows, alone, ranks = _samples(d, packing=True), _samples(d, packing=False), d.values["machine.num_processes"]
    if rows is not None and alone is not None and rows < _LEAST_PACKED * ranks and alone >= 2 * rows:
        why = say(
            "packing would turn about {samples} samples into only {rows} of {length} tokens",
            samples=alone,
            rows=rows,
            length=d.values["batch.sequence_length"],
        )
        d.settle("data.packing", False, why)
    else:
        d.settle("data.packing", True, say("documents share a row but do not attend to each other; no space is wasted"))


def _mixes(d: Decision) -> Message | None:
    """Why this model's documents cannot share a row with the transformers that will train; None: they can."""
    if d.model and d.model.mixes:
        return say("{kind}: documents in the same row would attend to each other", kind=d.model.mixes)
    interpreter = d.machine.interpreter if d.machine else None
    version = interpreter.version("transformers") if interpreter else None
    if d.transformer is None or version is None or takes_masks(d.transformer.model_type, version):
        return None
    return say(
        "{kind} in transformers {version} cannot keep packed documents apart",
        kind=d.transformer.model_type,
        version=version,
    )


def decide_evaluation_steps(d: Decision, updates: int | None) -> None:
    """How often the model is evaluated."""
    if is_own(d) and d.values["data.eval"] and updates:
        why = say("about ten times in {updates} updates", updates=updates)
        d.settle("evaluation.evaluation_steps", max(1, updates // _EVALUATIONS), why)
    else:
        d.settle_default("evaluation.evaluation_steps", say("an epoch is the usual unit"))


def is_own(d: Decision) -> bool:
    """Whether it is a person's data whose amount is about known."""
    return bool(d.data and d.data.amount) and d.values["data.train"] != EMBEDDED


def samples_of(d: Decision) -> int | None:
    """About how many samples are trained on; None where that is unknown."""
    if d.samples is not None and not is_part(d.values["data.eval"]):
        return d.samples
    return _samples(d, packing=d.values["data.packing"])


def documents_per_sample(d: Decision) -> float:
    """How many documents a sample of own data holds, at least one."""
    samples, amount = samples_of(d), d.data.amount if d.data else None
    left = _samples(d, packing=False)
    return max(1.0, left / samples) if samples and amount and left and not d.task.cuts else 1.0


def _samples(d: Decision, *, packing: bool) -> int | None:
    amount, part = d.data.amount if d.data else None, d.values["data.eval"]
    if amount is None:
        return None
    documents = float(_read(d, amount.documents))
    tokens = amount.tokens * documents / max(1, amount.documents)
    if is_part(part):
        left = 1 - share_of(part, round(documents))
        documents, tokens = documents * left, tokens * left
    rows = math.ceil(tokens / int(d.values["batch.sequence_length"]))
    if not d.task.packs:
        return max(1, round(documents))
    if not d.task.cuts:
        return max(1, round(min(documents, rows) if packing else documents))
    return max(1, rows if packing else max(round(documents), rows))


def _read(d: Decision, documents: int) -> int:
    most = d.values["data.max_rows"]
    return min(documents, most) if most else documents
