"""The check of the planned learning rate, from the first update to the last."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from trainwiz.message import Message, say
from trainwiz.rehearsal.check import Check

_TITLE = say("learning rate")
_EXACT = 1e-9


def check(found: Mapping[str, Any] | None, *, estimated: bool) -> Check:
    """Check the rates of all planned updates. `estimated`: their number follows from a part of the data."""
    if found is None:
        return Check(
            name="schedule", title=_TITLE, verdict="skipped", found=say("train.py has no function learning_rate")
        )
    problem = _problem(found)
    rates = found["rates"]
    values = {
        "warmup": found["warmup"],
        "total": found["total"],
        "peak": f"{max(rate for _, rate in rates):g}",
        "last": f"{rates[-1][1]:.3g}",
        "after": f"{found['after']:g}",
    }
    if problem:
        words, fix = problem
    elif found["kind"] == "constant":
        words, fix = say("{peak} from update {warmup} to the last update {total}", **values), None
    elif estimated:
        words, fix = (
            say("{peak} at update {warmup}, {last} at update {total} (estimated), then {after}", **values),
            None,
        )
    else:
        words, fix = say("{peak} at update {warmup}, {last} at the last update {total}, then {after}", **values), None
    return Check(
        name="schedule",
        title=_TITLE,
        verdict="failed" if fix else "passed",
        found=words,
        fix=fix,
        numbers={name: value for name, value in found.items() if name != "rates"} | {"first": rates[0][1], **values},
    )


def _problem(found: Mapping[str, Any]) -> tuple[Message, Message] | None:
    rates, warmup, total, asked = found["rates"], found["warmup"], found["total"], found["learning_rate"]
    peak = max(rate for _, rate in rates)
    if warmup >= total:
        return (
            say(
                "the warm-up of {warmup} updates does not end before the training of {total} updates",
                warmup=warmup,
                total=total,
            ),
            say("set schedule.n_warmup_steps below {total}", total=total),
        )
    if abs(peak - asked) > _EXACT * asked:
        return (
            say("the highest learning rate is {peak}, but the plan has {asked}", peak=f"{peak:g}", asked=f"{asked:g}"),
            say("check learning_rate in train.py"),
        )
    lowest, at = min((rate, update) for update, rate in rates)
    if lowest < found["after"] - _EXACT * asked or lowest < 0:
        return (
            say(
                "at update {at}, the learning rate is {lowest}, below its final value ({after})",
                at=at,
                lowest=f"{lowest:g}",
                after=f"{found['after']:g}",
            ),
            say("check learning_rate in train.py"),
        )
    falls = all(b <= a + _EXACT * asked for (u, a), (_, b) in pairwise(rates) if u >= max(1, warmup))
    rises = all(b > a for (_, a), (u, b) in pairwise(rates) if u <= warmup)
    if not rises or not falls:
        return say(
            "the learning rate should rise until update {warmup} and fall afterwards, but does not", warmup=warmup
        ), say("check learning_rate in train.py")
    return None
