"""Defaults for tuning on preferences."""

from __future__ import annotations

from trainwiz.decide.decision import Decision
from trainwiz.message import say
from trainwiz.tasks.preference_losses import LOSSES

_JUDGEMENTS, _ANSWERS = {"label", "kto_tag"}, {"chosen", "chosen_response", "preferred_output", "preferred"}
"""Columns that say whether an answer is good, and those of answers that are better than others."""


def decide_preference(d: Decision) -> None:
    """Decide how answers are compared."""
    other = say("only for the preference task")
    if d.task.compares and _JUDGEMENTS & d.first.keys() and not _ANSWERS & d.first.keys():
        judged = say("the first row has one answer with a label")
        loss = d.settle("preference.loss", "kto", judged, kind="found")
    else:
        loss = d.settle_default("preference.loss", say("the most common one") if d.task.compares else other)
    usual = say("the usual value of {loss}: {beta}", loss=loss, beta=LOSSES[loss].beta)
    d.settle_default("preference.beta", usual if d.task.compares else other)
    d.settle_default("preference.gamma", say("used with simpo by its authors"))
    same = say("for kto: good and bad answers count the same")
    d.settle_default("preference.desirable_weight", same)
    d.settle_default("preference.undesirable_weight", same)
