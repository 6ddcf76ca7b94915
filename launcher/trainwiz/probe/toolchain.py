"""The tools that build DeepSpeed's ops: a C++ compiler, nvcc, ninja."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainwiz.machine import Toolchain
from trainwiz.process.capture import Running

SECONDS = 5.0


def toolchain(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> Toolchain:
    """The compilers that torch.utils.cpp_extension would use, with their versions (both asked at once)."""
    cxx, nvcc, ninja = _located(environ, root)
    cxx_asked = Running([cxx, "-dumpfullversion", "-dumpversion"], env=environ) if cxx else None
    nvcc_asked = Running([nvcc, "--version"], env=environ) if nvcc else None
    return Toolchain(
        cxx=cxx,
        cxx_version=_match(r"^(\d+(?:\.\d+)*)", cxx_asked),
        nvcc=nvcc,
        nvcc_version=_match(r"release (\d+\.\d+)", nvcc_asked),
        ninja=ninja,
    )


def cache_key(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> str:
    """A key that changes with the programs that would be asked."""
    state = [(p, os.stat(p).st_mtime_ns, os.path.realpath(p)) if p else None for p in _located(environ, root)]
    return repr(state)


def _located(environ: Mapping[str, str], root: Path) -> tuple[str | None, str | None, str | None]:
    path = environ.get("PATH")
    cxx = shutil.which(environ.get("CXX", "c++"), path=path) or shutil.which("g++", path=path)
    return cxx, _nvcc(environ, root), shutil.which("ninja", path=path)


def _nvcc(environ: Mapping[str, str], root: Path) -> str | None:
    # The order of torch.utils.cpp_extension._find_cuda_home: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda.
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            return shutil.which(os.path.join(environ[name], "bin", "nvcc"))
    return shutil.which("nvcc", path=environ.get("PATH")) or shutil.which(str(root / "usr/local/cuda/bin/nvcc"))


def _match(pattern: str, asked: Running | None) -> str | None:
    found = re.search(pattern, asked.result(SECONDS).stdout, re.MULTILINE) if asked else None
    return found.group(1) if found else None
