"""The interpreter that will train, its torch, and the driver below it."""

from __future__ import annotations

from trainwiz.finding import Level, Violation, Violations, remedy, violation
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import used_gpus
from trainwiz.rules.versions import install, lacks, parts

OLDEST_PYTHON = (3, 10)


@rule("TW101", level=Level.ERROR, field="python")
def python_is_new_enough(machine: Machine) -> Violations:
    """The training interpreter must be Python 3.10 or newer.

    Without it: pip silently installs accelerate 1.10.1, the last version for Python 3.9; train.py stops at its
    first batch with `TypeError: zip() takes no keyword arguments`.
    Why: accelerate 1.11 and later require Python 3.10, and so does the generated script.
    Instead: create an environment with a newer Python and select it: `trainwiz check --python PATH`.
    Source: `Requires-Python: >=3.10.0` of accelerate 1.11 to 1.15;
    https://docs.python.org/3/library/functions.html#zip
    """
    interpreter = machine.interpreter
    if interpreter and interpreter.python_version and parts(interpreter.python_version) < OLDEST_PYTHON:
        yield violation(
            "{python} is Python {version}; Python 3.10 or newer is required",
            remedy("choose another interpreter: --python PATH"),
            python=interpreter.python,
            version=interpreter.python_version,
        )


@rule("TW102", level=Level.ERROR, field="python")
def torch_is_installed(machine: Machine) -> Violations:
    """torch must be installed in the training interpreter.

    Without it: every rank fails immediately with `ModuleNotFoundError: No module named 'torch'`.
    Why: trainwiz and the training can run in different environments. The training uses the interpreter given with
    --python; by default it is the one that runs trainwiz.
    Instead: install torch there, with the command for your CUDA version, or select an interpreter that has it.
    Source: https://pytorch.org/get-started/locally/
    """
    if python := lacks(machine, "torch"):
        yield violation("torch is not installed in {python}", install(python, "torch"), python=python)


@rule("TW103", level=Level.ERROR, field="python")
def torch_imports(machine: Machine) -> Violations:
    """`import torch` must work in the training interpreter.

    Without it: every rank fails with the same import error. torchrun and `accelerate launch` import torch
    themselves and fail with it before they start any rank.
    Why: the usual cause is a half-finished upgrade, two packages that each bring CUDA libraries, or an
    LD_LIBRARY_PATH that puts older libraries first.
    Instead: reinstall torch in a clean environment. If the error names a .so file, check LD_LIBRARY_PATH.
    Source: seen with torch 2.13 and an LD_LIBRARY_PATH with another libstdc++.so.6
    """
    interpreter = machine.interpreter
    if not interpreter or not interpreter.error or lacks(machine, "torch"):
        return
    if not interpreter.packages:
        fix = remedy("choose another interpreter: --python PATH")
        yield violation("{python} cannot be used: {error}", fix, python=interpreter.python, error=interpreter.error)
        return
    yield violation(
        "torch {version} cannot be imported in {python}: {error}",
        remedy("run: {python} -m pip install --force-reinstall torch", python=interpreter.python),
        version=interpreter.version("torch"),
        python=interpreter.python,
        error=interpreter.error,
    )


@rule("TW104", level=Level.ERROR, field="machine.device")
def torch_has_cuda(plan: Plan, machine: Machine) -> Violations:
    """A plan for CUDA needs a CUDA build of torch.

    Without it: accelerate silently falls back to the CPU. With MULTI_GPU or FSDP, each process then believes that
    it is the only one: N independent trainings run, each as the main process, and overwrite each other's
    checkpoints.
    Why: torch was installed with `pip install torch` from the CPU index, or a later package replaced it.
    Instead: install a CUDA build of torch.
    Source: seen with accelerate 1.15, 2 processes on a machine without GPUs; huggingface/accelerate issue 2741.
    """
    interpreter = machine.interpreter
    if plan.machine.device != "cuda" or not interpreter or interpreter.error or not interpreter.version("torch"):
        return
    version = str(interpreter.version("torch"))
    if interpreter.cuda_build is None and "rocm" not in version:
        yield violation(
            "machine.device is cuda, but torch {version} in {python} was built without CUDA",
            remedy(
                "install a CUDA build (see https://pytorch.org/get-started/locally/), or set machine.device to cpu",
                {"machine.device": "cpu"},
            ),
            version=version,
            python=interpreter.python,
        )


@rule("TW105", level=Level.ERROR, field="machine.device")
def driver_is_there(plan: Plan, machine: Machine) -> Violations:
    """A plan for CUDA needs a machine with an NVIDIA driver and GPUs.

    Without it: accelerate silently trains on the CPU; several processes become several independent trainings.
    Why: a login node without GPUs, a container without `--gpus all`, or a driver that does not match the kernel.
    Instead: start the training on a machine with GPUs. To check a plan for another machine, run `trainwiz doctor
    --json > box.json` there, then `trainwiz check --machine box.json` here.
    Source: seen with accelerate 1.15, 2 processes on a machine without GPUs;
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
    """
    if plan.machine.device == "cuda" and machine.driver_version is None and not machine.gpus:
        yield violation(
            "the plan needs GPUs on each machine: {ranks}; this machine has no GPU and no NVIDIA driver",
            remedy(
                "start it on a machine with GPUs (in a container: --gpus all), or set machine.device to cpu",
                {"machine.device": "cpu"},
            ),
            ranks=plan.machine.ranks_per_machine,
        )


@rule("TW106", level=Level.ERROR, field="machine.device")
def driver_serves_torch(plan: Plan, machine: Machine) -> Violations:
    """The CUDA major version of the driver must not be older than the one that torch was built for.

    Without it: torch only warns `The NVIDIA driver on your system is too old (found version …)`, then sees no GPU,
    and accelerate trains on the CPU.
    Why: CUDA runs on older drivers within the same major version, but not across major versions.
    Instead: update the driver, or install a torch built for an older CUDA.
    Source: c10/cuda/CUDAFunctions.cpp of torch (`cudaErrorInsufficientDriver`);
    https://docs.nvidia.com/deploy/cuda-compatibility/ (minor version compatibility)
    """
    interpreter = machine.interpreter
    if plan.machine.device != "cuda" or not interpreter or not interpreter.cuda_build:
        return
    driver = machine.cuda_driver_version
    if driver and parts(driver)[:1] < parts(interpreter.cuda_build)[:1]:
        yield violation(
            "the driver supports CUDA {driver}, but torch {version} was built for CUDA {build}",
            remedy("update the driver, or install a torch built for CUDA {major}", major=parts(driver)[0]),
            driver=driver,
            version=interpreter.version("torch"),
            build=interpreter.cuda_build,
        )


@rule("TW107", level=Level.ERROR, field="machine.num_processes")
def torch_sees_the_gpus(plan: Plan, machine: Machine) -> Violations:
    """torch must see all the GPUs that the plan needs.

    Without it: accelerate wraps around the GPU list and puts two ranks on one GPU, and NCCL fails with `Duplicate
    GPU detected`; other scripts stop with `invalid device ordinal`.
    Why: torch sees fewer GPUs than the driver: CUDA_VISIBLE_DEVICES, a MIG partition, or a broken device.
    Instead: check what torch reports: `python -c "import torch; torch.cuda.init()"`.
    Source: `PartialState.set_device` in accelerate 1.15 (local rank modulo device count), seen with the number of
    GPUs faked; the first words are in NCCL's src/init.cc
    """
    interpreter, ranks = machine.interpreter, plan.machine.ranks_per_machine
    if plan.machine.device != "cuda" or not interpreter or interpreter.torch_gpus is None or not interpreter.cuda_build:
        return
    if not interpreter.torch_gpus < ranks <= len(machine.gpus):
        return
    seen = say(
        "GPUs seen by torch: {seen}, shown by the driver: {there}, needed by the plan: {ranks}",
        seen=interpreter.torch_gpus,
        there=len(machine.gpus),
        ranks=ranks,
    )
    if interpreter.cuda_error:
        seen = say("{seen}; torch reports: {error}", seen=seen, error=interpreter.cuda_error)
    command = f"{interpreter.python} -c 'import torch; torch.cuda.init()'"
    yield Violation(seen, remedy("check CUDA_VISIBLE_DEVICES, and run: {command}", command=command))


@rule("TW108", level=Level.ERROR, field="machine.device")
def torch_has_kernels_for_the_gpu(plan: Plan, machine: Machine) -> Violations:
    """torch must be compiled for the architecture of the GPU.

    Without it: the first kernel fails with `CUDA error: no kernel image is available for execution on the device`.
    Before that, when CUDA is first used, torch only warns that the GPU `is not compatible with the current PyTorch
    installation`.
    Why: builds for a new CUDA drop old architectures (Pascal, Volta), and older builds lack the newest.
    Instead: install a torch build for another CUDA version: an older one for an old GPU, a newer one for a new GPU.
    Source: `_check_cubins` and `_check_capability` in torch/cuda/__init__.py (2.13), seen with the GPU's capability
    faked; https://docs.nvidia.com/cuda/ampere-compatibility-guide/
    """
    interpreter = machine.interpreter
    if not interpreter or not interpreter.arch_list or not interpreter.cuda_build:
        return
    for gpu in used_gpus(plan, machine):
        if gpu.compute_capability and not _runs_on(gpu.compute_capability, interpreter.arch_list):
            yield violation(
                "{gpu} has compute capability {capability}, but torch {version} was compiled for {known}",
                remedy(
                    "install a torch built for another CUDA version "
                    "(https://pytorch.org/get-started/previous-versions/)"
                ),
                gpu=gpu.name,
                capability=gpu.capability,
                version=interpreter.version("torch"),
                known=", ".join(interpreter.arch_list),
            )
            return


def _runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Binaries (`sm_80`) run on the same major version from their minor one; PTX (`compute_80`) on all later ones."""
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        number = digits.rstrip("af")
        if not number.isdecimal():
            continue
        built = (int(number[:-1]), int(number[-1]))
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False
