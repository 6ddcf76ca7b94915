"""An optimizer and a schedule inside of DeepSpeed's file: the generated script makes its own, with the same numbers."""

from __future__ import annotations

from typing import Any

from trainwiz import optimizers
from trainwiz.adoption.ledger import Ledger, Page
from trainwiz.adoption.settings import Settings
from trainwiz.message import say

_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
_BETAS = ("optimizer.beta1", "optimizer.beta2")
DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8},
    "sgd": {"lr": 1e-3, "weight_decay": 0.0, "momentum": 0.0},
}
"""What DeepSpeed's optimizers and torch's take for parameters that are left out; a test asks their classes."""
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def read(page: Page, settings: Settings) -> None:
    """Enter the numbers that a plan has keys for."""
    _optimizer(page, settings)
    _schedule(page, settings)


def _optimizer(page: Page, settings: Settings) -> None:
    kind = settings.values.get("optimizer.type")
    if not isinstance(kind, str):
        return
    name = _OPTIMIZERS.get(kind.lower())
    # DeepSpeed's Adam is AdamW unless adam_w_mode says no.
    if name is None or (kind.lower() == "adam" and settings.values.get("optimizer.params.adam_w_mode") is False):
        why = say("only adamw and sgd can be imported, not {kind}; set optimizer.name yourself", kind=kind)
        _lose_block(page, settings, "optimizer", why, key="optimizer.name")
        return
    page.carry("optimizer.type", "optimizer.name", name)
    for part, key in (("lr", "optimizer.learning_rate"), ("weight_decay", "optimizer.weight_decay")):
        full, usual = f"optimizer.params.{part}", DEFAULTS[name][part]
        if full in settings.values:
            _number(page, settings, full, key)
        else:
            page.carry(full, key, usual, say("not set; the optimizer's default is {value}", value=usual))
    for part, key in (("eps", "optimizer.epsilon"), ("momentum", "optimizer.beta1")):
        if part in DEFAULTS[name]:
            _moment(page, settings, f"optimizer.params.{part}", (key,), [DEFAULTS[name][part]])
    if "betas" in DEFAULTS[name]:
        _moment(page, settings, "optimizer.params.betas", _BETAS, DEFAULTS[name]["betas"])
    leave_usual(page.ledger)
    if settings.values.get("optimizer.params.bias_correction", True) is not True:
        why = say("train.py corrects the bias of its first updates; change it in build_optimizer")
        page.leave("optimizer.params.bias_correction", "lost", why)
    for part in ("torch_adam", "adam_w_mode", "bias_correction", "fused"):
        page.same(f"optimizer.params.{part}")


def _moment(page: Page, settings: Settings, full: str, keys: tuple[str, ...], usual: list[float]) -> None:
    """An optimizer's betas or its epsilon, in one key of the plan for each number."""
    value = settings.values.get(full, usual)
    if value == "auto":
        page.leave(full, "open", say("only the script knows the value"), key=keys[0])
        return
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) != len(keys) or not all(type(one) in (int, float) for one in numbers):
        return
    why = None if full in settings.values else say("not set; the optimizer's default is {value}", value=_shown(usual))
    for key, one in zip(keys, numbers, strict=True):
        page.carry(full, key, float(one), why)


def leave_usual(ledger: Ledger) -> None:
    """Keep a plan short: what its optimizer does by itself needs no key."""
    name = ledger.carried.get("optimizer.name")
    row = optimizers.named(name.value if name else optimizers.every()[0].name)
    for key, usual in (*zip(_BETAS, row.betas, strict=True), ("optimizer.epsilon", row.epsilon)):
        one = ledger.carried.get(key)
        if one is not None and (one.value == usual or key.rpartition(".")[2] not in row.settings):
            del ledger.carried[key]


def _shown(values: list[float]) -> str:
    return str(values) if len(values) > 1 else str(values[0])


def _schedule(page: Page, settings: Settings) -> None:
    kind = settings.values.get("scheduler.type")
    if not isinstance(kind, str):
        return
    if kind not in _SCHEDULES:
        why = say(
            "only constant, linear and cosine can be imported, not {kind}; set schedule.lr_scheduler_type yourself",
            kind=kind,
        )
        _lose_block(page, settings, "scheduler", why, key="schedule.lr_scheduler_type")
        return
    page.carry("scheduler.type", "schedule.lr_scheduler_type", _SCHEDULES[kind])
    _number(page, settings, "scheduler.params.warmup_num_steps", "schedule.n_warmup_steps", whole=True)
    _number(page, settings, "scheduler.params.total_num_steps", "schedule.n_steps", whole=True)
    _number(page, settings, "scheduler.params.warmup_max_lr", "optimizer.learning_rate")
    for part, ours in (("warmup_min_lr", 0), ("cos_min_ratio", 0), ("warmup_min_ratio", 0), ("warmup_type", "linear")):
        full = f"scheduler.params.{part}"
        value = settings.values.get(full)
        if value in (ours, "auto"):
            page.same(full)
        elif value is not None:
            page.leave(full, "lost", say("train.py warms up linearly from 0 and ends at 0"))
    if kind != "WarmupCosineLR" and "scheduler.params.warmup_type" not in settings.values:
        why = say("not set; DeepSpeed warms up logarithmically, train.py linearly")
        page.leave("scheduler.params.warmup_type", "lost", why, value="log")


def _number(page: Page, settings: Settings, name: str, key: str, *, whole: bool = False) -> None:
    value: Any = settings.values.get(name)
    if value == "auto":
        page.leave(name, "open", say("only the script knows the value"), key=key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        earlier = page.ledger.carried.get(key)
        if earlier is not None and earlier.value != value:
            page.leave(name, "lost", say("already set by another value"), key=key)
        else:
            page.carry(name, key, int(value) if whole else float(value))


def _lose_block(page: Page, settings: Settings, block: str, why: Any, key: str) -> None:
    for name in settings.paths:
        if name == f"{block}.type":
            page.leave(name, "lost", why, key=key)
        elif name.startswith(f"{block}."):
            page.leave(name, "lost", say("belongs to {type}", type=settings.values[f"{block}.type"]))
