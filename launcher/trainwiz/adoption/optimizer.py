"""An optimizer and a schedule inside of DeepSpeed's file: the generated script makes its own, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.adoption.ledger import Ledger
    from trainwiz.adoption.settings import Settings

_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
_BETAS, _EPS, _MOMENTUM = [0.9, 0.95], 1e-8, 0.9
"""As in train_templates/loops."""
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def read(ledger: Ledger, settings: Settings) -> None:
    """Enter the numbers that a plan has keys for."""
    _optimizer(ledger, settings)
    _schedule(ledger, settings)


def _optimizer(ledger: Ledger, settings: Settings) -> None:
    kind = settings.values.get("optimizer.type")
    if not isinstance(kind, str):
        return
    path = settings.path("optimizer.type")
    name = _OPTIMIZERS.get(kind.lower())
    # DeepSpeed's Adam is AdamW unless adam_w_mode says no.
    if kind.lower() == "adam" and settings.values.get("optimizer.params.adam_w_mode") is False:
        name = None
    if name is None:
        _lose_block(
            ledger,
            settings,
            "optimizer",
            say("the generated loop supports adamw and sgd, not {kind}", kind=kind),
            key="optimizer.name",
        )
        return
    ledger.carry(settings.file, path, "optimizer.name", name)
    for part, key in (("lr", "optimizer.learning_rate"), ("weight_decay", "optimizer.weight_decay")):
        _number(ledger, settings, f"optimizer.params.{part}", key)
    for part, ours in (("betas", _BETAS), ("eps", _EPS), ("momentum", _MOMENTUM)):
        full = f"optimizer.params.{part}"
        value = settings.values.get(full)
        if value == ours or value is None:
            ledger.same(settings.file, settings.path(full))
        elif value == "auto":
            ledger.leave(
                settings.file,
                settings.path(full),
                "open",
                say("only the script knows the value; train.py uses {value}", value=str(ours)),
            )
        else:
            ledger.leave(
                settings.file,
                settings.path(full),
                "lost",
                say("train.py uses {value}; change it in build_optimizer", value=str(ours)),
            )
    for part in ("torch_adam", "adam_w_mode", "bias_correction", "fused"):
        ledger.same(settings.file, settings.path(f"optimizer.params.{part}"))


def _schedule(ledger: Ledger, settings: Settings) -> None:
    kind = settings.values.get("scheduler.type")
    if not isinstance(kind, str):
        return
    if kind not in _SCHEDULES:
        _lose_block(
            ledger,
            settings,
            "scheduler",
            say("the generated loop supports constant, linear and cosine, not {kind}", kind=kind),
            key="schedule.lr_scheduler_type",
        )
        return
    ledger.carry(settings.file, settings.path("scheduler.type"), "schedule.lr_scheduler_type", _SCHEDULES[kind])
    _number(ledger, settings, "scheduler.params.warmup_num_steps", "schedule.n_warmup_steps", whole=True)
    _number(ledger, settings, "scheduler.params.total_num_steps", "schedule.n_steps", whole=True)
    _number(ledger, settings, "scheduler.params.warmup_max_lr", "optimizer.learning_rate")
    for part, ours in (("warmup_min_lr", 0), ("cos_min_ratio", 0), ("warmup_min_ratio", 0), ("warmup_type", "linear")):
        full = f"scheduler.params.{part}"
        value = settings.values.get(full)
        if value in (ours, "auto"):
            ledger.same(settings.file, settings.path(full))
        elif value is not None:
            ledger.leave(
                settings.file, settings.path(full), "lost", say("train.py warms up linearly from 0 and ends at 0")
            )
    if kind != "WarmupCosineLR" and "scheduler.params.warmup_type" not in settings.values:
        why = say("not set; DeepSpeed warms up logarithmically, train.py linearly")
        ledger.leave(settings.file, "scheduler.params.warmup_type", "lost", why, value="log")


def _number(ledger: Ledger, settings: Settings, name: str, key: str, *, whole: bool = False) -> None:
    value: Any = settings.values.get(name)
    path = settings.path(name)
    if value == "auto":
        ledger.leave(settings.file, path, "open", say("only the script knows the value"), key=key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        earlier = ledger.carried.get(key)
        if earlier is not None and earlier.value != value:
            ledger.leave(settings.file, path, "lost", say("already set by another value"), key=key)
        else:
            ledger.carry(settings.file, path, key, int(value) if whole else float(value))


def _lose_block(ledger: Ledger, settings: Settings, block: str, why: Any, key: str) -> None:
    for name, path in settings.paths.items():
        if name == f"{block}.type":
            ledger.leave(settings.file, path, "lost", why, key=key)
        elif name.startswith(f"{block}."):
            ledger.leave(settings.file, path, "lost", say("belongs to {type}", type=settings.values[f"{block}.type"]))
