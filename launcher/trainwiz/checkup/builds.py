"""Whether DeepSpeed can compile its ops on this machine."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from trainwiz.checkup.line import Line, joined
from trainwiz.checkup.surroundings import Op, Surroundings
from trainwiz.finding import Level
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.rules.versions import parts

_COMPATIBLE_MINORS = (11, 12)
"""CUDA majors within which DeepSpeed accepts another minor.

Source: `cuda_minor_mismatch_ok` in deepspeed/ops/op_builder/builder.py (0.19).
"""

_NOT_OPS = {"deepspeed_not_implemented"}


def lines(machine: Machine, around: Surroundings | None) -> Iterator[Line]:
    """Compiler, nvcc against torch's CUDA, ninja, headers, ops, stale locks."""
    tools, interpreter = machine.toolchain, machine.interpreter
    wanted = interpreter is not None and interpreter.version("deepspeed") is not None
    missing = Level.WARNING if wanted else Level.HINT
    if tools.cxx:
        found = f"{tools.cxx} {tools.cxx_version or '?'}"
        yield Line(subject="compiler", title=say("C++ compiler"), found=found)
    else:
        fix = say("apt-get install g++ (or dnf install gcc-c++)")
        none = say("not found; DeepSpeed cannot build its ops (CPU ranks and offload need them)")
        yield Line(subject="compiler", title=say("C++ compiler"), found=none, level=missing, fix=fix)
    yield _nvcc(machine, missing)
    yield _ninja(machine, missing)
    if interpreter and interpreter.python_headers is False:
        headless = say("{python} has no Python.h; DeepSpeed cannot build its ops", python=interpreter.python)
        fix = say("apt-get install python3-dev (or dnf install python3-devel)")
        yield Line(subject="headers", title=say("Python headers"), found=headless, level=missing, fix=fix)
    if around and around.ops_error:
        silent = say("cannot query DeepSpeed: {problem}", problem=around.ops_error)
        yield Line(subject="ops", title=say("DeepSpeed ops"), found=silent, level=Level.WARNING)
    if around and around.ops is not None:
        yield _ops(around.ops, buildable=bool(tools.cxx and tools.ninja))
    yield from (_lock(lock) for lock in (around.locks if around else ()))


def _nvcc(machine: Machine, missing: Level) -> Line:
    tools, title = machine.toolchain, say("CUDA toolkit")
    interpreter = machine.interpreter
    if interpreter is None or interpreter.version("torch") is None:
        # Without torch it is unknown which CUDA is needed.
        there = say("nvcc {version}", version=tools.nvcc_version) if tools.nvcc else say("none")
        return Line(subject="nvcc", title=title, found=there)
    build = interpreter.cuda_build
    if build is None:
        found = (
            say("nvcc {version}; not needed because torch was built without CUDA", version=tools.nvcc_version)
            if tools.nvcc
            else None
        )
        return Line(
            subject="nvcc",
            title=title,
            found=found or say("not found; not needed because torch was built without CUDA"),
        )
    if tools.nvcc_version is None:
        found = say("nvcc not found; DeepSpeed cannot build its CUDA ops")
        fix = say("install CUDA toolkit {build}, or set CUDA_HOME to its location", build=build)
        return Line(subject="nvcc", title=title, found=found, level=missing, fix=fix)
    found = say("nvcc {version}, torch built for CUDA {build}", version=tools.nvcc_version, build=build)
    same = parts(tools.nvcc_version)[:2] == parts(build)[:2]
    near = parts(tools.nvcc_version)[:1] == parts(build)[:1] and parts(build)[0] in _COMPATIBLE_MINORS
    if same or near:
        return Line(subject="nvcc", title=title, found=found)
    return Line(
        subject="nvcc",
        title=title,
        found=say("{found}; DeepSpeed refuses to build with this mismatch", found=found),
        level=missing,
        fix=say("install CUDA toolkit {build} and set CUDA_HOME, or run: export DS_SKIP_CUDA_CHECK=1", build=build),
    )


def _ninja(machine: Machine, missing: Level) -> Line:
    tools, interpreter, title = machine.toolchain, machine.interpreter, say("ninja")
    if tools.ninja:
        return Line(subject="ninja", title=title, found=tools.ninja)
    if interpreter and interpreter.version("ninja"):
        folder = posixpath.dirname(interpreter.python)
        found = say(
            "installed in {folder}, which is not on PATH; DeepSpeed cannot build ops without ninja", folder=folder
        )
        fix = say("activate the environment, or run: export PATH={folder}:$PATH", folder=folder)
        return Line(subject="ninja", title=title, found=found, level=missing, fix=fix)
    python = interpreter.python if interpreter else "python"
    fix = say("{python} -m pip install ninja", python=python)
    return Line(
        subject="ninja",
        title=title,
        found=say("not found; DeepSpeed cannot build ops without it"),
        level=missing,
        fix=fix,
    )


def _ops(ops: tuple[Op, ...], *, buildable: bool) -> Line:
    named = [op for op in ops if op.name not in _NOT_OPS]
    built = [op.name for op in named if op.built]
    would = [op.name for op in named if op.compatible and not op.built] if buildable else []
    wont = [op.name for op in named if op.name not in built and op.name not in would]
    found: Message = say("built: {built}; can be built: {would}", built=joined(built), would=joined(would))
    if not wont:
        return Line(subject="ops", title=say("DeepSpeed ops"), found=found)
    found = say("{found}; cannot be built: {wont}", found=found, wont=joined(wont))
    fix = say("async_io (offload to nvme): apt-get install libaio-dev") if "async_io" in wont and buildable else None
    return Line(subject="ops", title=say("DeepSpeed ops"), found=found, level=Level.HINT, fix=fix)


def _lock(lock: str) -> Line:
    return Line(
        subject="lock",
        title=say("build lock"),
        found=say(
            "{lock} is left over from a build that is no longer running; the next build would wait forever", lock=lock
        ),
        level=Level.ERROR,
        fix=say("rm {lock}", lock=lock),
    )
