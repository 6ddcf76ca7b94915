"""What is compiled: models by torch.compile, and DeepSpeed's ops when they are first used."""

from __future__ import annotations

from trainwiz import strategies, tasks
from trainwiz.engines import liger
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import used_gpus
from trainwiz.rules.versions import install, lacks

VOLTA = (7, 0)
_WITHOUT = setting("model.compile", False)


@rule("TW131", level=Level.ERROR, field="model.compile")
def compiled_kernels_can_be_built(plan: Plan, machine: Machine) -> Violations:
    """torch.compile needs a C++ compiler.

    Without it: the first forward pass fails with `torch._inductor.exc.InductorError: InvalidCxxCompiler: No working
    C++ compiler found`; on GPUs with `RuntimeError: Failed to find C compiler. Please specify via CC environment
    variable`.
    Why: CPU kernels are C++ code. GPU kernels come from Triton, and the C compiler builds their launcher.
    Instead: install a compiler, or set model.compile to false.
    Source: seen with torch 2.13 on the CPU; for GPUs `_build` in triton/runtime/build.py
    """
    if plan.model.compile and machine.toolchain.cxx is None and machine.inspected:
        yield violation(
            "model.compile is true, but torch.compile finds no C++ compiler",
            remedy(
                "install one: apt-get install g++ (or dnf install gcc-c++), or set model.compile to false",
                {"model.compile": False},
            ),
        )
    elif plan.model.kernels != "none" and machine.toolchain.cxx is None and machine.inspected:
        yield violation(
            "model.kernels is {kernels}, but Triton and torch.compile find no C++ compiler",
            remedy(
                "install one: apt-get install g++ (or dnf install gcc-c++), or set model.kernels to none",
                {"model.kernels": "none"},
            ),
        )


@rule("TW221", level=Level.ERROR, field="model.compile")
def compiled_kernels_need_volta(plan: Plan, machine: Machine) -> Violations:
    """torch.compile needs GPUs of compute capability 7.0 (Volta) or higher.

    Without it: the first forward pass fails with "Found … which is too old to be supported by the triton GPU
    compiler".
    Why: the compiled kernels are written in Triton, which does not support older GPUs.
    Instead: set model.compile to false.
    Source: `Scheduler.create_backend` in torch/_inductor/scheduler.py (2.13), seen with the GPU's capability faked
    """
    old = (gpu for gpu in used_gpus(plan, machine) if gpu.compute_capability and gpu.compute_capability < VOLTA)
    if plan.model.compile and (gpu := next(old, None)):
        yield violation(
            "model.compile is true, but {gpu} has compute capability {capability}; Triton needs 7.0",
            _WITHOUT,
            gpu=gpu.name,
            capability=gpu.capability,
        )


@rule("TW222", level=Level.WARNING, field="model.compile")
def colossalai_compiles_nothing(plan: Plan) -> Violations:
    """The training loop for Colossal-AI ignores model.compile.

    Without it: model.compile has no effect: training runs at the same speed with and without it.
    Why: the plugins replace parameters by shards and add hooks to the layers. It has not been verified how
    torch.compile handles this, and the loop does not use it.
    Instead: use the accelerate engine, or set model.compile to false.
    Source: train_templates/loops/colossalai.py
    """
    if plan.model.compile and plan.engine == "colossalai":
        yield violation("model.compile is true, but the engine colossalai does not compile", _WITHOUT)


@rule("TW223", level=Level.WARNING, field="model.compile")
def partitioned_weights_are_compiled_again_and_again(plan: Plan) -> Violations:
    """torch.compile starts slowly and helps little under ZeRO 3.

    Without it: the results are correct, but each layer is compiled again, up to 8 times, until "torch._dynamo hit
    config.recompile_limit", and then runs uncompiled. On two CPU ranks, 4 updates of the smallest model took 360
    seconds; ZeRO 2 took 50.
    Why: DeepSpeed gathers a layer's weights with hooks between the parts of the layer, and to the compiler each
    layer looks different.
    Instead: set model.compile to false, or use ZeRO 2, or use fsdp, which compiles well.
    Source: seen with DeepSpeed 0.19.8 and torch 2.13
    """
    if plan.model.compile and strategies.of(plan).uses_deepspeed and strategies.of(plan).partitions_weights:
        yield violation(
            "model.compile is true under ZeRO 3: layers are recompiled repeatedly and then run uncompiled", _WITHOUT
        )


@rule("TW224", level=Level.ERROR, field="model.kernels")
def fused_kernels_suit_the_plan(plan: Plan) -> Violations:
    """model.kernels liger needs an uncompiled language model on CUDA with accelerate.

    Without it: the key has no effect: the generated script does not use liger-kernel.
    Why: its kernels are written in Triton for GPUs, and replace layers of language models. The compiler fuses the same
    operators itself, and cannot see inside liger's kernels.
    Instead: set model.kernels to none, or model.compile to false.
    Source: liger_kernel/transformers/monkey_patch.py in liger-kernel 0.8.5
    """
    if plan.model.kernels == "none":
        return
    fix = setting("model.kernels", "none")
    task = tasks.of(plan)
    if not task.generative or plan.engine != "accelerate" or plan.machine.device != "cuda":
        yield violation(
            "model.kernels is {kernels}, which is for language models with accelerate on CUDA, not for the task {task} "
            "with {engine} on {device}",
            fix,
            task=plan.task,
            engine=plan.engine,
            device=plan.machine.device,
        )
    elif plan.model.compile:
        yield violation("model.kernels is {kernels}, but model.compile is true and fuses the same operators", fix)


@rule("TW225", level=Level.WARNING, field="model.kernels")
def fused_kernels_can_be_used(plan: Plan, machine: Machine, project: Project) -> Violations:
    """model.kernels liger needs the package liger-kernel, 0.8 or later, and a model whose layers were tested with it.

    Without it: the training prints `liger-kernel is not used: ModuleNotFoundError` (or another reason), and is slower
    than planned.
    Why: it is a separate package; older versions patch other classes of transformers, and layers of other families may
    compute something different with its kernels.
    Instead: install a recent liger-kernel, or set model.kernels to none.
    Source: the generated kernels.py; liger_kernel/transformers/monkey_patch.py
    """
    if plan.model.kernels != "liger":
        return
    needed = f"liger-kernel>={'.'.join(map(str, liger.OLDEST))}"
    interpreter, model = machine.interpreter, project.model
    version = interpreter.packages.get("liger-kernel") if interpreter else None
    if python := lacks(machine, "liger-kernel"):
        fix = install(python, needed)
        yield violation("model.kernels is {kernels}, but liger-kernel is not installed in {python}", fix, python=python)
    elif interpreter and version and not liger.is_recent(version):
        yield violation(
            "model.kernels is {kernels}, but liger-kernel {version} is older than {oldest}",
            install(interpreter.python, needed),
            version=version,
            oldest=".".join(map(str, liger.OLDEST)),
        )
    known = model.transformer if model and not model.assumed else None
    if known and known.model_type not in liger.FAMILIES:
        yield violation(
            "model.kernels is {kernels}, but its kernels were not tested with {family} models and are not used",
            setting("model.kernels", "none"),
            family=known.model_type,
        )


@rule("TW226", level=Level.WARNING, field="model.activation_checkpointing")
def offloaded_inputs_break_graphs(plan: Plan) -> Violations:
    """Layers whose inputs are offloaded cannot be compiled.

    Without it: the results are correct, but the layers run uncompiled, after the compiler has wasted its time.
    Why: the copy to host memory happens in autograd hooks, which torch.compile does not trace: the graph breaks at the
    start of each layer.
    Instead: set model.compile to false, or model.activation_checkpointing to full.
    Source: seen with torch 2.13 (`saved_tensors_hooks.__init__` among its graph breaks)
    """
    if plan.model.compile and plan.model.activation_checkpointing == "offload":
        yield violation(
            "model.activation_checkpointing is {activation_checkpointing}, and model.compile is true: layers run "
            "uncompiled",
            _WITHOUT,
        )


@rule("TW227", level=Level.WARNING, field="model.activation_checkpointing")
def offload_needs_a_device_to_leave(plan: Plan) -> Violations:
    """Activations can only be offloaded from GPUs.

    Without it: each layer's input is copied for nothing: it is already in host memory.
    Why: the device is the CPU.
    Instead: set model.activation_checkpointing to full.
    Source: the generated recompute.py
    """
    if plan.machine.device == "cpu" and plan.model.activation_checkpointing == "offload":
        yield violation(
            "model.activation_checkpointing is {activation_checkpointing}, but the CPU's activations are in host "
            "memory",
            setting("model.activation_checkpointing", "full"),
        )


@rule("TW121", level=Level.ERROR, field="strategy.kind")
def compiler_is_there(plan: Plan, machine: Machine) -> Violations:
    """DeepSpeed needs a C++ compiler on the CPU and for offload.

    Without it: after the model is loaded, the run fails with `RuntimeError: Error building extension 'cpu_adam'`,
    preceded by `c++: not found`.
    Why: DeepSpeed compiles these ops on first use: deepspeed_shm_comm on CPU ranks, cpu_adam for an offloaded
    optimizer, async_io for nvme. The build runs once, takes 25 to 100 seconds, and prints nothing.
    Instead: install a compiler, or choose a strategy that compiles nothing (ddp, fsdp, ZeRO on GPUs without
    offload).
    Source: seen with DeepSpeed 0.19.8 and a PATH without compiler;
    https://www.deepspeed.ai/tutorials/advanced-install/
    """
    if (op := _built(plan)) and machine.toolchain.cxx is None and machine.inspected:
        fix = remedy("install one: apt-get install g++ (or dnf install gcc-c++), or set CXX")
        yield violation("DeepSpeed must compile {op} for this plan, but there is no C++ compiler", fix, op=op)


@rule("TW122", level=Level.ERROR, field="strategy.kind")
def python_headers_are_there(plan: Plan, machine: Machine) -> Violations:
    """DeepSpeed's ops need the C headers of the training interpreter.

    Without it: `RuntimeError: Error building extension 'cpu_adam'`, with `fatal error: Python.h: No such file or
    directory` in the middle of the build output.
    Why: the ops are Python extensions, and a Linux distribution's python3 package does not include the headers.
    Instead: install the distribution's python3-dev, or use a Python that includes its headers (conda, uv, pyenv).
    Source: seen with DeepSpeed 0.19.8; https://pytorch.org/docs/stable/cpp_extension.html
    """
    interpreter = machine.interpreter
    if (op := _built(plan)) and interpreter and interpreter.python_headers is False:
        yield violation(
            "DeepSpeed must compile {op} for this plan, but {python} has no Python.h",
            remedy("install the headers: apt-get install python3-dev (or dnf install python3-devel)"),
            op=op,
            python=interpreter.python,
        )


@rule("TW123", level=Level.WARNING, field="strategy.kind")
def no_build_lock_is_left(plan: Plan, project: Project) -> Violations:
    """A lock file left by a killed DeepSpeed build must be deleted; `trainwiz launch` does so.

    Without it: every rank that needs that op waits forever, without any message.
    Why: torch marks a running build with a file named `lock` and waits while the file exists. A killed build
    (Ctrl-C, out of memory, end of a batch job) leaves the file behind, and nothing checks whether the builder is
    still alive.
    Instead: delete the file. If other machines, containers or users share the folder, first make sure that none of them
    is building: their processes may not be visible from here. If you may not delete it, set TORCH_EXTENSIONS_DIR to a
    folder of your own.
    Source: torch/utils/file_baton.py; huggingface/transformers issue 26015
    """
    if not strategies.of(plan).uses_deepspeed:
        return
    for lock in project.build_locks:
        yield violation(
            "no process visible here owns the build lock {lock}; DeepSpeed waits as long as the file exists",
            remedy(
                "unless another machine, container or user is building: rm {lock} (trainwiz launch removes it "
                "when nobody else can own it); if you may not delete it: export TORCH_EXTENSIONS_DIR=FOLDER, a "
                "folder of your own",
                lock=lock,
            ),
            lock=lock,
        )


def _built(plan: Plan) -> str | None:
    """The first op that DeepSpeed must compile for the plan, if any."""
    return next(iter(strategies.of(plan).ops(plan)), None)
