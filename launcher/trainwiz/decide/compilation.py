"""Whether layers are compiled: if a training on GPUs is long enough to make up for the cost at each start."""

from __future__ import annotations

from dataclasses import replace

from trainwiz import quantities
from trainwiz.decide.decision import Decision
from trainwiz.decide.length import updates_of
from trainwiz.decide.memory import work_of
from trainwiz.engines.liger import FAMILIES, OLDEST_CAPABILITY, is_recent
from trainwiz.estimate.datasheets import GpuModel
from trainwiz.estimate.gpus import gpu_of
from trainwiz.estimate.speed import pace
from trainwiz.message import say

_WORTHWHILE_SECONDS = 600
"""Shorter trainings are not compiled."""
_VOLTA = (7, 0)
"""The oldest compute capability that Triton compiles for."""


# docs/decisions/loop.md: Trainings of more than ten minutes on GPUs are compiled
def decide_compilation(d: Decision) -> None:
    """Compile where it is known to work and the forecast is long enough."""
    gpu = _gpu(d)
    plain, compiled = (_seconds(d, gpu, compiled=compiled) if gpu else None for compiled in (False, True))
    if gpu is None or plain is None or compiled is None:
        d.settle_default("model.compile", say("compilation takes a minute or more at each start"))
    elif plain < _WORTHWHILE_SECONDS:
        short = say(
            "the training takes about {time} on {gpu}; compilation takes a minute or more at each start",
            time=quantities.clock_time(plain),
            gpu=gpu.name,
        )
        d.settle("model.compile", False, short)
    else:
        why = say(
            "the forecast for {gpu} is {compiled} instead of {plain}; compilation takes a minute or more at each start",
            gpu=gpu.name,
            compiled=quantities.clock_time(compiled),
            plain=quantities.clock_time(plain),
        )
        d.settle("model.compile", True, why)


# docs/decisions/loop.md: liger-kernel's layers where nothing is compiled, and our own loss
def decide_kernels(d: Decision) -> None:
    """liger-kernel where it is installed, its layers are known to be right, and the compiler does not fuse them."""
    key, family = "model.kernels", d.transformer.model_type if d.transformer else None
    package = d.machine.interpreter.packages.get("liger-kernel") if d.machine and d.machine.interpreter else None
    if d.values["model.compile"]:
        d.settle_default(key, say("the compiler fuses the layers"))
    elif not (
        package and is_recent(package) and d.task.generative and d.values["engine"] == "accelerate" and _runs_triton(d)
    ):
        usual = say("liger-kernel needs its package, a C++ compiler, a GPU of 2020 or later, and a language model")
        d.settle_default(key, usual)
    elif family not in FAMILIES:
        d.settle_default(key, say("liger-kernel has not been tested with this kind of model"))
    else:
        d.settle(key, "liger", say("liger-kernel {version} is installed, and nothing is compiled", version=package))


def _runs_triton(d: Decision) -> bool:
    """Whether it computes on GPUs that liger-kernel is made for, with a compiler for what starts its kernels."""
    if d.machine is None or (d.machine.inspected and d.machine.toolchain.cxx is None):
        return False
    known = [gpu.compute_capability for gpu in d.machine.gpus if gpu.compute_capability]
    return d.values["machine.device"] == "cuda" and bool(known) and min(known) >= OLDEST_CAPABILITY


def _gpu(d: Decision) -> GpuModel | None:
    """The GPU that is trained on, if compilation is known to work there and with this plan."""
    if d.on_cpu or d.machine is None or not d.machine.gpus or d.values["engine"] != "accelerate":
        return None
    old = any(gpu.compute_capability is not None and gpu.compute_capability < _VOLTA for gpu in d.machine.gpus)
    no_compiler = d.machine.inspected and d.machine.toolchain.cxx is None
    # ZeRO 3 makes it compile each layer again and again; bitsandbytes' products break its graphs.
    # The compiler has no graph of copies to the host.
    offloads = d.values["model.activation_checkpointing"] == "offload"
    unfit = (
        offloads
        or (d.strategy.uses_deepspeed and d.strategy.partitions_weights)
        or d.values["model.adapter"] == "qlora"
    )
    return None if old or no_compiler or unfit or not d.task.generative else gpu_of(d.machine)


def _seconds(d: Decision, gpu: GpuModel, *, compiled: bool) -> float | None:
    """The forecast of the training; None where model or length are unknown."""
    updates = updates_of(d)
    if d.parameters is None or updates is None:
        return None
    speed = pace(
        d.strategy,
        replace(work_of(d), samples=d.values["batch.per_device_batch_size"]),
        gpu,
        accumulation=d.values["batch.gradient_accumulation_steps"],
        ranks_per_machine=max(1, d.values["machine.num_processes"] // d.values["machine.num_machines"]),
        compiled=compiled,
    )
    return updates * speed.seconds if speed else None
