"""Building and loading native extensions."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 2
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
        as_warning=True,
    ),
    known(
        "python_headers",
        r"fatal error: Python\.h: No such file",
        cause=say("something is to be compiled, and Python's header files are missing"),
        remedy=say("apt-get install python3-dev; or take a Python that has them (conda, pyenv, uv)"),
    ),
    known(
        "no_compiler",
        r"No such file or directory: '[^']*(?:c\+\+|g\+\+|gcc|clang\+*)'",
        r"(?:c\+\+|g\+\+|cc1plus)'?: (?:command )?not found",
        r"Command '\['which', '(?:c\+\+|g\+\+)'\]' returned non-zero",
        r"Failed to find C compiler",
        r"Ninja is required to load C\+\+ extensions",
        cause=say("an extension is to be built, and the compiler or ninja is missing"),
        remedy=say("apt-get install g++ && pip install ninja, or set CXX to the compiler that is there"),
    ),
    known(
        "build_failed",
        r"RuntimeError: Error building extension '(?P<extension>\w+)'",
        cause=say("the extension {extension} could not be compiled"),
        remedy=say("read the compiler's first `error:`; trainwiz doctor shows compiler, ninja, headers and nvcc"),
    ),
    known(
        "other_cuda_libraries",
        r"(?<!\S)(?P<library>\S*lib(?:torch|c10|cu|nv|nccl)[\w.+-]*\.so[\w.]*): undefined symbol: ",
        r"Invalid config (?P<library>\w+) attribute value",
        cause=say("a library of another CUDA or NCCL than torch's own was loaded ({library})"),
        remedy=say(
            "env -u LD_LIBRARY_PATH trainwiz launch leaves it out; else pip install --force-reinstall torch, which "
            "brings its own"
        ),
    ),
    known(
        "old_system",
        r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found",
        cause=say("a package needs {version}, which the libraries of this system do not have"),
        remedy=say(
            "GLIBCXX: conda install -c conda-forge libstdcxx-ng, and its lib folder first in LD_LIBRARY_PATH; GLIBC: a "
            "newer system or container, or an older version of the package"
        ),
    ),
    known(
        "missing_library",
        r"(?<![\w.+-])(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        r"Could not load library (?P<library>lib[\w.+-]+\.so[\d.]*)",
        r"failed to open (?P<library>libnvrtc[\w.+-]+\.so[\d.]*)",
        cause=say("the library {library} is not found"),
        remedy=say(
            "of CUDA (libcudart, libcudnn, libnvrtc …): install the package anew that asks for it, for torch's CUDA; "
            "libGL: apt-get install libgl1, or pip install opencv-python-headless"
        ),
    ),
    known(
        "broken_library",
        r"(?:^|[ :])(?P<library>[\w./+-]+\.so[\w.]*): (?:undefined symbol|version `)",
        r"(?P<library>numpy)\.dtype size changed",
        cause=say("the library {library} was built for other versions than those installed"),
        remedy=say(
            "install the package it belongs to anew: pip install --force-reinstall --no-deps --no-cache-dir PACKAGE; "
            "flash-attn and the like with --no-build-isolation"
        ),
    ),
    known(
        "numpy_abi",
        r"ImportError: numpy\.core\.multiarray failed to import",
        cause=say("a package was built for NumPy 1, and NumPy 2 is here"),
        remedy=say("pip install --upgrade PACKAGE (the traceback names it), or pip install 'numpy<2'"),
    ),
)
