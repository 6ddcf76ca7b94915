"""The check of the planned learning rate, from the first update to the last."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from trainwiz.message import Message, say
from trainwiz.rehearsal.check import Check, judged

_EXACT = 1e-9


def check(found: Mapping[str, Any] | None, *, estimated: bool) -> Check:
    """Check the rates of all planned updates. `estimated`: their number follows from a part of the data."""
    title = say("learning rate")
    if found is None:
        none = say("train.py has no function learning_rate")
        return Check(name="schedule", title=title, verdict="skipped", found=none)
    rates = found["rates"]
    values = {
        "warmup": found["warmup"],
        "total": found["total"],
        "peak": f"{max(rate for _, rate in rates):g}",
        "last": f"{rates[-1][1]:.3g}",
        "after": f"{found['after']:g}",
    }
    words, fix = _problem(found) or (_course(found["kind"], estimated, values), None)
    numbers = {name: value for name, value in found.items() if name != "rates"} | {"first": rates[0][1], **values}
    return judged("schedule", title, words, fix, numbers)


def _course(kind: str, estimated: bool, values: Mapping[str, Any]) -> Message:
    if kind == "constant":
        return say("{peak} from update {warmup} to the last update {total}", **values)
    if estimated:
        return say("{peak} at update {warmup}, {last} at update {total} (estimated), then {after}", **values)
    return say("{peak} at update {warmup}, {last} at the last update {total}, then {after}", **values)


def _problem(found: Mapping[str, Any]) -> tuple[Message, Message] | None:
    rates, warmup, total, asked = found["rates"], found["warmup"], found["total"], found["learning_rate"]
    values = {"warmup": warmup, "total": total, "asked": f"{asked:g}", "after": f"{found['after']:g}"}
    if warmup >= total:
        problem = say("the warm-up takes {warmup} updates, but the training has only {total}", **values)
        return problem, say("set schedule.n_warmup_steps below {total}", total=total)
    fix = say("check learning_rate in train.py")
    peak = max(rate for _, rate in rates)
    if abs(peak - asked) > _EXACT * asked:
        return say("the highest learning rate is {peak}, but the plan has {asked}", peak=f"{peak:g}", **values), fix
    lowest, at = min((rate, update) for update, rate in rates if update > warmup)
    if lowest < found["after"] - _EXACT * asked or lowest < 0:
        low = {"at": at, "lowest": f"{lowest:g}"}
        return say(
            "at update {at}, the learning rate is {lowest}, below its final value ({after})", **low, **values
        ), fix
    falls = all(b <= a + _EXACT * asked for (u, a), (_, b) in pairwise(rates) if u >= max(1, warmup))
    rises = all(b > a for (_, a), (u, b) in pairwise(rates) if u <= warmup)
    if rises and falls:
        return None
    return say("the learning rate should rise until update {warmup} and fall afterwards, but does not", **values), fix
