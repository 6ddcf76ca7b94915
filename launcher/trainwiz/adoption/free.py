"""Settings of DeepSpeed that a plan has no keys for, and that its section `deepspeed` takes over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainwiz import vocabulary
from trainwiz.adoption.settings import Settings
from trainwiz.engines.deepspeed import DEFAULTS, STRICT_BLOCKS
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.render import deepspeed

ACCELERATE_SAYS = {
    "steps_per_print": say("accelerate always sets it to infinity"),
    "zero_allow_untested_optimizer": say("accelerate allows any optimizer that the script creates"),
}


def free_settings(settings: Settings, plan: Plan) -> dict[str, Any]:
    """The settings that the plan's section `deepspeed` needs, so that DeepSpeed runs as before."""
    if plan.strategy.kind != "deepspeed":
        return {}
    base = rendered(plan, {})
    found = {}
    for name in dict.fromkeys([*settings.values, *base]):
        wanted = settings.effective(name)
        finite = not isinstance(wanted, float) or math.isfinite(wanted)
        if not is_free(name) or not finite or wanted == "auto" or same(base.get(name, default(name, plan)), wanted):
            continue
        if acts(name, plan):
            found[name] = wanted
    return found


def rendered(plan: Plan, free: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a project with this plan writes, by dotted path."""
    config = deepspeed.config(plan.model_copy(update={"deepspeed": dict(free)}))
    return dict(_flat(config, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def default(name: str, plan: Plan) -> Any:
    """What DeepSpeed takes for a setting that is left out."""
    if name == "zero_optimization.overlap_comm":
        return plan.strategy.zero_stage == 3
    return DEFAULTS.get(name)


def is_free(name: str) -> bool:
    """Whether a plan may set it in its section `deepspeed`."""
    if name in vocabulary.DECIDED_SETTINGS or name in ACCELERATE_SAYS or name == "fp16.auto_cast":
        return False
    block, _, last = name.rpartition(".")
    strict = STRICT_BLOCKS.get(block, () if block.startswith("zero_optimization.") else None)
    if strict is not None and last not in strict:
        return False
    return any(name == free or (free.endswith(".") and name.startswith(free)) for free in vocabulary.FREE_SETTINGS)


def acts(name: str, plan: Plan) -> bool:
    """Whether a setting has an effect under this plan."""
    strategy, precision = plan.strategy, plan.precision.mixed_precision
    if name.startswith("fp16."):
        return precision == "fp16"
    if name.startswith("bf16."):
        return precision in ("bf16", "fp8")
    if name == "data_types.grad_accum_dtype":
        return precision != "no"
    if name.startswith("zero_optimization.stage3_"):
        return strategy.zero_stage == 3
    if name.startswith("zero_optimization.offload_optimizer."):
        return strategy.offload_optimizer_device != "none"
    if name.startswith("zero_optimization.offload_param."):
        return strategy.offload_param_device != "none"
    if name.startswith("zero_optimization."):
        return strategy.zero_stage != 0
    if name == "zero_force_ds_cpu_optimizer":
        return strategy.offload_optimizer_device != "none"
    if name.startswith("timers."):
        return False  # shown every `steps_per_print` updates, of which accelerate makes infinitely many
    if name.startswith("aio."):
        return "nvme" in (strategy.offload_optimizer_device, strategy.offload_param_device)
    return True


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where 1 does not equal true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
