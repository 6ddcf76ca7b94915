"""Offload in DeepSpeed's own file: what its stage allows, and what it needs beside itself."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.config import DeepSpeed
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule


@rule("TW345", level=Level.WARNING, field="zero_optimization.offload_param")
def offload_fits_its_stage(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Parameters are offloaded at stage 3 only; the optimizer goes to nvme at stage 3 only, to the CPU from stage 1 on.

    Without it: offload_param below stage 3 is ignored; an optimizer that should go to nvme goes to host memory.
    Neither says a word. At stage 0 the optimizer becomes DeepSpeed's CPUAdam, whose first step on a GPU's weights stops
    with `CPUAdam param is on cuda`.
    Why: below stage 3 each rank needs its whole weights, and only the stage 3 optimizer knows how to swap; at stage 0
    nothing is moved at all.
    Instead: stage 3, or offload the optimizer to cpu alone, at stage 1 or 2.
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
            remedy("set stage 3, or delete the block", {"zero_optimization.offload_param": None}),
        )
    if deepspeed.get("zero_optimization.offload_optimizer.device") == "nvme" and stage:
        path = "zero_optimization.offload_optimizer.device"
        yield deepspeed.wrong(
            path,
            say("the optimizer goes to host memory, not to nvme, at ZeRO stage {stage}", stage=stage),
            remedy("set stage 3, or device cpu", {path: "cpu"}),
        )
    away = deepspeed.get("zero_optimization.offload_optimizer.device")
    if stage == 0 and away in ("cpu", "nvme") and deepspeed.get("zero_force_ds_cpu_optimizer", True) is not False:
        yield deepspeed.wrong(
            "zero_optimization.offload_optimizer",
            say("at ZeRO stage 0 the weights stay on the GPU, and DeepSpeed's CPUAdam stops there"),
            remedy("set stage 1 or higher, or delete the block", {"zero_optimization.offload_optimizer": None}),
        )


@rule("TW346", level=Level.ERROR, field="zero_optimization.offload_optimizer.ratio")
def partial_offload_needs_stage_3(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """offload_optimizer.ratio below 1 needs stage 3, and lies between 0 and 1.

    Without it: `Partial offloading only supported for ZeRO Stage 3` on every rank, after the model is built.
    Why: only stage 3 splits the optimizer by parameters.
    Instead: ratio 1.0, or stage 3.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "zero_optimization.offload_optimizer.ratio"
    ratio = deepspeed.get(path)
    if not isinstance(ratio, int | float) or isinstance(ratio, bool):
        return
    if not 0 <= ratio <= 1:
        yield deepspeed.wrong(path, say("ratio is {ratio}; it lies between 0 and 1", ratio=ratio))
    elif ratio < 1 and deepspeed.stage in (0, 1, 2):
        yield deepspeed.wrong(
            path,
            say("ratio {ratio} needs ZeRO stage 3; this is stage {stage}", ratio=ratio, stage=deepspeed.stage),
            remedy("set ratio 1.0, or stage 3", {path: 1.0}),
        )


@rule("TW347", level=Level.ERROR, field="zero_optimization.offload_optimizer.nvme_path")
def nvme_has_a_folder(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Offload to nvme names the folder to swap into.

    Without it: after the model is built, for parameters `"nvme_path" in DeepSpeed Config cannot be None`; for the
    optimizer, deep inside DeepSpeed, `TypeError: expected str, bytes or os.PathLike object, not NoneType`.
    Why: there is no default place.
    Instead: nvme_path: a folder on a fast local disk.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/docs/config-json/#parameter-offloading
    """
    for part in ("offload_optimizer", "offload_param"):
        block = f"zero_optimization.{part}"
        wanted = deepspeed.get(f"{block}.device") == "nvme" and deepspeed.stage == 3
        if wanted and not deepspeed.get(f"{block}.nvme_path"):
            yield deepspeed.wrong(
                f"{block}.device",
                say("{part} goes to nvme, and there is no nvme_path", part=part),
                remedy("add nvme_path: a folder on a local NVMe disk, like /local_nvme"),
            )
