"""Building and loading native extensions."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

SIGNATURES = (
    known(
        "cuda_mismatch",
        r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was compiled with "
        r"(?P<built>[\d.]+)",
        r"The detected CUDA version \((?P<installed>[\d.]+)\) mismatches .*?\((?P<built>[\d.]+)\)",
        cause=say("nvcc is of CUDA {installed}, and torch was built with {built}: no extension can be built"),
        remedy=say(
            "point CUDA_HOME to CUDA {built}, or install a torch built for {installed}; "
            "DS_SKIP_CUDA_CHECK=1 skips DeepSpeed's check where only the minor version differs"
        ),
    ),
    known(
        "cuda_home",
        r"CUDA_HOME environment variable is not set",
        r"MissingCUDAException: CUDA_HOME does not exist",
        r"/bin/nvcc: (?:not found|No such file)|No such file or directory: '[^']*/bin/nvcc'",
        cause=say("an extension is to be built, and there is no CUDA toolkit (nvcc)"),
        remedy=say("export CUDA_HOME=/usr/local/cuda, or install the toolkit of torch's CUDA version; trainwiz doctor"),
    ),
    known(
        "build_lock",
        r"Waited on lock file \"(?P<lock>[^\"]+)\"",
        cause=say("a build that was killed left its lock, and everybody waits for it: {lock}"),
        remedy=say("rm {lock}"),
    ),
    known(
        "no_compiler",
        r"No such file or directory: '[^']*(?:c\+\+|g\+\+|gcc|clang\+*)'",
        r"(?:c\+\+|g\+\+|cc1plus)'?: (?:command )?not found",
        r"Command '\['which', '(?:c\+\+|g\+\+)'\]' returned non-zero",
        r"Ninja is required to load C\+\+ extensions",
        cause=say("an extension is to be built, and the compiler or ninja is missing"),
        remedy=say("apt-get install g++ && pip install ninja, or set CXX to the compiler that is there"),
    ),
    known(
        "build_failed",
        r"RuntimeError: Error building extension '(?P<extension>\w+)'",
        cause=say("the extension {extension} could not be compiled"),
        remedy=say(
            "read the compiler's first `error:`; Python.h missing: apt-get install python3-dev; trainwiz doctor"
        ),
    ),
    known(
        "broken_library",
        r"ImportError: (?P<library>\S+): (?:undefined symbol|cannot open shared object file|version `)",
        r"OSError: (?P<library>\S+): (?:undefined symbol|cannot open shared object file)",
        r"(?P<library>numpy)\.dtype size changed",
        cause=say("the library {library} is missing, or was built for other versions than those installed"),
        remedy=say("install the package it belongs to anew: pip install --force-reinstall --no-cache-dir PACKAGE"),
    ),
)
