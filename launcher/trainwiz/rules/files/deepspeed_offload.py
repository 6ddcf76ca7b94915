"""Offload in DeepSpeed's own file: what its stage allows, and what it needs beside itself."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.config import DeepSpeed
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule


@rule("TW345", level=Level.WARNING, field="zero_optimization.offload_param")
def offload_fits_its_stage(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Parameter offload and nvme need ZeRO stage 3; optimizer offload to the CPU needs stage 1 or higher.

    Without it: below stage 3, offload_param is ignored, and an optimizer meant for nvme stays in host memory, both
    without any message. At stage 0, the optimizer becomes DeepSpeed's CPUAdam, which fails in its first step on GPU
    weights with `CPUAdam param is on cuda`.
    Why: below stage 3, each rank needs its full weights, and only the stage 3 optimizer supports swapping. Stage 0
    moves nothing at all.
    Instead: use stage 3, or offload only the optimizer to cpu at stage 1 or 2.
    Source: seen with DeepSpeed 0.19.8 at stages 0, 1 and 2
    """
    stage = deepspeed.stage
    if stage is None or stage == 3:
        return
    device = deepspeed.get("zero_optimization.offload_param.device", "none")
    if device in ("cpu", "nvme"):
        yield deepspeed.wrong(
            "zero_optimization.offload_param",
            say("offload_param {device} is ignored at ZeRO stage {stage}", device=device, stage=stage),
            remedy("use stage 3, or delete the block", {"zero_optimization.offload_param": None}),
        )
    if deepspeed.get("zero_optimization.offload_optimizer.device") == "nvme" and stage:
        path = "zero_optimization.offload_optimizer.device"
        yield deepspeed.wrong(
            path,
            say("at ZeRO stage {stage}, the optimizer is offloaded to host memory, not to nvme", stage=stage),
            remedy("use stage 3, or set the device to cpu", {path: "cpu"}),
        )
    away = deepspeed.get("zero_optimization.offload_optimizer.device")
    if stage == 0 and away in ("cpu", "nvme") and deepspeed.get("zero_force_ds_cpu_optimizer", True) is not False:
        yield deepspeed.wrong(
            "zero_optimization.offload_optimizer",
            say("at ZeRO stage 0, the weights stay on the GPU, and DeepSpeed's CPUAdam stops with an error"),
            remedy("use stage 1 or higher, or delete the block", {"zero_optimization.offload_optimizer": None}),
        )


@rule("TW346", level=Level.ERROR, field="zero_optimization.offload_optimizer.ratio")
def partial_offload_needs_stage_3(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """offload_optimizer.ratio must be between 0 and 1; a value below 1 needs ZeRO stage 3.

    Without it: every rank fails with `Partial offloading only supported for ZeRO Stage 3` after the model is built.
    Why: only stage 3 splits the optimizer by parameters.
    Instead: set ratio to 1.0, or use stage 3.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "zero_optimization.offload_optimizer.ratio"
    ratio = deepspeed.get(path)
    if not isinstance(ratio, int | float) or isinstance(ratio, bool):
        return
    if not 0 <= ratio <= 1:
        yield deepspeed.wrong(path, say("ratio is {ratio}; it must be between 0 and 1", ratio=ratio))
    elif ratio < 1 and deepspeed.stage in (0, 1, 2):
        yield deepspeed.wrong(
            path,
            say("ratio {ratio} needs ZeRO stage 3; the stage is {stage}", ratio=ratio, stage=deepspeed.stage),
            remedy("set ratio to 1.0, or use stage 3", {path: 1.0}),
        )


@rule("TW347", level=Level.ERROR, field="zero_optimization.offload_optimizer.nvme_path")
def nvme_has_a_folder(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Offload to nvme needs nvme_path, the folder to swap to.

    Without it: after the model is built, DeepSpeed fails: for parameters with `"nvme_path" in DeepSpeed Config
    cannot be None`; for the optimizer, deep inside DeepSpeed, with `TypeError: expected str, bytes or os.PathLike
    object, not NoneType`.
    Why: the path has no default.
    Instead: set nvme_path to a folder on a fast local disk.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/docs/config-json/#parameter-offloading
    """
    for part in ("offload_optimizer", "offload_param"):
        block = f"zero_optimization.{part}"
        wanted = deepspeed.get(f"{block}.device") == "nvme" and deepspeed.stage == 3
        if wanted and not deepspeed.get(f"{block}.nvme_path"):
            yield deepspeed.wrong(
                f"{block}.device",
                say("{part} uses nvme, but nvme_path is not set", part=part),
                remedy("add nvme_path: a folder on a local NVMe disk, such as /local_nvme"),
            )
