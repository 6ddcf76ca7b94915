"""GPUs, the processes that use them, and whether driver, CUDA and torch fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trainwiz.checkup.line import Found, Line, joined, line
from trainwiz.finding import Level
from trainwiz.machine import Gpu, Interpreter, Machine
from trainwiz.message import Message, say
from trainwiz.quantities import size
from trainwiz.rules.versions import parts

FILLED = 0.1
"""Share of a GPU's memory that is normally in use: the driver reserves 1–3 %, a desktop a few hundred MiB."""

P2P_DRIVER = "550.40.07"
"""The first driver with which several RTX 40 work together; below it accelerate requires that P2P and IB are off.

Source: `check_cuda_p2p_ib_support` in accelerate/utils/environment.py (1.15).
"""


def lines(machine: Machine) -> Iterator[Line]:
    """GPUs, driver, the agreement with torch, precision and collectives."""
    yield line("gpus", say("GPUs"), _gpus(machine))
    for gpu in machine.gpus:
        if _is_filled(gpu):
            yield line(f"gpu{gpu.index}", say("GPU {index}", index=gpu.index), _filled(machine, gpu))
    if len(_kinds(machine.gpus)) > 1:
        yield line("gpu_kinds", say("mixed GPUs"), _mixed())
    if any(gpu.mig for gpu in machine.gpus):
        yield line("mig", "MIG", _partitioned(machine))
    if _needs_newer_driver(machine):
        yield line("p2p", "P2P", _no_peers(machine))
    if driver := machine.driver_version:
        cuda = machine.cuda_driver_version or "?"
        supports = say("{driver}, supports up to CUDA {cuda}", driver=driver, cuda=cuda)
        yield line("driver", say("driver"), Found(supports))
    interpreter = machine.interpreter
    if interpreter is None or interpreter.error or not interpreter.version("torch"):
        return
    if machine.gpus:
        yield line("agreement", say("torch and GPUs"), _agreement(machine, interpreter))
    yield line("precision", say("precision"), _precision(interpreter))
    yield line("collectives", say("collectives"), _collectives(machine, interpreter))


def _gpus(machine: Machine) -> Found:
    failed = next((p.detail for p in machine.problems if p.probe == "gpus"), None)
    if failed and not machine.gpus:
        fix = say("run: nvidia-smi; restart the machine after a driver update; in a container, use --gpus all")
        return Found(say("NVIDIA's library failed: {problem}", problem=failed), Level.ERROR, fix)
    if not machine.gpus and machine.hidden_gpus:
        found = say("none visible; hidden by CUDA_VISIBLE_DEVICES: {n}", n=machine.hidden_gpus)
        return Found(found, Level.WARNING, say("unset CUDA_VISIBLE_DEVICES"))
    if not machine.gpus:
        return Found(say("none; training runs on CPU ranks"))
    kinds = joined(_kind(gpu, n) for gpu, n in _kinds(machine.gpus))
    if machine.hidden_gpus:
        kinds = say("{found}; hidden by CUDA_VISIBLE_DEVICES: {n}", found=kinds, n=machine.hidden_gpus)
    if failed:
        return Found(say("{found}; error: {problem}", found=kinds, problem=failed), Level.ERROR)
    return Found(kinds)


def _kinds(gpus: tuple[Gpu, ...]) -> list[tuple[Gpu, int]]:
    counts = Counter((gpu.name, gpu.memory_bytes, gpu.compute_capability) for gpu in gpus)
    first = {(gpu.name, gpu.memory_bytes, gpu.compute_capability): gpu for gpu in reversed(gpus)}
    return [(first[kind], n) for kind, n in counts.items()]


def _kind(gpu: Gpu, n: int) -> Message:
    memory = size(gpu.memory_bytes)
    if gpu.compute_capability is None:
        return say("{n} × {name} ({memory})", n=n, name=gpu.name, memory=memory)
    capability = ".".join(map(str, gpu.compute_capability))
    return say(
        "{n} × {name} ({memory}, compute capability {capability})",
        n=n,
        name=gpu.name,
        memory=memory,
        capability=capability,
    )


def _is_filled(gpu: Gpu) -> bool:
    return gpu.used_bytes > FILLED * gpu.memory_bytes


def _filled(machine: Machine, gpu: Gpu) -> Found:
    found = say("{used} of {total} in use", used=size(gpu.used_bytes), total=size(gpu.memory_bytes))
    fix = say("find the processes that use it: nvidia-smi")
    if gpu.processes:
        users = joined(
            say("{name} (pid {pid}, {used})", name=p.name or "?", pid=p.pid, used=size(p.used_bytes or 0))
            for p in gpu.processes
        )
        found = say("{found} by {users}", found=found, users=users)
    others = ",".join(str(g.index) for g in machine.gpus if not _is_filled(g))
    if others:
        fix = say("stop that process, or exclude this GPU: export CUDA_VISIBLE_DEVICES={others}", others=others)
    return Found(found, Level.WARNING, fix)


def _mixed() -> Found:
    found = say(
        "the slowest GPU limits the speed, the smallest one the memory; CUDA and nvidia-smi number the GPUs differently"
    )
    fix = say("export CUDA_DEVICE_ORDER=PCI_BUS_ID, and set CUDA_VISIBLE_DEVICES to GPUs of one model")
    return Found(found, Level.WARNING, fix)


def _partitioned(machine: Machine) -> Found:
    found = say(
        "partitioned GPUs: {gpus}; each process sees one partition, and NCCL cannot connect partitions",
        gpus=joined(str(gpu.index) for gpu in machine.gpus if gpu.mig),
    )
    return Found(found, Level.WARNING, say("train with one rank, or disable MIG: nvidia-smi -mig 0"))


def _needs_newer_driver(machine: Machine) -> bool:
    old = machine.driver_version is not None and parts(machine.driver_version) < parts(P2P_DRIVER)
    return old and len(machine.gpus) > 1 and any("RTX 40" in gpu.name for gpu in machine.gpus)


def _no_peers(machine: Machine) -> Found:
    found = say(
        "several RTX 40 GPUs with driver {driver}; below {wanted}, accelerate stops unless P2P and IB are disabled",
        driver=machine.driver_version,
        wanted=P2P_DRIVER,
    )
    fix = say("update the driver, or run: export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1")
    return Found(found, Level.WARNING, fix)


def _agreement(machine: Machine, interpreter: Interpreter) -> Found:
    problem, fix = _disagreement(machine, interpreter)
    if problem:
        return Found(problem, Level.ERROR, fix)
    seen, there = interpreter.torch_gpus, len(machine.gpus)
    if seen is None or seen >= there or any(gpu.mig for gpu in machine.gpus):
        return Found(say("GPUs visible to torch: {seen} of {there}; its kernels support them", seen=seen, there=there))
    fix = say(
        "check CUDA_VISIBLE_DEVICES, and run: {python} -c 'import torch; torch.cuda.init()'", python=interpreter.python
    )
    return Found(say("GPUs visible to torch: {seen} of {there}", seen=seen, there=there), Level.WARNING, fix)


def _disagreement(machine: Machine, interpreter: Interpreter) -> tuple[Message | None, Message | None]:
    install = say(
        "install the {build} build of torch for {python}; get the command from "
        "https://pytorch.org/get-started/locally/",
        python=interpreter.python,
        build=_build(machine.cuda_driver_version),
    )
    version, build, driver = interpreter.version("torch"), interpreter.cuda_build, machine.cuda_driver_version
    if build is None:
        if "rocm" in str(version):
            return None, None
        return say("GPUs found, but torch {version} was built without CUDA", version=version), install
    # Within a major version CUDA runs on older drivers: https://docs.nvidia.com/deploy/cuda-compatibility/
    if driver and parts(build)[:1] > parts(driver)[:1]:
        return say(
            "torch was built for CUDA {build}, but the driver supports only up to CUDA {driver}",
            build=build,
            driver=driver,
        ), install
    unfit = next((gpu for gpu in machine.gpus if not _fits(gpu, interpreter.arch_list)), None)
    if unfit and unfit.compute_capability:
        return say(
            "torch {version} has no kernels for {gpu} (compute capability {capability}), only for {known}",
            version=version,
            gpu=unfit.name,
            capability=".".join(map(str, unfit.compute_capability)),
            known=" ".join(interpreter.arch_list),
        ), install
    if not interpreter.torch_gpus:
        error = interpreter.cuda_error or say("no reason given")
        return say("torch sees no GPU: {error}", error=error), say(
            "for details, run: {python} -c 'import torch; torch.cuda.init()'", python=interpreter.python
        )
    return None, None


def _fits(gpu: Gpu, arch_list: tuple[str, ...]) -> bool:
    """Whether torch has compiled kernels, or PTX to compile, for the GPU; unknown counts as yes.

    A kernel for X.Y runs on X.Z with Z ≥ Y, PTX on anything newer:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    if not arch_list or gpu.compute_capability is None:
        return True
    for arch in arch_list:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("af")  # sm_90a, sm_120f: for that chip or family
        if not digits.isdecimal():
            return True
        known = (int(digits[:-1]), int(digits[-1]))
        if kind == "compute" and gpu.compute_capability >= known:
            return True
        if gpu.compute_capability[0] == known[0] and gpu.compute_capability[1] >= known[1]:
            return True
    return False


def _build(driver: str | None) -> str:
    """The name of PyTorch's package index for a driver; cu126 still supports Volta and Turing."""
    major = parts(driver or "12")[0]
    return "cu130" if major >= 13 else "cu126" if major == 12 else "cu118"


def _precision(interpreter: Interpreter) -> Found:
    has = {"fp32": True, "fp16": interpreter.torch_gpus, "bf16": interpreter.bf16, "fp8": interpreter.fp8}
    return Found(joined(name for name, here in has.items() if here))


def _collectives(machine: Machine, interpreter: Interpreter) -> Found:
    have, fix = interpreter.backends, say("install torch from pytorch.org")
    if machine.gpus and interpreter.cuda_build and "nccl" not in have:
        level = Level.ERROR if len(machine.gpus) > 1 else Level.HINT
        return Found(say("this torch has no NCCL; several GPUs cannot train together"), level, fix)
    if not have:
        return Found(say("this torch has neither NCCL nor gloo"), Level.WARNING, fix)
    nccl = say("NCCL {version}", version=interpreter.nccl_version or "?")
    return Found(joined(nccl if backend == "nccl" else backend for backend in have))
