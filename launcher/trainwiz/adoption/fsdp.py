"""accelerate's fsdp_config, compared with what the project gets: FSDP 2, layer by layer, sharded state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz.adoption.ledger import Page
from trainwiz.command import settings
from trainwiz.config import Accelerate
from trainwiz.engines.accelerate import BLOCKS, FSDP_DEFAULTS, FSDP_PLUGIN_DEFAULTS
from trainwiz.message import say
from trainwiz.plan import Plan

_ONLY_1 = {"fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_sync_module_states"}
_STRATEGIES = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD"}


def compare(page: Page, accelerate: Accelerate, plan: Plan) -> None:
    """Enter every setting of FSDP that the project does otherwise, also those that the file leaves to accelerate."""
    if accelerate.kind != "FSDP":
        return
    held = accelerate.fsdp
    if plan.strategy.kind != "fsdp":
        for path, _ in held.values():
            page.leave(path, "lost", say("the plan's strategy is not FSDP"), key="strategy.kind")
        return
    ours = settings.for_accelerate(plan)["fsdp_config"]
    first = accelerate.fsdp_version == 1
    usual = {**FSDP_DEFAULTS, **FSDP_PLUGIN_DEFAULTS[1 if first else 2]}
    if first:
        _first_version(page, accelerate)
    for key in dict.fromkeys([*held, *ours]):
        path, value = held.get(key, ("fsdp_config", usual.get(key)))
        # The block counts as seen once a key of it is; a key that is left out is named by its own path.
        path = path if key in held else f"fsdp_config.{key}"
        if page.knows(path):
            continue
        if key not in BLOCKS["fsdp_config"][1]:
            continue
        now = ours.get(key, usual.get(key))
        if _same(value, now) or _is_irrelevant(key, value, held, ours):
            page.same(path)
        else:
            page.leave(path, "lost", _why(key, value, now, said=key in held), value=_shown(value))


def _first_version(page: Page, accelerate: Accelerate) -> None:
    held = accelerate.fsdp
    path = held["fsdp_version"][0] if "fsdp_version" in held else "fsdp_config.fsdp_version"
    page.leave(path, "lost", say("the project uses FSDP 2, which shards the same state"), value="1")
    path, value = held.get("fsdp_sharding_strategy", ("", "FULL_SHARD"))
    strategy = _STRATEGIES.get(str(value), str(value).upper())
    if path and strategy == "FULL_SHARD":
        page.same(path)
    elif path:
        page.leave(path, "lost", say("the project shards everything across all ranks, like FULL_SHARD"))
    if "fsdp_reshard_after_forward" in held:
        path = held["fsdp_reshard_after_forward"][0]
        page.leave(path, "inert", say("FSDP 1 uses fsdp_sharding_strategy instead"))
    for key in sorted(_ONLY_1 & held.keys()):
        page.leave(held[key][0], "lost", say("FSDP 2 has no such setting"))


def _why(key: str, value: Any, now: Any, *, said: bool) -> Any:
    if key == "fsdp_transformer_layer_cls_to_wrap":
        return say("the model defines its own layer classes; add more in SHARDED_LAYERS in task.py")
    if not said:
        return say(
            "not set; accelerate defaults to {value}, the project uses {now}", value=_shown(value), now=_shown(now)
        )
    return say("the project uses {now}", now=_shown(now))


def _is_irrelevant(key: str, value: Any, held: Mapping[str, tuple[str, Any]], ours: Mapping[str, Any]) -> bool:
    if key in ("fsdp_sharding_strategy", *_ONLY_1):
        return True  # FSDP 2 has none of them; of FSDP 1 they were dealt with
    if key == "fsdp_min_num_params":
        return bool(held.get("fsdp_auto_wrap_policy", ("", ""))[1] != "SIZE_BASED_WRAP")
    if key == "fsdp_transformer_layer_cls_to_wrap":
        return value in (None, "") and key not in ours
    return False


def _same(one: Any, other: Any) -> bool:
    return bool(_shown(one) == _shown(other))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or str(value).lower() in ("true", "false") else str(value)
