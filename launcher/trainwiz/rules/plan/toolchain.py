"""What builds DeepSpeed's ops when they are first used."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule


@rule("TW121", level=Level.ERROR, field="strategy.kind")
def compiler_is_there(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """DeepSpeed on the CPU, or with offload, needs a C++ compiler.

    Without it: `RuntimeError: Error building extension 'cpu_adam'`, above it `c++: not found`, after the model is
    loaded.
    Why: DeepSpeed compiles these ops on first use: deepspeed_shm_comm on CPU ranks, cpu_adam with an offloaded
    optimizer, async_io with nvme. The build takes 25 to 100 seconds without any output, once.
    Instead: install a compiler, or choose a strategy that builds nothing (ddp, fsdp, ZeRO on GPUs without offload).
    Source: seen with DeepSpeed 0.19.8 and a PATH without compiler; https://www.deepspeed.ai/tutorials/advanced-install/
    """
    if (op := _built(plan)) and machine.toolchain.cxx is None and machine.probed:
        yield violation(
            "DeepSpeed must compile {op} for this plan, and there is no C++ compiler",
            remedy("install one: apt-get install g++ (or dnf install gcc-c++), or set CXX"),
            op=op,
        )


@rule("TW122", level=Level.ERROR, field="strategy.kind")
def python_headers_are_there(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """DeepSpeed's ops need the C headers of the training interpreter.

    Without it: `RuntimeError: Error building extension 'cpu_adam'`, and in the middle of what the build says `fatal
    error: Python.h: No such file or directory`.
    Why: a distribution's python3 comes without them; the ops are Python extensions.
    Instead: install the distribution's python3-dev package, or use a Python that brings its headers (conda, uv, pyenv).
    Source: seen with DeepSpeed 0.19.8; https://pytorch.org/docs/stable/cpp_extension.html
    """
    interpreter = machine.interpreter
    if (op := _built(plan)) and interpreter and interpreter.python_headers is False:
        yield violation(
            "DeepSpeed must compile {op} for this plan, and {python} has no Python.h",
            remedy("install the headers: apt-get install python3-dev (or dnf install python3-devel)"),
            op=op,
            python=interpreter.python,
        )


@rule("TW123", level=Level.ERROR, field="strategy.kind")
def no_build_lock_is_left(plan: Plan, project: Project) -> Iterator[Violation]:
    """No lock of a killed DeepSpeed build is left.

    Without it: every rank waits for ever, without a word, as soon as it wants that op.
    Why: torch marks a running build by a file named `lock`, and waits while it exists. A build that was killed
    (Ctrl-C, out of memory, the end of a batch job) leaves it behind, and nobody looks whether the builder still lives.
    Instead: remove the file. If the folder is shared between machines, first make sure that none of them is building.
    Source: torch/utils/file_baton.py; huggingface/transformers issue 26015
    """
    if not strategies.of(plan).uses_deepspeed:
        return
    for lock in project.build_locks:
        yield violation(
            "{lock} is left from a build that nobody runs any more; DeepSpeed would wait for it for ever",
            remedy("type: rm {lock}", lock=lock),
            lock=lock,
        )


def _built(plan: Plan) -> str | None:
    """The op that DeepSpeed must compile for the plan, if any."""
    if not strategies.of(plan).uses_deepspeed:
        return None
    offload = (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device)
    if offload[0] != "none":
        return "cpu_adam"
    if "nvme" in offload:
        return "async_io"
    return "deepspeed_shm_comm" if plan.machine.device == "cpu" else None
