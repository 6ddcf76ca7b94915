"""DeepSpeed inside an accelerate file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from trainwiz.config import Accelerate
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_BLOCK = "deepspeed_config"
_IN_THE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)


@rule("TW331", level=Level.ERROR, field="deepspeed_config.deepspeed_config_file")
def a_deepspeed_file_stands_alone(accelerate: Accelerate) -> Iterator[Violation]:
    """Beside deepspeed_config_file stands nothing that this file decides, mixed_precision included.

    Without it: on every rank, after the imports: `When using deepspeed_config_file, the following accelerate config
    variables will be ignored`, and the launch stops.
    Why: accelerate refuses to guess which of two values is meant.
    Instead: the values in DeepSpeed's file; zero3_init_flag may stay here.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/2210
    """
    if not accelerate.deepspeed_file:
        return
    paths = [f"{_BLOCK}.{key}" for key in _IN_THE_FILE if accelerate.has(f"{_BLOCK}.{key}")]
    if accelerate.get("mixed_precision") is not None:
        paths.append("mixed_precision")
    for path in paths:
        yield accelerate.wrong(
            path,
            say("{key} stands beside deepspeed_config_file, and accelerate stops", key=path.rpartition(".")[2]),
            remedy("say it in {file}, and delete it here", {path: None}, file=accelerate.deepspeed_file),
        )


@rule("TW332", level=Level.ERROR, field="deepspeed_config.deepspeed_config_file")
def the_deepspeed_file_exists(accelerate: Accelerate) -> Iterator[Violation]:
    """The file that deepspeed_config_file names is there.

    Without it: on every rank, after the imports: `Expected a string path to an existing deepspeed config, or a
    dictionary, or a base64 encoded string`.
    Why: what is no file is taken for base64. The path counts from the folder where the launch is typed.
    Instead: a path from there, or an absolute one.
    Source: seen with accelerate 1.15.0
    """
    path = accelerate.deepspeed_file
    if path and accelerate.files.get(path) is None:
        yield accelerate.wrong(
            f"{_BLOCK}.deepspeed_config_file",
            say("{file} is neither here nor beside this file", file=path),
            remedy("write its path as seen from where you launch"),
        )


@rule("TW333", level=Level.ERROR, field="deepspeed_config.zero_stage")
def deepspeed_values_are_legal(accelerate: Accelerate) -> Iterator[Violation]:
    """zero_stage is 0 to 3, an offload device is none, cpu or nvme, accumulation and clipping are numbers.

    Without it: pydantic's ValidationError deep in the log of every rank, after the model is built; `could not convert
    string to float: 'true'` for a clipping of yes.
    Why: accelerate passes the values on unseen.
    Instead: one of the values that the finding lists.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    if accelerate.kind != "DEEPSPEED":
        return
    stage = accelerate.get(f"{_BLOCK}.zero_stage")
    if stage is not None and str(stage) not in ("0", "1", "2", "3"):
        yield accelerate.wrong(f"{_BLOCK}.zero_stage", say("zero_stage is {stage}; it runs from 0 to 3", stage=stage))
    for key in ("offload_optimizer_device", "offload_param_device"):
        value = accelerate.get(f"{_BLOCK}.{key}")
        if value is not None and str(value).lower() not in ("none", "cpu", "nvme"):
            yield accelerate.wrong(
                f"{_BLOCK}.{key}",
                say(
                    "{key} is {value}; it may be none, cpu or nvme",
                    key=key,
                    value=accelerate.document.raw(f"{_BLOCK}.{key}"),
                ),
                remedy("write cpu, or none", {f"{_BLOCK}.{key}": "none" if value is False else "cpu"}),
            )
    for key in ("gradient_accumulation_steps", "gradient_clipping"):
        value = accelerate.get(f"{_BLOCK}.{key}")
        if isinstance(value, bool) or (isinstance(value, str) and value != "auto" and not _is_number(value)):
            yield accelerate.wrong(
                f"{_BLOCK}.{key}",
                say(
                    "{key} is {value}; it is a number, or auto",
                    key=key,
                    value=accelerate.document.raw(f"{_BLOCK}.{key}"),
                ),
                remedy("write a norm like 1.0, or .inf for none", {f"{_BLOCK}.{key}": math.inf})
                if value is False and key == "gradient_clipping"
                else None,
            )


@rule("TW334", level=Level.ERROR, field="deepspeed_config.offload_optimizer_nvme_path")
def nvme_goes_through_a_deepspeed_file(accelerate: Accelerate) -> Iterator[Violation]:
    """At ZeRO stage 3, offload to nvme cannot be said in an accelerate file.

    Without it: offload_optimizer_nvme_path and offload_param_nvme_path never reach DeepSpeed, which takes `none` for
    the folder and swaps into ./none.
    Why: the launcher sets no variable for them; the plugin reads ones that nobody sets.
    Instead: a DeepSpeed file with nvme_path, named by deepspeed_config_file.
    Source: seen with accelerate 1.15.0: the launch environment stays the same
    """
    at_stage_3 = str(accelerate.get(f"{_BLOCK}.zero_stage", 2)) == "3"
    for part in ("optimizer", "param") if at_stage_3 else ():
        key = f"{_BLOCK}.offload_{part}_device"
        if accelerate.kind == "DEEPSPEED" and str(accelerate.get(key)).lower() == "nvme":
            yield accelerate.wrong(
                f"{_BLOCK}.offload_{part}_nvme_path" if accelerate.has(f"{_BLOCK}.offload_{part}_nvme_path") else key,
                say("the path for nvme never leaves an accelerate file; DeepSpeed would swap into ./none"),
                remedy(
                    "write it in a DeepSpeed file (zero_optimization.offload_{part}.nvme_path), and name "
                    "that by deepspeed_config_file",
                    part="optimizer" if part == "optimizer" else "param",
                ),
            )


@rule("TW335", level=Level.WARNING, field="deepspeed_config.zero_stage")
def some_keys_act_at_stage_3(accelerate: Accelerate) -> Iterator[Violation]:
    """offload_param_device, zero3_init_flag, zero3_save_16bit_model and nvme act at ZeRO stage 3, offload from 1 on.

    Without it: they are ignored; what was planned to fit does not. An optimizer that should go to nvme goes to host
    memory; at stage 0 one that should go to the CPU is DeepSpeed's CPUAdam, whose first step on a GPU's weights stops
    with `CPUAdam param is on cuda`.
    Why: below stage 3 every rank holds its whole weights, and only the stage 3 optimizer knows how to swap; at stage 0
    nothing is moved at all.
    Instead: zero_stage: 3, or no such key.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    stage = accelerate.get(f"{_BLOCK}.zero_stage", 2)
    if accelerate.kind != "DEEPSPEED" or accelerate.deepspeed_file or str(stage) not in ("0", "1", "2"):
        return
    for key in ("offload_param_device", "zero3_init_flag", "zero3_save_16bit_model"):
        path, value = f"{_BLOCK}.{key}", accelerate.get(f"{_BLOCK}.{key}")
        if value is True or str(value).lower() in ("cpu", "nvme", "true"):
            yield accelerate.wrong(
                path,
                say("{key} {value} does nothing at ZeRO stage {stage}", key=key, value=str(value).lower(), stage=stage),
                remedy("set zero_stage: 3, or delete it", {path: None}),
            )
    path = f"{_BLOCK}.offload_optimizer_device"
    if str(accelerate.get(path)).lower() == "nvme" and str(stage) != "0":
        yield accelerate.wrong(
            path,
            say("the optimizer goes to host memory, not to nvme, at ZeRO stage {stage}", stage=stage),
            remedy("set stage 3, or device cpu", {path: "cpu"}),
        )
    elif str(accelerate.get(path)).lower() in ("cpu", "nvme") and str(stage) == "0":
        yield accelerate.wrong(
            path,
            say("at ZeRO stage 0 the weights stay on the GPU, and DeepSpeed's CPUAdam stops there"),
            remedy("set stage 1 or higher, or device none", {path: "none"}),
        )


@rule("TW336", level=Level.WARNING, field="deepspeed_config.zero3_save_16bit_model")
def stage_3_can_save_its_weights(accelerate: Accelerate) -> Iterator[Violation]:
    """At ZeRO stage 3, zero3_save_16bit_model gathers the weights when they are saved.

    Without it: `Cannot get 16bit model weights because stage3_gather_16bit_weights_on_model_save in config is False`,
    at the first `get_state_dict` or `save_pretrained`: after the training.
    Why: each rank holds a part of every weight.
    Instead: zero3_save_16bit_model: true, or zero_to_fp32.py on the checkpoint afterwards.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    if (
        accelerate.kind != "DEEPSPEED"
        or accelerate.deepspeed_file
        or str(accelerate.get(f"{_BLOCK}.zero_stage")) != "3"
    ):
        return
    path = f"{_BLOCK}.zero3_save_16bit_model"
    if accelerate.get(path) in (None, False):
        yield accelerate.wrong(
            path,
            say("ZeRO stage 3 without zero3_save_16bit_model cannot save its weights in one piece"),
            remedy("set zero3_save_16bit_model: true", {path: True}),
        )


@rule("TW438", level=Level.HINT, field="deepspeed_config.gradient_clipping")
def clipping_is_said(accelerate: Accelerate) -> Iterator[Violation]:
    """Under DeepSpeed the gradient is clipped at 1.0 unless the file says otherwise.

    Without it: the engine clips at 1.0, also where the questionnaire was answered with no; what the script passes to
    `accelerator.clip_grad_norm_` is ignored.
    Why: accelerate fills a missing value with 1.0.
    Instead: the norm that is meant, or gradient_clipping: .inf for none (0.0 is dropped, TW440).
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/2791
    """
    path = f"{_BLOCK}.gradient_clipping"
    if accelerate.kind == "DEEPSPEED" and not accelerate.deepspeed_file and accelerate.get(path) is None:
        yield accelerate.wrong(
            _BLOCK if accelerate.has(_BLOCK) else "distributed_type",
            say("gradient_clipping is not given, so the gradient is clipped at 1.0"),
            remedy("write gradient_clipping: 1.0 if that is meant, .inf for none", {path: 1.0}),
        )


@rule("TW440", level=Level.WARNING, field="deepspeed_config.gradient_clipping")
def no_clipping_is_said_by_infinity(accelerate: Accelerate) -> Iterator[Violation]:
    """In an accelerate file, no clipping is gradient_clipping: .inf, and not 0.0.

    Without it: accelerate drops the 0.0 without a word, and DeepSpeed 0.19 clips at its default of 1.0.
    Why: the value is handed on only `if self.gradient_clipping`, and zero counts as nothing there; in DeepSpeed's own
    file 0.0 does switch clipping off.
    Instead: gradient_clipping: .inf, a norm that nothing exceeds; or a DeepSpeed file with 0.0.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8: the engine's `gradient_clipping()` is 1.0
    """
    path = f"{_BLOCK}.gradient_clipping"
    value = accelerate.get(path)
    zero = value is not None and not isinstance(value, bool) and _is_number(value) and float(value) == 0
    if zero and accelerate.kind == "DEEPSPEED" and not accelerate.deepspeed_file:
        yield accelerate.wrong(
            path,
            say(
                "accelerate drops gradient_clipping {value}, and DeepSpeed then clips at its default, 1.0",
                value=accelerate.document.raw(path),
            ),
            remedy("write .inf for no clipping, or the norm that is meant", {path: math.inf}),
        )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
