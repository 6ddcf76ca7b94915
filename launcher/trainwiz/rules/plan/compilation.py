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
    return remedy("set model.compile false", {"model.compile": False})


@rule("TW131", level=Level.ERROR, field="model.compile")
def compiled_kernels_can_be_built(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """torch.compile needs a C++ compiler.

    Without it: `torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found`, at the first
    forward pass; on GPUs `RuntimeError: Failed to find C compiler. Please specify via CC environment variable`.
    Why: kernels for the CPU are C++; those for GPUs are Triton's, whose launcher is built by the C compiler.
    Instead: install a compiler, or set model.compile false.
    Source: seen with torch 2.13 on the CPU; for GPUs `_build` in triton/runtime/build.py
    """
    if plan.model.compile and machine.toolchain.cxx is None and machine.probed:
        yield violation(
            "model.compile is true, and there is no C++ compiler for torch.compile to call",
            remedy(
                "install one: apt-get install g++ (or dnf install gcc-c++), or set model.compile false",
                {"model.compile": False},
            ),
        )


@rule("TW221", level=Level.ERROR, field="model.compile")
def compiled_kernels_need_volta(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """torch.compile needs GPUs of compute capability 7.0 (Volta) or higher.

    Without it: at the first forward pass "Found … which is too old to be supported by the triton GPU compiler".
    Why: Triton, which the kernels are written in, supports nothing older.
    Instead: set model.compile false.
    Source: `Scheduler.create_backend` in torch/_inductor/scheduler.py (2.13), seen with the GPU's capability faked
    """
    if not plan.model.compile or plan.machine.device != "cuda":
        return
    for gpu in machine.gpus[: plan.machine.ranks_per_machine]:
        if gpu.compute_capability and gpu.compute_capability < VOLTA:
            major, minor = gpu.compute_capability
            yield violation(
                "model.compile is true, and {gpu} has compute capability {major}.{minor}; Triton needs 7.0",
                _without(),
                gpu=gpu.name,
                major=major,
                minor=minor,
            )
            return


@rule("TW222", level=Level.WARNING, field="model.compile")
def colossalai_compiles_nothing(plan: Plan) -> Iterator[Violation]:
    """The loop for Colossal-AI does not compile.

    Without it: the key has no effect: the training is as fast as without it.
    Why: the plugins replace parameters by parts of them and hang hooks into the layers; what torch.compile makes of
    that has not been shown, so the loop leaves it out.
    Instead: the engine accelerate, or model.compile false.
    Source: train_templates/loops/colossalai.py
    """
    if plan.model.compile and plan.engine == "colossalai":
        yield violation("model.compile is true, and the engine colossalai does not compile", _without())


@rule("TW223", level=Level.WARNING, field="model.compile")
def partitioned_weights_are_compiled_again_and_again(plan: Plan) -> Iterator[Violation]:
    """Under ZeRO 3 torch.compile helps little and starts slowly.

    Without it: the numbers are right, but each layer is compiled once more, up to 8 times, until "torch._dynamo hit
    config.recompile_limit", and runs uncompiled from then on: 360 seconds for 4 updates of the least model on two CPU
    ranks, where ZeRO 2 took 50.
    Why: DeepSpeed gathers a layer's weights by hooks between its parts; to the compiler, each layer looks different.
    Instead: model.compile false, or ZeRO 2, or fsdp, which compiles well.
    Source: seen with DeepSpeed 0.19.8 and torch 2.13
    """
    if plan.model.compile and strategies.of(plan).uses_deepspeed and strategies.of(plan).partitions_weights:
        yield violation(
            "model.compile is true under ZeRO 3: its layers are compiled over and over, and then run uncompiled",
            _without(),
        )
