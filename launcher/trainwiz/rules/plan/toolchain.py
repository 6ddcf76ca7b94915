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
    if (op := _built(plan)) and machine.toolchain.cxx is None and machine.probed:
        yield violation(
            "DeepSpeed must compile {op} for this plan, but there is no C++ compiler",
            remedy("install one: apt-get install g++ (or dnf install gcc-c++), or set CXX"),
            op=op,
        )


@rule("TW122", level=Level.ERROR, field="strategy.kind")
def python_headers_are_there(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """DeepSpeed's ops need the C headers of the training interpreter.

    Without it: `RuntimeError: Error building extension 'cpu_adam'`, with `fatal error: Python.h: No such file or
    directory` in the middle of the build output.
    Why: the ops are Python extensions, and a Linux distribution's python3 package does not include the headers.
    Instead: install the distribution's python3-dev package, or use a Python that includes its headers (conda, uv,
    pyenv).
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


@rule("TW123", level=Level.ERROR, field="strategy.kind")
def no_build_lock_is_left(plan: Plan, project: Project) -> Iterator[Violation]:
    """A lock file left by a killed DeepSpeed build must be deleted.

    Without it: every rank that needs that op waits forever, without any message.
    Why: torch marks a running build with a file named `lock` and waits while the file exists. A killed build
    (Ctrl-C, out of memory, end of a batch job) leaves the file behind, and nothing checks whether the builder is
    still alive.
    Instead: delete the file. If the folder is shared between machines, first make sure that none of them is
    building.
    Source: torch/utils/file_baton.py; huggingface/transformers issue 26015
    """
    if not strategies.of(plan).uses_deepspeed:
        return
    for lock in project.build_locks:
        yield violation(
            "{lock} was left behind by a build that is no longer running; DeepSpeed would wait for it forever",
            remedy("run: rm {lock}", lock=lock),
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
