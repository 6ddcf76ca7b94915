"""torch.compile: where it cannot, and where it does not help."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.finding import Fix, Level, Violation, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule

VOLTA = (7, 0)


def _without() -> Fix:
    return remedy("set model.compile to false", {"model.compile": False})


@rule("TW131", level=Level.ERROR, field="model.compile")
def compiled_kernels_can_be_built(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """torch.compile needs a C++ compiler.

    Without it: the first forward pass fails with `torch._inductor.exc.InductorError: InvalidCxxCompiler: No working
    C++ compiler found`; on GPUs with `RuntimeError: Failed to find C compiler. Please specify via CC environment
    variable`.
    Why: CPU kernels are C++ code. GPU kernels come from Triton, and the C compiler builds their launcher.
    Instead: install a compiler, or set model.compile to false.
    Source: seen with torch 2.13 on the CPU; for GPUs `_build` in triton/runtime/build.py
    """
    if plan.model.compile and machine.toolchain.cxx is None and machine.probed:
        yield violation(
            "model.compile is true, but torch.compile finds no C++ compiler",
            remedy(
                "install one: apt-get install g++ (or dnf install gcc-c++), or set model.compile to false",
                {"model.compile": False},
            ),
        )


@rule("TW221", level=Level.ERROR, field="model.compile")
def compiled_kernels_need_volta(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """torch.compile needs GPUs of compute capability 7.0 (Volta) or higher.

    Without it: the first forward pass fails with "Found … which is too old to be supported by the triton GPU
    compiler".
    Why: the compiled kernels are written in Triton, which does not support older GPUs.
    Instead: set model.compile to false.
    Source: `Scheduler.create_backend` in torch/_inductor/scheduler.py (2.13), seen with the GPU's capability faked
    """
    if not plan.model.compile or plan.machine.device != "cuda":
        return
    for gpu in machine.gpus[: plan.machine.ranks_per_machine]:
        if gpu.compute_capability and gpu.compute_capability < VOLTA:
            major, minor = gpu.compute_capability
            yield violation(
                "model.compile is true, but {gpu} has compute capability {major}.{minor}; Triton needs 7.0",
                _without(),
                gpu=gpu.name,
                major=major,
                minor=minor,
            )
            return


@rule("TW222", level=Level.WARNING, field="model.compile")
def colossalai_compiles_nothing(plan: Plan) -> Iterator[Violation]:
    """The training loop for Colossal-AI ignores model.compile.

    Without it: model.compile has no effect: training runs at the same speed with and without it.
    Why: the plugins replace parameters by shards and add hooks to the layers. It has not been verified how
    torch.compile handles this, and the loop does not use it.
    Instead: use the accelerate engine, or set model.compile to false.
    Source: train_templates/loops/colossalai.py
    """
    if plan.model.compile and plan.engine == "colossalai":
        yield violation("model.compile is true, but the engine colossalai does not compile", _without())


@rule("TW223", level=Level.WARNING, field="model.compile")
def partitioned_weights_are_compiled_again_and_again(plan: Plan) -> Iterator[Violation]:
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
            "model.compile is true under ZeRO 3: layers are recompiled repeatedly and then run uncompiled",
            _without(),
        )
