"""FSDP in an accelerate file: two versions with different keys, and values that are checked late."""

from __future__ import annotations

from typing import Any

from trainwiz.config import Accelerate
from trainwiz.config.spelling import not_one_of
from trainwiz.engines.accelerate import TRUE_WORDS, TRUTH_WORDS
from trainwiz.finding import Fix, Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_CHOICES = {
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
}
_FIRST_VERSION_ONLY: dict[str, tuple[Any, ...]] = {
    "fsdp_sharding_strategy": ("FULL_SHARD",),
    "fsdp_use_orig_params": (True,),
    "fsdp_forward_prefetch": (False,),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "NO_PREFETCH"),
}
"""Keys that version 2 ignores, with the values that describe what it does anyway."""
_NUMBERS = {"fsdp_sharding_strategy": 5, "fsdp_backward_prefetch": 2, "fsdp_state_dict_type": 3}
"""How many of the choices may be given as their number, from 1."""
_MAY_BE_NULL = ("fsdp_auto_wrap_policy", "fsdp_backward_prefetch", "fsdp_state_dict_type")
_SWITCHES = (
    "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_offload_params",
)
"""Keys that both versions read."""
_SWITCHES_OF = {
    1: ("fsdp_forward_prefetch", "fsdp_sync_module_states", "fsdp_use_orig_params"),
    2: ("fsdp_reshard_after_forward",),
}
"""Those that one of them reads."""


@rule("TW361", level=Level.ERROR, field="fsdp_config.fsdp_sharding_strategy")
def an_fsdp_choice_is_one_that_exists(accelerate: Accelerate) -> Violations:
    """FSDP options must use names that torch and accelerate know; switches must be true or false.

    Without it: every rank fails after the imports with `KeyError: 'SHARDED'` or `Invalid auto wrap policy`; for a
    switch without a value, with `invalid truth value none`.
    Why: the values are passed as environment variables and looked up only when the Accelerator is created.
    Instead: use one of the values that the finding lists.
    Source: seen with accelerate 1.15.0; `FullyShardedDataParallelPlugin`
    """
    for name, (path, value) in accelerate.fsdp.items():
        allowed = _CHOICES.get(name, ())
        # Version 2 ignores the strategy.
        unread = name == "fsdp_sharding_strategy" and accelerate.fsdp_version == 2
        unread |= name == "fsdp_backward_prefetch" and accelerate.fsdp_version == 2
        if not allowed or unread or (value is None and name in _MAY_BE_NULL) or _is_choice(name, value):
            continue
        yield not_one_of(allowed, str(value), where=path, key=name, near=str(value).upper())
    for name in (*_SWITCHES, *_SWITCHES_OF.get(accelerate.fsdp_version, ())):
        path, value = accelerate.fsdp.get(name, ("", False))
        # TW364 and TW368 report these.
        if (name == "fsdp_reshard_after_forward" and isinstance(value, str)) or (
            name == "fsdp_sync_module_states" and not value
        ):
            continue
        if str(value).lower() not in TRUTH_WORDS:
            yield violation(
                "{key} is {value}; it must be true or false",
                safe(remedy("delete it", {path: None})) if value is None else None,
                where=path,
                key=name,
                value=accelerate.document.raw(path) or "null",
            )


def _is_choice(name: str, value: Any) -> bool:
    """Whether a value is one of the words, in any case, or the number of one."""
    number = int(value) if type(value) is int or (isinstance(value, str) and value.isdecimal()) else 0
    return (isinstance(value, str) and value.upper() in _CHOICES[name]) or 1 <= number <= _NUMBERS.get(name, 0)


@rule("TW362", level=Level.ERROR, field="fsdp_config.fsdp_version")
def fsdp_has_two_versions(accelerate: Accelerate) -> Violations:
    """fsdp_version must be 1 or 2.

    Without it: every rank fails after the imports with `KeyError: 'TRUE'`, which does not mention the version.
    Why: any other number matches neither version, and the defaults of one version are read as values of the other.
    Instead: use 2, with torch 2.6 or newer.
    Source: seen with accelerate 1.15.0
    """
    path, value = accelerate.fsdp.get("fsdp_version", ("", None))
    if path and str(value) not in ("1", "2"):
        yield violation(
            "fsdp_version is {value}; it must be 1 or 2", remedy("write 2", {path: 2}), where=path, value=str(value)
        )


@rule("TW363", level=Level.WARNING, field="fsdp_config.fsdp_reshard_after_forward")
def resharding_is_of_version_2(accelerate: Accelerate) -> Violations:
    """fsdp_reshard_after_forward needs fsdp_version 2; version 1 uses fsdp_sharding_strategy.

    Without it: `fsdp_reshard_after_forward: SHARD_GRAD_OP`, which accelerate's own questionnaire writes for version
    1, trains with FULL_SHARD: less memory and more communication than you chose.
    Why: the launcher always passes a sharding strategy (FULL_SHARD if the file has none), which takes precedence.
    Instead: set fsdp_sharding_strategy: SHARD_GRAD_OP, or fsdp_version: 2 with true or false.
    Source: seen with accelerate 1.15.0
    """
    path, value = accelerate.fsdp.get("fsdp_reshard_after_forward", ("", None))
    if value is None or accelerate.fsdp_version != 1:
        return
    strategy = accelerate.fsdp.get("fsdp_sharding_strategy", ("", "FULL_SHARD"))[1]
    if isinstance(value, str) and value.upper() == str(strategy).upper():
        return
    named = isinstance(value, str) and value.upper() in _CHOICES["fsdp_sharding_strategy"]
    right = "fsdp_config.fsdp_sharding_strategy"
    yield violation(
        "fsdp_version 1 ignores fsdp_reshard_after_forward {value} and uses {strategy}",
        remedy("write fsdp_sharding_strategy: {value}", {path: None, right: value}, value=value)
        if named
        else remedy("set fsdp_version: 2, or delete it", {path: None}),
        where=path,
        value=str(value).lower() if isinstance(value, bool) else value,
        strategy=strategy,
    )


@rule("TW364", level=Level.ERROR, field="fsdp_config.fsdp_reshard_after_forward")
def version_2_reshards_or_not(accelerate: Accelerate) -> Violations:
    """With fsdp_version 2, fsdp_reshard_after_forward must be true or false.

    Without it: every rank fails with `invalid truth value full_shard` after the imports.
    Why: version 2 has no sharding strategies; it only decides whether the forward pass frees gathered weights.
    Instead: use true for FULL_SHARD, false for SHARD_GRAD_OP.
    Source: seen with accelerate 1.15.0
    """
    path, value = accelerate.fsdp.get("fsdp_reshard_after_forward", ("", None))
    if isinstance(value, str) and accelerate.fsdp_version == 2 and value.lower() not in TRUTH_WORDS:
        meant = value.upper() not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD")
        yield violation(
            "fsdp_reshard_after_forward is {value}; with fsdp_version 2 it must be true or false",
            safe(
                remedy("write {value}", {path: meant}, value=str(meant).lower()),
                value.upper() in ("FULL_SHARD", "SHARD_GRAD_OP"),
            ),
            where=path,
            value=value,
        )


@rule("TW365", level=Level.WARNING, field="fsdp_config.fsdp_sharding_strategy")
def version_2_has_dropped_keys(accelerate: Accelerate) -> Violations:
    """fsdp_version 2 ignores the keys for sharding strategy, prefetch and original parameters.

    Without it: the keys have no effect; only fsdp_backward_prefetch gets a line in the log.
    Why: version 2 always keeps the original parameters and prefetches by itself.
    Instead: for SHARD_GRAD_OP, set fsdp_reshard_after_forward: false. For HYBRID_SHARD, set
    parallelism_config_dp_replicate_size (usually the number of machines) and dp_shard_size (the number of GPUs in
    one machine). Delete the other keys.
    Source: seen with accelerate 1.15.0; https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
    """
    if accelerate.fsdp_version != 2:
        return
    for name, (path, value) in accelerate.fsdp.items():
        # Values that version 2 implies anyway are fine.
        if name in _FIRST_VERSION_ONLY and value not in (None, *_FIRST_VERSION_ONLY[name]):
            yield violation(
                "{key} {value} has no effect with fsdp_version 2",
                _instead(path, name, value),
                where=path,
                key=name,
                value=str(value),
            )


def _instead(path: str, name: str, value: object) -> Fix:
    word = str(value).upper()
    if name == "fsdp_sharding_strategy" and word in ("SHARD_GRAD_OP", "2"):
        return remedy("delete it; use fsdp_reshard_after_forward: false instead", {path: None})
    if name == "fsdp_sharding_strategy" and word in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5"):
        return remedy("delete it; use parallelism_config_dp_replicate_size with dp_shard_size instead", {path: None})
    return safe(remedy("delete it", {path: None}), name != "fsdp_sharding_strategy")


@rule("TW368", level=Level.ERROR, field="fsdp_config.fsdp_sync_module_states")
def efficient_loading_needs_synchronized_states(accelerate: Accelerate) -> Violations:
    """fsdp_cpu_ram_efficient_loading (on by default) needs fsdp_sync_module_states.

    Without it: the launch stops with `When using --fsdp_cpu_ram_efficient_loading set --fsdp_sync_module_states to
    True`.
    Why: only rank 0 loads the weights then, and the other ranks must receive them from it.
    Instead: set fsdp_sync_module_states: true, or set fsdp_cpu_ram_efficient_loading: false as well.
    Source: seen with accelerate 1.15.0
    """
    values = accelerate.fsdp
    path, sync = values.get("fsdp_sync_module_states", ("", True))
    if not sync and values.get("fsdp_cpu_ram_efficient_loading", ("", True))[1]:
        fix = remedy("set fsdp_sync_module_states: true, or fsdp_cpu_ram_efficient_loading: false", {path: True})
        yield violation("fsdp_cpu_ram_efficient_loading is on, but fsdp_sync_module_states is false", fix, where=path)


@rule("TW369", level=Level.ERROR, field="fsdp_config.fsdp_activation_checkpointing_offload")
def offloaded_activations_are_checkpointed(accelerate: Accelerate) -> Violations:
    """fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing and fsdp_version 2.

    Without it: every rank fails after the imports with `activation_checkpointing_offload=True requires
    activation_checkpointing=True` (or `fsdp_version=2`).
    Why: it offloads the inputs that activation checkpointing keeps.
    Instead: set both keys to true, with fsdp_version: 2.
    Source: seen with accelerate 1.15.0
    """
    values = accelerate.fsdp
    path, offload = values.get("fsdp_activation_checkpointing_offload", ("", False))
    checkpointing = values.get("fsdp_activation_checkpointing", ("", False))[1]
    if str(offload).lower() not in TRUE_WORDS or (checkpointing and accelerate.fsdp_version == 2):
        return
    changes: dict[str, Any] = {} if accelerate.fsdp_version == 2 else {path: None}
    if not changes:
        changes = {values.get("fsdp_activation_checkpointing", ("fsdp_config.fsdp_activation_checkpointing",))[0]: True}
    yield violation(
        "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing (here {checkpointing}) and "
        "fsdp_version 2 (here {fsdp_version})",
        remedy(
            "set fsdp_activation_checkpointing: true and fsdp_version: 2, or delete "
            "fsdp_activation_checkpointing_offload",
            changes,
        ),
        where=path,
        checkpointing=str(bool(checkpointing)).lower(),
    )


@rule("TW370", level=Level.ERROR, field="fsdp_config.fsdp_state_dict_type")
def version_2_has_no_local_state_dict(accelerate: Accelerate) -> Violations:
    """fsdp_version 2 cannot save LOCAL_STATE_DICT, only full or sharded state dicts.

    Without it: every rank fails with `FSDP2 does not support LOCAL_STATE_DICT` after the imports.
    Why: version 2 stores its parameters as DTensors, which know their shards.
    Instead: use SHARDED_STATE_DICT.
    Source: seen with accelerate 1.15.0
    """
    path, value = accelerate.fsdp.get("fsdp_state_dict_type", ("", None))
    if accelerate.fsdp_version == 2 and str(value).upper() == "LOCAL_STATE_DICT":
        fix = remedy("write SHARDED_STATE_DICT", {path: "SHARDED_STATE_DICT"})
        yield violation("fsdp_version 2 does not support LOCAL_STATE_DICT", fix, where=path)
