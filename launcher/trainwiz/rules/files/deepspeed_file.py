"""DeepSpeed's own file: keys and values that it refuses or ignores."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.config.spelling import nearest
from trainwiz.engines.deepspeed import (
    MILD_BLOCKS,
    REMOVED_IN_0_19,
    STRICT_BLOCKS,
    STRICT_IN_0_19,
    TOP_LEVEL_KEYS,
    ZERO_KEYS,
    ZERO_SINCE_0_17,
    ZERO_SINCE_0_19,
    ZERO_UNTIL_0_18,
)
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_STRICT_PRECISION = (0, 18)
"""From here on, fp16 and bf16 are read by classes that refuse unknown keys (0.16.5: not yet; 0.18.9: yes)."""
_GONE = (0, 19)


@rule("TW341", level=Level.ERROR, field="zero_optimization")
def deepspeed_knows_the_keys_of_its_blocks(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """DeepSpeed rejects unknown keys in zero_optimization, fp16, bf16, compile, tensor_parallel and monitor blocks.

    Without it: every rank fails with pydantic's `Extra inputs are not permitted` after the model is built.
    Why: DeepSpeed parses these blocks with classes that reject unknown keys, and the keys change between versions.
    Instead: spell the key as the installed version does.
    Source: seen with DeepSpeed 0.19.8; the first three compared with 0.16.5 and 0.18.9 by their field names
    """
    for block, known in _strict(deepspeed).items():
        for key, value in deepspeed.section(block).items():
            # An `auto` is dropped before the names are looked at; removed keys have a rule of their own.
            if key in known or value == "auto" or (block == "zero_optimization" and _removed(deepspeed, key)):
                continue
            path, near = f"{block}.{key}", nearest(key, known)
            # A version newer than those that were read may have more keys.
            if not near and deepspeed.version >= (0, 20):
                continue
            fix = remedy("delete it", {path: None})
            if near and not deepspeed.has(f"{block}.{near}"):
                fix = remedy("did you mean {key}?", {path: None, f"{block}.{near}": value}, key=near)
            yield deepspeed.wrong(
                path,
                say("DeepSpeed {version} rejects {key} in {block}", version=_shown(deepspeed), key=key, block=block),
                fix,
            )


@rule("TW342", level=Level.WARNING, field="deepspeed")
def deepspeed_knows_the_keys_at_the_top(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """DeepSpeed silently ignores unknown keys at the top of its file and in its less strict blocks.

    Without it: the key or the whole block has no effect, without any message: with `partition_activation: true`,
    activations stay whole.
    Why: DeepSpeed reads the keys that it knows and never checks the rest.
    Instead: spell the key as DeepSpeed does. A name that begins with _ is treated as a comment.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/docs/config-json/
    """
    for key, value in deepspeed.document.values.items():
        if key in TOP_LEVEL_KEYS or key.startswith(("_", "#", "//")):
            continue
        near = nearest(key, TOP_LEVEL_KEYS - REMOVED_IN_0_19)
        if key in ZERO_KEYS:
            fix = remedy("move it into zero_optimization", {key: None, f"zero_optimization.{key}": value})
        elif near and not deepspeed.has(near):
            fix = remedy("did you mean {key}?", {key: None, near: value}, key=near)
        else:
            fix = remedy("delete it", {key: None})
        yield deepspeed.wrong(key, say("DeepSpeed ignores {key}: it has no such key", key=key), fix)
    for block, known in MILD_BLOCKS.items():
        for key, value in deepspeed.section(block).items():
            near = None if key in known else nearest(key, known)
            if near and not deepspeed.has(f"{block}.{near}"):
                yield deepspeed.wrong(
                    f"{block}.{key}",
                    say("DeepSpeed ignores {key} in {block}: it has no such key", key=key, block=block),
                    remedy("did you mean {key}?", {f"{block}.{key}": None, f"{block}.{near}": value}, key=near),
                )


@rule("TW343", level=Level.ERROR, field="deepspeed")
def a_removed_feature_is_gone(deepspeed: DeepSpeed) -> Iterator[Violation]:
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
        if _removed(deepspeed, path.rpartition(".")[2]):
            yield deepspeed.wrong(
                path,
                say(
                    "DeepSpeed {version} no longer supports {key} and stops",
                    version=_shown(deepspeed),
                    key=path.rpartition(".")[2],
                ),
                remedy("delete it", {path: None}),
            )


@rule("TW344", level=Level.ERROR, field="zero_optimization.stage")
def zero_values_are_legal(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """The ZeRO stage is 0 to 3, offload devices are none, cpu or nvme, bucket sizes are positive.

    Without it: every rank fails with pydantic's ValidationError after the model is built.
    Why: DeepSpeed checks the values only when it starts.
    Instead: use a value from the range in the finding.
    Source: seen with DeepSpeed 0.19.8
    """
    stage = deepspeed.get("zero_optimization.stage", 0)
    # A quoted number passes: pydantic reads it as one.
    if stage not in ("auto", 0, 1, 2, 3, "0", "1", "2", "3"):
        yield deepspeed.wrong(
            "zero_optimization.stage", say("the ZeRO stage is {stage}; it must be 0 to 3", stage=stage)
        )
    for part in ("offload_optimizer", "offload_param"):
        path = f"zero_optimization.{part}.device"
        value = deepspeed.get(path, "none")
        if value not in ("none", "cpu", "nvme", "auto"):
            yield deepspeed.wrong(
                path,
                say("{key} is {value}; it must be none, cpu or nvme", key=f"{part}.device", value=str(value)),
                remedy("write cpu or none", {path: "cpu"}),
            )
    size = deepspeed.get("zero_optimization.reduce_bucket_size")
    if _is_number(size) and size <= 0:
        yield deepspeed.wrong(
            "zero_optimization.reduce_bucket_size", say("reduce_bucket_size is {size}; it must be positive", size=size)
        )


@rule("TW348", level=Level.ERROR, field="gradient_allreduce_op")
def stage_3_averages(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """gradient_allreduce_op sum does not work with ZeRO stage 3.

    Without it: every rank fails with `gradient_allreduce_op='sum' is not supported with ZeRO stage 3`.
    Why: the reduce-scatter of stage 3 computes averages.
    Instead: use mean, and scale the loss accordingly.
    Source: seen with DeepSpeed 0.19.8; the key is not in 0.18.9
    """
    if deepspeed.version >= _GONE and deepspeed.stage == 3 and deepspeed.get("gradient_allreduce_op") == "sum":
        yield deepspeed.wrong(
            "gradient_allreduce_op",
            say("ZeRO stage 3 rejects gradient_allreduce_op sum"),
            remedy("write mean", {"gradient_allreduce_op": "mean"}),
        )


@rule("TW349", level=Level.HINT, field="zero_optimization.stage3_gather_16bit_weights_on_model_save")
def stage_3_gathers_at_the_save(deepspeed: DeepSpeed) -> Iterator[Violation]:
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
        yield deepspeed.wrong(
            path,
            say("ZeRO stage 3 cannot save its weights in one piece without {key}", key=names[0]),
            remedy("set it to true", {path: True}),
        )


@rule("TW251", level=Level.ERROR, field="bf16.enabled")
def one_16_bit_type(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """fp16 and bf16 must not both be enabled.

    Without it: every rank fails with `bfloat16 and fp16 modes cannot be simultaneously enabled` after the model is
    built.
    Why: the engine keeps its weights in a single type.
    Instead: enable bf16 on Ampere and newer GPUs, fp16 on older ones.
    Source: seen with DeepSpeed 0.19.8
    """
    if deepspeed.enabled("fp16") and deepspeed.enabled("bf16"):
        yield deepspeed.wrong(
            "bf16.enabled",
            say("fp16 and bf16 are both enabled"),
            remedy("set fp16.enabled or bf16.enabled to false", {"fp16.enabled": False}),
        )


@rule("TW252", level=Level.ERROR, field="fp16.loss_scale_window")
def dynamic_scaling_has_room(deepspeed: DeepSpeed) -> Iterator[Violation]:
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
            yield deepspeed.wrong(
                f"fp16.{key}",
                say("fp16.{key} is {value}; with dynamic loss scaling it must be positive", key=key, value=value),
                remedy("write {number}", {f"fp16.{key}": usual}, number=usual),
            )


def _strict(deepspeed: DeepSpeed) -> dict[str, Collection[str]]:
    """The blocks that refuse unknown keys in this version, with what they know."""
    zero = set(ZERO_KEYS)
    if deepspeed.version < (0, 19):
        zero = (zero - ZERO_SINCE_0_19) | ZERO_UNTIL_0_18
    # Somewhere between these two, so neither is called unknown there.
    if deepspeed.version <= (0, 16, 5):
        zero -= ZERO_SINCE_0_17
    blocks: dict[str, Collection[str]] = {**STRICT_BLOCKS, "zero_optimization": zero}
    if deepspeed.version < (0, 19):
        blocks = {block: known for block, known in blocks.items() if block not in STRICT_IN_0_19}
    if deepspeed.version < _STRICT_PRECISION:
        del blocks["fp16"], blocks["bf16"]
    return blocks


def _removed(deepspeed: DeepSpeed, key: str) -> bool:
    return deepspeed.version >= _GONE and key in REMOVED_IN_0_19 | ZERO_UNTIL_0_18


def _shown(deepspeed: DeepSpeed) -> str:
    return ".".join(map(str, deepspeed.version))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
