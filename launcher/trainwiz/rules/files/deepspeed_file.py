"""Keys and values in a DeepSpeed file that DeepSpeed rejects or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.config.spelling import nearest, renamed
from trainwiz.engines.deepspeed import (
    MILD_BLOCKS,
    REMOVALS,
    REMOVED_IN_0_19,
    TOP_LEVEL_KEYS,
    UNREAD,
    ZERO_KEYS,
    is_removed,
    strict_blocks,
)
from trainwiz.engines.deepspeed_types import BLOCKS
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule


@rule("TW341", level=Level.ERROR, field="zero_optimization")
def deepspeed_knows_the_keys_of_its_blocks(deepspeed: DeepSpeed) -> Violations:
    """DeepSpeed rejects unknown keys in zero_optimization, fp16, bf16, compile, tensor_parallel and monitor blocks.

    Without it: every rank fails with pydantic's `Extra inputs are not permitted` after the model is built.
    Why: DeepSpeed parses these blocks with classes that reject unknown keys, and the keys change between versions.
    Instead: spell the key as the installed version does.
    Source: seen with DeepSpeed 0.19.8; the first three compared with 0.16.5 and 0.18.9 by their field names
    """
    for block, known in strict_blocks(deepspeed.version).items():
        for key, value in deepspeed.section(block).items():
            # DeepSpeed drops `auto` before it checks names; TW343 reports removed keys.
            if key in known or value == "auto" or (block == "zero_optimization" and is_removed(key, deepspeed.version)):
                continue
            path, near = f"{block}.{key}", nearest(key, known)
            # A newer version may have more keys.
            if not near and deepspeed.version >= UNREAD:
                continue
            fix = remedy("delete it", {path: None})
            if near and not deepspeed.has(f"{block}.{near}"):
                fix = renamed(path, f"{block}.{near}", value, stops=True)
            yield violation("DeepSpeed {shown_version} rejects {key} in {block}", fix, where=path, key=key, block=block)


@rule("TW342", level=Level.WARNING, field="deepspeed")
def deepspeed_knows_the_keys_at_the_top(deepspeed: DeepSpeed) -> Violations:
    """DeepSpeed silently ignores unknown keys at the top of its file and in its less strict blocks.

    Without it: the key or block silently has no effect: with `partition_activation: true`, activations stay whole.
    Why: DeepSpeed reads the keys that it knows and never checks the rest.
    Instead: spell the key as DeepSpeed does. A name that begins with _ is treated as a comment.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/docs/config-json/
    """
    for key, value in deepspeed.document.values.items():
        if key in TOP_LEVEL_KEYS or key.startswith(("_", "#", "//")):
            continue
        # A block is never a misspelled number, nor the other way round.
        same_kind = {k for k in TOP_LEVEL_KEYS - REMOVED_IN_0_19 if (k in BLOCKS) is isinstance(value, Mapping)}
        near = nearest(key, same_kind)
        if key in ZERO_KEYS:
            fix = remedy("move it into zero_optimization", {key: None, f"zero_optimization.{key}": value})
        elif near and not deepspeed.has(near):
            fix = renamed(key, near, value)
        else:
            fix = remedy("delete it", {key: None})
        yield violation("DeepSpeed ignores {key}: it has no such key", fix, where=key, key=key)
    for block, known in MILD_BLOCKS.items():
        for key, value in deepspeed.section(block).items():
            near = None if key in known else nearest(key, known)
            if near and not deepspeed.has(f"{block}.{near}"):
                yield violation(
                    "DeepSpeed ignores {key} in {block}: it has no such key",
                    renamed(f"{block}.{key}", f"{block}.{near}", value),
                    where=f"{block}.{key}",
                    key=key,
                    block=block,
                )


@rule("TW343", level=Level.ERROR, field="deepspeed")
def a_removed_feature_is_gone(deepspeed: DeepSpeed) -> Violations:
    """DeepSpeed 0.19 rejects files that use the features it has removed.

    Without it: DeepSpeedConfigError: `Elastic training has been removed`, `NVIDIA Apex AMP integration has been
    removed`.
    Why: if DeepSpeed ignored the block, it would train something else: unquantized, not elastic, without Apex.
    Instead: remove the block. Use bf16 instead of amp, and a fixed batch size instead of elasticity.
    Source: seen with DeepSpeed 0.19.8; 0.18.9 still takes them;
    https://github.com/deepspeedai/DeepSpeed/issues/8489
    """
    found = [key for key in deepspeed.document.values if key in REMOVED_IN_0_19]
    found += [f"zero_optimization.{key}" for key in deepspeed.section("zero_optimization")]
    for path in found:
        key = path.rpartition(".")[2]
        if is_removed(key, deepspeed.version):
            fix = safe(remedy("delete it", {path: None}), _is_off(deepspeed.get(path)))
            yield violation("DeepSpeed {shown_version} no longer supports {key} and stops", fix, where=path)


@rule("TW344", level=Level.ERROR, field="zero_optimization.stage")
def zero_values_are_legal(deepspeed: DeepSpeed) -> Violations:
    """The ZeRO stage is 0 to 3, offload devices are none, cpu or nvme, bucket sizes are positive.

    Without it: every rank fails with pydantic's ValidationError after the model is built.
    Why: DeepSpeed checks the values only when it starts.
    Instead: use a value from the range in the finding.
    Source: seen with DeepSpeed 0.19.8
    """
    stage = deepspeed.get("zero_optimization.stage", 0)
    # pydantic also accepts a quoted number.
    if stage not in ("auto", 0, 1, 2, 3, "0", "1", "2", "3"):
        yield violation("the ZeRO stage is {stage}; it must be 0 to 3", stage=stage)
    for part in ("offload_optimizer", "offload_param"):
        path = f"zero_optimization.{part}.device"
        value = deepspeed.get(path, "none")
        if value not in ("none", "cpu", "nvme", "auto"):
            yield violation(
                "{key} is {value}; it must be none, cpu or nvme",
                remedy("write cpu or none", {path: "cpu"}),
                where=path,
                key=f"{part}.device",
                value=str(value),
            )
    size = deepspeed.get("zero_optimization.reduce_bucket_size")
    if size is False or (_is_number(size) and size <= 0):
        yield violation(
            "reduce_bucket_size is {size}; it must be positive", where="zero_optimization.reduce_bucket_size", size=size
        )


@rule("TW348", level=Level.ERROR, field="gradient_allreduce_op")
def stage_3_averages(deepspeed: DeepSpeed) -> Violations:
    """gradient_allreduce_op sum does not work with ZeRO stage 3.

    Without it: every rank fails with `gradient_allreduce_op='sum' is not supported with ZeRO stage 3`.
    Why: the reduce-scatter of stage 3 computes averages.
    Instead: use mean, and scale the loss accordingly.
    Source: seen with DeepSpeed 0.19.8; the key is not in 0.18.9
    """
    if deepspeed.version >= REMOVALS and deepspeed.stage == 3 and deepspeed.get("gradient_allreduce_op") == "sum":
        yield violation(
            "ZeRO stage 3 rejects gradient_allreduce_op sum", remedy("write mean", {"gradient_allreduce_op": "mean"})
        )


@rule("TW349", level=Level.HINT, field="zero_optimization.stage3_gather_16bit_weights_on_model_save")
def stage_3_gathers_at_the_save(deepspeed: DeepSpeed) -> Violations:
    """Saving the full weights at ZeRO stage 3 needs stage3_gather_16bit_weights_on_model_save.

    Without it: `save_16bit_model` returns False and writes nothing; accelerate's `get_state_dict` fails after the
    training with `Cannot get 16bit model weights`.
    Why: each rank holds only a part of every weight.
    Instead: set it to true, or run zero_to_fp32.py on the checkpoint afterwards.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0
    """
    names = (
        "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
    )
    if deepspeed.stage == 3 and not any(deepspeed.get(f"zero_optimization.{name}") for name in names):
        path = f"zero_optimization.{names[0]}"
        yield violation(
            "ZeRO stage 3 cannot save its weights in one piece without {key}",
            remedy("set it to true", {path: True}),
            where=path,
            key=names[0],
        )


@rule("TW251", level=Level.ERROR, field="bf16.enabled")
def one_16_bit_type(deepspeed: DeepSpeed) -> Violations:
    """fp16 and bf16 must not both be enabled.

    Without it: every rank builds the model, then fails: `bfloat16 and fp16 modes cannot be simultaneously enabled`.
    Why: the engine keeps its weights in a single type.
    Instead: enable bf16 on Ampere and newer GPUs, fp16 on older ones.
    Source: seen with DeepSpeed 0.19.8
    """
    if deepspeed.enabled("fp16") and deepspeed.enabled("bf16"):
        fix = remedy("set fp16.enabled or bf16.enabled to false", {"fp16.enabled": False})
        yield violation("fp16 and bf16 are both enabled", fix)


@rule("TW252", level=Level.ERROR, field="fp16.loss_scale_window")
def dynamic_scaling_has_room(deepspeed: DeepSpeed) -> Violations:
    """With dynamic loss scaling, fp16.loss_scale_window and fp16.min_loss_scale must be positive.

    Without it: `fp16.loss_scale_window must be > 0 when dynamic loss scaling is enabled`; older versions divide by
    zero in the first update.
    Why: the loss scale grows once per window, and must not fall to zero.
    Instead: use the usual values, 1000 and 1.
    Source: seen with DeepSpeed 0.19.8
    """
    if not deepspeed.enabled("fp16") or deepspeed.get("fp16.loss_scale", 0) != 0:
        return
    for key, usual in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
        value = deepspeed.get(f"fp16.{key}")
        if _is_number(value) and value <= 0:
            yield violation(
                "fp16.{key} is {value}; with dynamic loss scaling it must be positive",
                remedy("write {number}", {f"fp16.{key}": usual}, number=usual),
                where=f"fp16.{key}",
                key=key,
                value=value,
            )


def _is_off(value: Any) -> bool:
    """Whether a feature was not asked for."""
    return not value or (isinstance(value, Mapping) and value.get("enabled", True) in (False, "false", 0))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
