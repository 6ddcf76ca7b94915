"""Whether DeepSpeed can compile its ops on this machine."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from trainwiz.checkup.line import Found, Line, joined, line
from trainwiz.finding import Level
from trainwiz.machine import Interpreter, Machine, Toolchain
from trainwiz.message import say
from trainwiz.rules.versions import parts
from trainwiz.surroundings import Op, Surroundings

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
    yield line("compiler", say("C++ compiler"), _compiler(tools, missing))
    yield line("nvcc", say("CUDA toolkit"), _nvcc(tools, interpreter, missing))
    yield line("ninja", say("ninja"), _ninja(tools, interpreter, missing))
    if interpreter and interpreter.python_headers is False:
        headless = say("{python} has no Python.h; DeepSpeed cannot build its ops", python=interpreter.python)
        fix = say("apt-get install python3-dev (or dnf install python3-devel)")
        yield line("headers", say("Python headers"), Found(headless, missing, fix))
    if around and around.ops_error:
        silent = say("cannot query DeepSpeed: {problem}", problem=around.ops_error)
        yield line("ops", say("DeepSpeed ops"), Found(silent, Level.WARNING))
    if around and around.ops is not None:
        yield line("ops", say("DeepSpeed ops"), _ops(around.ops, buildable=bool(tools.cxx and tools.ninja)))
    for lock in around.locks if around else ():
        left = say(
            "{lock} is left over from a build that is no longer running; the next build would wait forever", lock=lock
        )
        yield line("lock", say("build lock"), Found(left, Level.ERROR, say("rm {lock}", lock=lock)))


def _compiler(tools: Toolchain, missing: Level) -> Found:
    if tools.cxx:
        return Found(f"{tools.cxx} {tools.cxx_version or '?'}")
    none = say("not found; DeepSpeed cannot build its ops (CPU ranks and offload need them)")
    return Found(none, missing, say("apt-get install g++ (or dnf install gcc-c++)"))


def _nvcc(tools: Toolchain, interpreter: Interpreter | None, missing: Level) -> Found:
    version = tools.nvcc_version
    if interpreter is None or interpreter.version("torch") is None:
        # Without torch it is unknown which CUDA is needed.
        return Found(say("nvcc {version}", version=version) if tools.nvcc else say("none"))
    build = interpreter.cuda_build
    if build is None and tools.nvcc:
        return Found(say("nvcc {version}; not needed because torch was built without CUDA", version=version))
    if build is None:
        return Found(say("not found; not needed because torch was built without CUDA"))
    if version is None:
        fix = say("install CUDA toolkit {build}, or set CUDA_HOME to its location", build=build)
        return Found(say("nvcc not found; DeepSpeed cannot build its CUDA ops"), missing, fix)
    found = say("nvcc {version}, torch built for CUDA {build}", version=version, build=build)
    same = parts(version)[:2] == parts(build)[:2]
    near = parts(version)[:1] == parts(build)[:1] and parts(build)[0] in _COMPATIBLE_MINORS
    if same or near:
        return Found(found)
    fix = say("install CUDA toolkit {build} and set CUDA_HOME, or run: export DS_SKIP_CUDA_CHECK=1", build=build)
    return Found(say("{found}; DeepSpeed refuses to build with this mismatch", found=found), missing, fix)


def _ninja(tools: Toolchain, interpreter: Interpreter | None, missing: Level) -> Found:
    if tools.ninja:
        return Found(tools.ninja)
    if interpreter and interpreter.version("ninja"):
        folder = posixpath.dirname(interpreter.python)
        found = say(
            "installed in {folder}, which is not on PATH; DeepSpeed cannot build ops without ninja", folder=folder
        )
        fix = say("activate the environment, or run: export PATH={folder}:$PATH", folder=folder)
        return Found(found, missing, fix)
    python = interpreter.python if interpreter else "python"
    fix = say("{python} -m pip install ninja", python=python)
    return Found(say("not found; DeepSpeed cannot build ops without it"), missing, fix)


def _ops(ops: tuple[Op, ...], *, buildable: bool) -> Found:
    named = [op for op in ops if op.name not in _NOT_OPS]
    built = [op.name for op in named if op.built]
    would = [op.name for op in named if op.compatible and not op.built] if buildable else []
    wont = [op.name for op in named if op.name not in built and op.name not in would]
    found = say("built: {built}; can be built: {would}", built=joined(built), would=joined(would))
    if not wont:
        return Found(found)
    fix = say("async_io (offload to nvme): apt-get install libaio-dev") if "async_io" in wont and buildable else None
    return Found(say("{found}; cannot be built: {wont}", found=found, wont=joined(wont)), Level.HINT, fix)
