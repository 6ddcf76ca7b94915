"""The DeepSpeed block of an accelerate file."""

from __future__ import annotations

import math
import posixpath
from typing import Any

from trainwiz.config import Accelerate
from trainwiz.engines.accelerate import SETTINGS_OF_BLOCK, TRUTH_WORDS
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_BLOCK = "deepspeed_config"
_CLIPPING = f"{_BLOCK}.gradient_clipping"


@rule("TW331", level=Level.ERROR, field="deepspeed_config.deepspeed_config_file")
def a_deepspeed_file_stands_alone(accelerate: Accelerate) -> Violations:
    """With deepspeed_config_file, do not repeat that file's settings (such as mixed_precision) here.

    Without it: every rank stops after the imports with `When using deepspeed_config_file, the following accelerate
    config variables will be ignored`.
    Why: accelerate refuses to choose between two values.
    Instead: set the values in the DeepSpeed file; zero3_init_flag may stay here.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/2210
    """
    if not accelerate.deepspeed_file:
        return
    paths = [f"{_BLOCK}.{key}" for key in SETTINGS_OF_BLOCK if accelerate.has(f"{_BLOCK}.{key}")]
    if accelerate.get("mixed_precision") is not None:
        paths.append("mixed_precision")
    for path in paths:
        fix = remedy("set it in {file}, and delete it here", {path: None}, file=accelerate.deepspeed_file)
        yield violation("{key} is set next to deepspeed_config_file; accelerate stops", fix, where=path)


@rule("TW332", level=Level.ERROR, field="deepspeed_config.deepspeed_config_file")
def the_deepspeed_file_exists(accelerate: Accelerate) -> Violations:
    """The file set in deepspeed_config_file must exist.

    Without it: every rank fails after the imports with `Expected a string path to an existing deepspeed config, or
    a dictionary, or a base64 encoded string`.
    Why: accelerate treats anything that is not a file as base64. Relative paths start where you launch.
    Instead: set a path relative to that folder, or an absolute path.
    Source: seen with accelerate 1.15.0
    """
    key = f"{_BLOCK}.deepspeed_config_file"
    named = accelerate.get(key)
    if (
        accelerate.kind == "DEEPSPEED"
        and accelerate.has(key)
        and named is not None
        and not (named and isinstance(named, str))
    ):
        yield violation("{key} is {value}; it must be the path of a file", remedy("delete it"), where=key)
    path = accelerate.deepspeed_file
    if path and accelerate.files.get(path) is None:
        fix = remedy("write the path relative to the folder that you launch from")
        yield violation("{file} not found, neither in the current folder nor next to this file", fix, file=path)


@rule("TW337", level=Level.HINT, field="deepspeed_config.deepspeed_config_file")
def the_deepspeed_file_is_found_from_the_launch(accelerate: Accelerate) -> Violations:
    """A relative deepspeed_config_file is relative to the folder that you launch from, not to the accelerate file.

    Without it: from any other folder, every rank fails after the imports with `Expected a string path to an existing
    deepspeed config`.
    Why: accelerate opens the path as written.
    Instead: launch from the folder of the accelerate file, or write the path relative to where you launch.
    Source: seen with accelerate 1.15.0
    """
    path, folder = accelerate.deepspeed_file, posixpath.dirname(accelerate.document.path)
    found = accelerate.files.get(path) if path else None
    if path and found and folder and not posixpath.isabs(path) and found == posixpath.join(folder, path):
        fix = remedy("launch from {folder}, or write {found}", folder=folder, found=found)
        yield violation(
            "{file} is next to this file, and found only by a launch from {folder}", fix, file=path, folder=folder
        )


@rule("TW333", level=Level.ERROR, field="deepspeed_config.zero_stage")
def deepspeed_values_are_legal(accelerate: Accelerate) -> Violations:
    """zero_stage is 0 to 3, offload devices are none, cpu or nvme, accumulation and clipping are numbers.

    Without it: pydantic's ValidationError deep in the log of every rank, after the model is built; for a clipping
    of yes, `could not convert string to float: 'true'`.
    Why: accelerate passes the values on without checking them.
    Instead: use one of the values that the finding lists.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    if accelerate.kind != "DEEPSPEED":
        return
    stage = accelerate.get(f"{_BLOCK}.zero_stage")
    if stage is not None and str(stage) not in ("0", "1", "2", "3"):
        yield violation("zero_stage is {stage}; it must be 0 to 3", stage=stage)
    for path in (f"{_BLOCK}.offload_optimizer_device", f"{_BLOCK}.offload_param_device"):
        value = accelerate.get(path)
        if value is not None and str(value).lower() not in ("none", "cpu", "nvme"):
            fix = safe(remedy("write cpu or none", {path: "none" if value is False else "cpu"}), value is False)
            yield violation("{key} is {value}; it must be none, cpu or nvme", fix, where=path)
    for path in (f"{_BLOCK}.gradient_accumulation_steps", _CLIPPING):
        value = accelerate.get(path)
        if value is None or value == "auto":
            continue
        if isinstance(value, bool) or not _is_number(value):
            off = safe(remedy("write a norm such as 1.0, or .inf to disable clipping", {path: math.inf}))
            meant = off if value is False and path == _CLIPPING else None
            yield violation("{key} is {value}; it must be a number or auto", meant, where=path)
        elif path != _CLIPPING and not (float(value) >= 1 and float(value).is_integer()):
            yield violation("{key} is {value}; it must be a whole number from 1", where=path)
    switch = f"{_BLOCK}.zero3_init_flag"
    if accelerate.get(switch) is not None and str(accelerate.get(switch)).lower() not in TRUTH_WORDS:
        yield violation("{key} is {value}; it must be true or false", where=switch)


@rule("TW334", level=Level.ERROR, field="deepspeed_config.offload_optimizer_nvme_path")
def nvme_goes_through_a_deepspeed_file(accelerate: Accelerate) -> Violations:
    """An accelerate file cannot set the nvme path for offload at ZeRO stage 3.

    Without it: offload_optimizer_nvme_path and offload_param_nvme_path never reach DeepSpeed, which uses `none` as
    the folder and swaps to ./none.
    Why: accelerate's plugin reads the paths from environment variables, but the launcher never sets them.
    Instead: write a DeepSpeed file with nvme_path, and set deepspeed_config_file to it.
    Source: seen with accelerate 1.15.0: the launch environment stays the same
    """
    at_stage_3 = str(accelerate.get(f"{_BLOCK}.zero_stage", 2)) == "3"
    for part in ("optimizer", "param") if at_stage_3 else ():
        key, path = f"{_BLOCK}.offload_{part}_device", f"{_BLOCK}.offload_{part}_nvme_path"
        if accelerate.kind == "DEEPSPEED" and str(accelerate.get(key)).lower() == "nvme":
            yield violation(
                "an nvme path in an accelerate file never reaches DeepSpeed, which would swap to ./none",
                remedy(
                    "set it in a DeepSpeed file (zero_optimization.offload_{part}.nvme_path), and set "
                    "deepspeed_config_file to that file",
                    part=part,
                ),
                where=path if accelerate.has(path) else key,
            )


@rule("TW335", level=Level.WARNING, field="deepspeed_config.zero_stage")
def some_keys_act_at_stage_3(accelerate: Accelerate) -> Violations:
    """offload_param_device, nvme and the zero3_ keys need ZeRO stage 3; optimizer offload needs stage 1 or higher.

    Without it: offload_param_device, zero3_init_flag and zero3_save_16bit_model are ignored, and the model no
    longer fits as planned. An optimizer meant for nvme stays in host memory. At stage 0, an optimizer meant for the
    CPU becomes DeepSpeed's CPUAdam, which fails in its first step on GPU weights with `CPUAdam param is on cuda`.
    Why: below stage 3, every rank holds all weights, and the optimizer cannot swap. Stage 0 moves nothing at all.
    Instead: set zero_stage: 3, or remove these keys.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    stage = accelerate.get(f"{_BLOCK}.zero_stage", 2)
    if not accelerate.block_decides or str(stage) not in ("0", "1", "2"):
        return
    for path in (f"{_BLOCK}.{key}" for key in ("offload_param_device", "zero3_init_flag", "zero3_save_16bit_model")):
        value = accelerate.get(path)
        if value is True or str(value).lower() in ("cpu", "nvme", "true"):
            yield violation(
                "{key} {value} has no effect at ZeRO stage {stage}",
                remedy("set zero_stage: 3, or delete it", {path: None}),
                where=path,
                value=str(value).lower(),
                stage=stage,
            )
    path = f"{_BLOCK}.offload_optimizer_device"
    if str(accelerate.get(path)).lower() == "nvme" and str(stage) != "0":
        yield violation(
            "at ZeRO stage {stage}, the optimizer is offloaded to host memory, not to nvme",
            remedy("use stage 3, or set the device to cpu", {path: "cpu"}),
            where=path,
            stage=stage,
        )
    elif str(accelerate.get(path)).lower() in ("cpu", "nvme") and str(stage) == "0":
        yield violation(
            "at ZeRO stage 0, the weights stay on the GPU, and DeepSpeed's CPUAdam stops with an error",
            remedy("use stage 1 or higher, or set the device to none", {path: "none"}),
            where=path,
        )


@rule("TW336", level=Level.WARNING, field="deepspeed_config.zero3_save_16bit_model")
def stage_3_can_save_its_weights(accelerate: Accelerate) -> Violations:
    """Saving the full weights at ZeRO stage 3 needs zero3_save_16bit_model.

    Without it: the first `get_state_dict` or `save_pretrained` fails after the training with `Cannot get 16bit
    model weights because stage3_gather_16bit_weights_on_model_save in config is False`.
    Why: each rank holds only a part of every weight.
    Instead: set zero3_save_16bit_model: true, or run zero_to_fp32.py on the checkpoint afterwards.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    path = f"{_BLOCK}.zero3_save_16bit_model"
    at_stage_3 = accelerate.block_decides and str(accelerate.get(f"{_BLOCK}.zero_stage")) == "3"
    if at_stage_3 and accelerate.get(path) in (None, False):
        fix = remedy("set zero3_save_16bit_model: true", {path: True})
        yield violation("ZeRO stage 3 cannot save its weights in one piece without zero3_save_16bit_model", fix)


@rule("TW438", level=Level.HINT, field="deepspeed_config.gradient_clipping")
def clipping_is_said(accelerate: Accelerate) -> Violations:
    """Under DeepSpeed, an accelerate file should set gradient_clipping; the default is 1.0.

    Without it: the engine clips at 1.0, even if you answered no in the questionnaire; the value that the script
    passes to `accelerator.clip_grad_norm_` is ignored.
    Why: accelerate replaces a missing value with 1.0.
    Instead: set the norm you want, or gradient_clipping: .inf for no clipping (0.0 is dropped, see TW440).
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/2791
    """
    if accelerate.block_decides and accelerate.get(_CLIPPING) is None:
        yield violation(
            "gradient_clipping is not set; gradients are clipped at 1.0",
            remedy("write gradient_clipping: 1.0 to keep this, or .inf to disable clipping", {_CLIPPING: 1.0}),
            where=_BLOCK if accelerate.has(_BLOCK) else "distributed_type",
        )


# docs/decisions/deepspeed.md: In an accelerate file, `.inf` turns gradient clipping off
@rule("TW440", level=Level.WARNING, field="deepspeed_config.gradient_clipping")
def no_clipping_is_said_by_infinity(accelerate: Accelerate) -> Violations:
    """To disable clipping in an accelerate file, set gradient_clipping: .inf, not 0.0.

    Without it: accelerate silently drops the 0.0, and DeepSpeed 0.19 clips at its default of 1.0.
    Why: accelerate passes the value on only `if self.gradient_clipping`, which is false for zero; in DeepSpeed's
    own file, 0.0 does disable clipping.
    Instead: set gradient_clipping: .inf, which no norm exceeds; or use a DeepSpeed file with 0.0.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8: the engine's `gradient_clipping()` is 1.0
    """
    value = accelerate.get(_CLIPPING)
    zero = value is not None and not isinstance(value, bool) and _is_number(value) and float(value) == 0
    if zero and accelerate.block_decides:
        fix = remedy("write .inf to disable clipping, or the norm you want", {_CLIPPING: math.inf})
        yield violation("accelerate drops gradient_clipping {value}; DeepSpeed then clips at its default, 1.0", fix)
    elif accelerate.block_decides and type(value) in (int, float) and value < 0:
        yield violation("gradient_clipping is {value}: gradients are not clipped", remedy("write the norm, or .inf"))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
