"""The fields of a script's config dataclasses: the plan's value for each, and the plan's key for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz import optimizers, strategies, tasks
from trainwiz.plan import Plan, flat
from trainwiz.tasks import generation
from trainwiz.tasks.preference_losses import LOSSES
from trainwiz.tasks.shapes import ModelShape

_RENAMED = {"train_data": "data.train", "eval_data": "data.eval", "model_name": "model.name"}
_HALF = {"bf16": "bfloat16", "fp16": "float16"}
"""torch's names of the formats that forward and backward pass compute in."""
_LENGTHS = ("schedule.n_steps", "schedule.n_epochs")
_NONE_IS_ZERO = (*_LENGTHS, "checkpoint.checkpoints_total_limit")
"""Keys whose null is 0 in the script."""


def settings(plan: Plan) -> dict[str, Any]:
    """Values for the fields of the config dataclasses, by field name: most have the name of their key in the plan."""
    schedule = plan.schedule
    by_steps = schedule.train_strategy == "steps"
    shape = tasks.of(plan).shape(plan.model.name)
    hub_id = (shape.hub_id if isinstance(shape, ModelShape) else "") or plan.model.name
    # Weights that no optimizer changes need no fp32.
    half = _HALF.get(plan.precision.mixed_precision) if strategies.of(plan).keeps_frozen_dtype else None
    return {
        **{key.rpartition(".")[2]: value for key, value in flat(plan).items()},
        **strategies.of(plan).settings,
        "n_steps": (schedule.n_steps or 0) if by_steps else 0,
        "n_epochs": 0 if by_steps else (schedule.n_epochs or 0),
        "checkpoints_total_limit": plan.checkpoint.checkpoints_total_limit or 0,
        "best_mode": _best_mode(plan),
        "generation_metrics": ",".join(generation.chosen(plan.evaluation.generation_metrics)),
        **_optimizer(plan),
        "modules_to_save": plan.model.modules_to_save or "",
        "special_tokens": plan.data.special_tokens or "",
        "added_tokens": plan.data.added_tokens or "",
        "run_name": plan.tracking.run_name or "",
        "tags": plan.tracking.tags or "",
        "train_data": plan.data.train,
        "eval_data": plan.data.eval,
        "model_name": hub_id,
        "tokenizer_name": hub_id,
        "frozen_dtype": half or "float32",
        "mixed_precision": "bf16" if plan.precision.mixed_precision == "fp8" else plan.precision.mixed_precision,
        "beta": plan.preference.beta or LOSSES[plan.preference.loss].beta,
        **(shape.settings if shape else {}),
    }


def _optimizer(plan: Plan) -> dict[str, Any]:
    """The numbers of the optimizer, with its usual ones where the plan leaves them out."""
    chosen, usual = plan.optimizer, optimizers.named(plan.optimizer.name)
    given = {"beta1": chosen.beta1, "beta2": chosen.beta2, "epsilon": chosen.epsilon}
    known = {"beta1": usual.betas[0], "beta2": usual.betas[1], "epsilon": usual.epsilon}
    return {
        **{name: known[name] if value is None else value for name, value in given.items()},
        "rates": chosen.rates or "",
        "decays": chosen.decays or "",
    }


def _best_mode(plan: Plan) -> str:
    """min or max. A metric of unknown direction is a finding of its own, if the plan does not say it."""
    evaluation = plan.evaluation
    known = tasks.of(plan).measured(gathered=evaluation.gather_outputs, written=evaluation.generation_metrics)
    return known.get(evaluation.best_metric or "", "min") if evaluation.best_mode == "auto" else evaluation.best_mode


def key_of(plan: Plan, field: str) -> str | None:
    """The plan's key whose value a field repeats; None for a field that follows from others."""
    shape = tasks.of(plan).shape(plan.model.name)
    if field == "mixed_precision" and plan.precision.mixed_precision == "fp8":
        return None  # the script says bf16, in addition to fp8.py
    if field in {**strategies.of(plan).settings, **(shape.settings if shape else {})}:
        return None
    keys = {key.rpartition(".")[2]: key for key in flat(plan)}
    return _RENAMED.get(field) or keys.get(field)


def used(plan: Plan, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's values that match a script with other values in these fields, by dotted key."""
    found = {key: value for field, value in fields.items() if (key := key_of(plan, field))}
    if plan.precision.mixed_precision == "fp8" and fields.get("mixed_precision", "bf16") != "bf16":
        found["precision.mixed_precision"] = fields["mixed_precision"]
    found |= {key: None for key in _NONE_IS_ZERO if found.get(key) == 0}
    if found.keys() & set(_LENGTHS):
        by_steps = bool(found.get("schedule.n_steps", plan.schedule.n_steps))
        found["schedule.train_strategy"] = "steps" if by_steps else "epochs"
    return found
