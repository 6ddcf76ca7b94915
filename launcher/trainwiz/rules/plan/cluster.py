"""The ranks of one machine, and the devices they run on."""

from __future__ import annotations

from trainwiz import vocabulary
from trainwiz.estimate import Estimate
from trainwiz.finding import Fix, Level, Violation, Violations, remedy, setting, violation
from trainwiz.machine import Gpu, Machine
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.quantities import gib
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import used_gpus

BUSY_BYTES = 1 << 30
"""A desktop or a monitoring tool holds some hundred MiB of a GPU; a training, at least this much."""


@rule("TW601", level=Level.ERROR, field="machine.num_processes")
def every_rank_has_a_gpu(plan: Plan, machine: Machine) -> Violations:
    """Each rank must have its own GPU.

    Without it: accelerate wraps around, and two ranks share a GPU: NCCL stops with `Duplicate GPU detected`, or
    both run out of memory; other scripts stop with `invalid device ordinal`.
    Why: machine.num_processes counts the ranks on all machines; the value often comes from another machine.
    Instead: use as many ranks as GPUs; the batch equation is solved again, and the real batch stays the same.
    Source: `PartialState.set_device` in accelerate 1.15 (local rank modulo device count), seen with the number of
    GPUs faked; src/init.cc of NCCL
    """
    ranks, there = plan.machine.ranks_per_machine, len(machine.gpus)
    if plan.machine.device != "cuda" or ranks <= there or not (machine.gpus or machine.driver_version):
        return
    if machine.hidden_gpus:
        message = say(
            "the plan has {ranks} ranks on each machine, but this one shows {there} GPUs, and CUDA_VISIBLE_DEVICES "
            "hides {hidden}",
            ranks=ranks,
            there=there,
            hidden=machine.hidden_gpus,
        )
    else:
        message = say(
            "the plan has {ranks} ranks on each machine, but this one has {there} GPUs", ranks=ranks, there=there
        )
    world = max(1, there) * plan.machine.num_machines
    yield Violation(message, setting("machine.num_processes", world))


@rule("TW602", level=Level.WARNING, field="machine.num_processes")
def gpus_are_free(plan: Plan, machine: Machine) -> Violations:
    """No other process should use the GPUs in the plan.

    Without it: `CUDA out of memory` although the model fits, or half the speed: all ranks wait for the slowest.
    Why: another training, a notebook kernel that was never closed, or ranks left over from a run that was killed.
    Instead: end that process if it is yours, or select other GPUs with CUDA_VISIBLE_DEVICES.
    Source: https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetComputeRunningProcesses)
    """
    for gpu in used_gpus(plan, machine) if machine.probed else ():
        if gpu.used_bytes >= BUSY_BYTES:
            yield Violation(_occupied(gpu), Fix(message=_elsewhere(machine, plan.machine.ranks_per_machine)))


@rule("TW603", level=Level.ERROR, field="machine.num_processes")
def free_memory_holds_the_state(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """The free memory on each GPU must hold the model's training state.

    Without it: `CUDA out of memory`, in the first optimizer step at the latest. The message mentions the other
    process only in the middle, `Process … has … memory in use`; older torch does not mention it.
    Why: another process fills a GPU that is large enough by itself.
    Instead: end that process if it is yours, or select other GPUs with CUDA_VISIBLE_DEVICES.
    Source: c10/cuda/CUDACachingAllocator.cpp of torch (what it reports when memory runs out);
    https://docs.nvidia.com/deploy/nvml-api/
    """
    need = estimate.device_bytes_per_rank
    for gpu in used_gpus(plan, machine) if machine.probed else ():
        if gpu.free_bytes < need <= gpu.memory_bytes:
            yield violation(
                "GPU {index} ({name}) has {free} of {all} GiB free; a rank's model state needs {need} GiB",
                Fix(message=_elsewhere(machine, plan.machine.ranks_per_machine)),
                index=gpu.index,
                name=gpu.name,
                free=gib(gpu.free_bytes),
                all=gib(gpu.memory_bytes),
                need=gib(need),
            )


@rule("TW604", level=Level.WARNING, field="machine.num_processes")
def mig_slices_do_not_talk(plan: Plan, machine: Machine) -> Violations:
    """Multiple ranks need whole GPUs, not MIG slices.

    Without it: each process sees one slice at most, and NCCL stops with `Duplicate GPU detected`, because it treats
    all slices of a GPU as one device. Newer NCCL (2.31) can connect them with `NCCL_MULTI_RANK_GPU_ENABLE=1`, but
    this is experimental and slow.
    Why: MIG splits a GPU into instances that are isolated from each other, including peer-to-peer access.
    Instead: use one rank on one slice, or a GPU with MIG disabled.
    Source: https://github.com/NVIDIA/nccl/issues/1716 and https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    (application considerations)
    """
    ranks = plan.machine.ranks_per_machine
    sliced = [gpu for gpu in used_gpus(plan, machine) if gpu.mig]
    if ranks > 1 and sliced:
        yield violation(
            "GPU {index} ({name}) is split into MIG slices, but the plan has {ranks} ranks on each machine",
            remedy("use GPUs without MIG, or set machine.num_processes to 1"),
            index=sliced[0].index,
            name=sliced[0].name,
            ranks=ranks,
        )


@rule("TW605", level=Level.WARNING, field="machine.num_processes")
def every_cpu_rank_has_a_core(plan: Plan, machine: Machine) -> Violations:
    """CPU ranks should not outnumber the usable cores.

    Without it: the ranks take turns, and collectives wait for those not running: this is slower than fewer ranks.
    Why: the container's CPU quota counts, not the number of cores of the host.
    Instead: use at most one rank per core; the threads of the ranks share the remaining cores.
    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max)
    """
    ranks, cores = plan.machine.ranks_per_machine, machine.cpu.usable_cores
    if plan.machine.device == "cpu" and ranks > cores:
        world = cores * plan.machine.num_machines
        fix = setting("machine.num_processes", world)
        yield violation("{ranks} CPU ranks share {cores} usable cores", fix, ranks=ranks, cores=cores)


@rule("TW606", level=Level.WARNING, field="machine.device")
def device_is_proven(plan: Plan) -> Violations:
    """The device should be one that trainwiz has been tested on.

    Without it: the files follow accelerate's documentation, but nobody has seen them work.
    Why: npu, xpu, mlu and mps were not available for testing.
    Instead: try a short run first (schedule.n_steps 10), and check that the device is really used.
    Source: `PartialState.default_device` in accelerate 1.15, which names these devices
    """
    if plan.machine.device in vocabulary.UNPROVEN_DEVICES:
        fix = remedy("try a short run first: schedule.n_steps 10")
        yield violation("machine.device {device} is untested: trainwiz has never been run on it", fix)


def _occupied(gpu: Gpu) -> Message:
    if not gpu.processes:
        return say(
            "GPU {index} ({name}): other processes use {used} of {all} GiB",
            index=gpu.index,
            name=gpu.name,
            used=gib(gpu.used_bytes),
            all=gib(gpu.memory_bytes),
        )
    largest = max(gpu.processes, key=lambda p: p.used_bytes or 0)
    return say(
        "GPU {index} ({name}): {used} of {all} GiB are used by process {pid} {process}",
        index=gpu.index,
        name=gpu.name,
        used=gib(gpu.used_bytes),
        all=gib(gpu.memory_bytes),
        pid=largest.pid,
        process=f"({largest.name})" if largest.name else "",
    )


def _elsewhere(machine: Machine, ranks: int) -> Message:
    free = [str(gpu.index) for gpu in machine.gpus if gpu.used_bytes < BUSY_BYTES]
    if len(free) >= ranks:
        return say("use free GPUs: CUDA_VISIBLE_DEVICES={gpus}", gpus=",".join(free[:ranks]))
    return say(
        "end the process if it is yours, or wait; free GPUs: {free}, needed: {ranks}", free=len(free), ranks=ranks
    )
