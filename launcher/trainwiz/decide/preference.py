"""Defaults for tuning on preferences."""

from __future__ import annotations

from trainwiz.decide.decision import Decision
from trainwiz.message import say
from trainwiz.tasks.preference_losses import LOSSES


def decide_preference(d: Decision) -> None:
    """Decide how answers are compared."""
    other = say("for the task preference only")
    loss = d.settle_default("preference.loss", say("the most common one") if d.task.compares else other)
    usual = say("the usual value of {loss}: {beta}", loss=loss, beta=LOSSES[loss].beta)
    d.settle_default("preference.beta", usual if d.task.compares else other)
    d.settle_default("preference.gamma", say("used with simpo by its authors"))
    same = say("for kto: good and bad answers count the same")
    d.settle_default("preference.desirable_weight", same)
    d.settle_default("preference.undesirable_weight", same)
