"""Defaults that the machine decides: device, ranks, precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainwiz import quantities, strategies
from trainwiz.decide.decision import Decision
from trainwiz.decide.host_memory import best_way, usual_ranks
from trainwiz.machine import Gpu, Machine
from trainwiz.message import Message, say

_BF16_SINCE = (8, 0)
_FP16_SINCE = (7, 0)
"""Tensor cores: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications."""


def decide_machine(d: Decision) -> None:
    """Device and world from what was found."""
    machine = d.machine
    gpus = machine.gpus if machine else ()
    if gpus:
        d.settle("machine.device", "cuda", say("{gpus}", gpus=gpu_names(gpus)), "found")
    elif machine:
        d.settle("machine.device", "cpu", say("no GPU"), "found")
    else:
        d.settle("machine.device", "cpu", say("no machine was inspected"))
    machines = d.settle_default("machine.num_machines", say("this machine only"))
    ranks, reason, found = _ranks(d, machine)
    d.settle("machine.num_processes", ranks * machines, reason, "found" if found else "default")
    d.settle_default("machine.main_process_ip", say("only needed for several machines"))
    d.settle_default("machine.main_process_port", say("same port as torchrun"))
    d.settle_default("machine.numa_binding", say("only when state or activations are kept in host memory"))


def decide_precision(d: Decision) -> None:
    """bf16 from Ampere on, fp16 on Volta and Turing, fp32 on a CPU and where the GPU is unknown."""
    d.settle_default("precision.weights", say("small updates are rounded away in bf16"))
    key = "precision.mixed_precision"
    kind = d.answers.get("strategy.kind")
    if kind and (given := strategies.chosen(kind, d.answers.get("strategy.zero_stage")).default_precision):
        d.settle(key, *given)
        return
    if d.on_cpu:
        d.settle(key, *_cpu_precision(d))
        return
    gpus = d.machine.gpus if d.machine else ()
    known = [(g.compute_capability, g) for g in gpus if g.compute_capability]
    if d.values["machine.device"] != "cuda" or len(known) < len(gpus) or not known:
        d.settle(key, "no", say("the capabilities of this device are unknown"))
        return
    capability, oldest = min(known, key=lambda pair: pair[0])
    shown = {"gpu": short_name(oldest), "capability": f"{capability[0]}.{capability[1]}"}
    if capability >= _BF16_SINCE:
        d.settle(key, "bf16", say("bf16 on {gpu} (compute capability {capability})", **shown), "found")
    elif capability >= _FP16_SINCE:
        d.settle(key, "fp16", say("fp16 instead of bf16 on {gpu} (compute capability {capability})", **shown), "found")
    else:
        d.settle(key, "no", say("no tensor cores on {gpu} (compute capability {capability})", **shown), "found")


def gpu_names(gpus: Sequence[Gpu]) -> str:
    """`4 × A100-SXM4-80GB`, or several such where they differ."""
    return ", ".join(f"{n} × {name}" for name, n in Counter(short_name(g) for g in gpus).items())


def short_name(gpu: Gpu) -> str:
    """The GPU's name without its maker."""
    return gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _ranks(d: Decision, machine: Machine | None) -> tuple[int, Message, bool]:
    kind = d.answers.get("strategy.kind")
    if kind and strategies.chosen(kind, None).one_rank:
        return 1, say("strategy single uses one rank"), False
    if machine is None:
        return 1, say("no machine was inspected"), False
    if d.on_cpu:
        return _cpu_ranks(d, machine)
    if machine.gpus and d.values["machine.device"] == "cuda":
        return len(machine.gpus), say("{gpus}", gpus=gpu_names(machine.gpus)), True
    return 1, say("no GPU found"), False


def _cpu_ranks(d: Decision, machine: Machine) -> tuple[int, Message, bool]:
    usual, way = usual_ranks(d), best_way(d)
    if way is None or way.ranks == usual:
        return usual, say("usable cores: {cores}", cores=machine.cpu.usable_cores), True
    return (
        way.ranks,
        say(
            "{size} for each rank; this machine has {memory}",
            size=quantities.size(way.bytes_per_rank),
            memory=quantities.size(machine.memory.total_bytes),
        ),
        True,
    )


def _cpu_precision(d: Decision) -> tuple[str, Message]:
    way = best_way(d)
    if way is None or way.precision == "no":
        return "no", say("fp32 is fastest on a CPU")
    return way.precision, say("frozen weights take 2 bytes each instead of 4; otherwise they do not fit in host memory")
