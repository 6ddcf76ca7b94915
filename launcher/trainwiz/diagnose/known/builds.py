"""Building and loading native extensions."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "cuda_mismatch": Signature(
        r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was compiled with "
        r"(?P<built>[\d.]+)",
        r"The detected CUDA version \((?P<installed>[\d.]+)\) mismatches .*?\((?P<built>[\d.]+)\)",
        cause="nvcc is CUDA {installed}, but torch was built with CUDA {built}: extensions cannot be built",
        remedy="point CUDA_HOME to CUDA {built}, or install a torch built for {installed}; if only the minor version "
        "differs, DS_SKIP_CUDA_CHECK=1 skips DeepSpeed's check",
    ),
    "cuda_home": Signature(
        r"CUDA_HOME environment variable is not set",
        r"MissingCUDAException: CUDA_HOME does not exist",
        r"/bin/nvcc: (?:not found|No such file)|No such file or directory: '[^']*/bin/nvcc'",
        cause="an extension must be built, but there is no CUDA toolkit (nvcc)",
        remedy="export CUDA_HOME=/usr/local/cuda, or install the toolkit for torch's CUDA version; run: trainwiz "
        "doctor",
    ),
    "build_lock": Signature(
        r"Waited on lock file \"(?P<lock>[^\"]+)\"",
        cause="all processes are waiting for a lock that a killed build left behind: {lock}",
        remedy="rm {lock}",
        as_warning=True,
    ),
    "python_headers": Signature(
        r"fatal error: Python\.h: No such file",
        cause="code must be compiled, but Python's header files are missing",
        remedy="apt-get install python3-dev; or use a Python that includes the headers (conda, pyenv, uv)",
    ),
    "no_compiler": Signature(
        r"No such file or directory: '[^']*(?:c\+\+|g\+\+|gcc|clang\+*)'",
        r"(?:c\+\+|g\+\+|cc1plus)'?: (?:command )?not found",
        r"Command '\['which', '(?:c\+\+|g\+\+)'\]' returned non-zero",
        r"Failed to find C compiler",
        r"Ninja is required to load C\+\+ extensions",
        cause="an extension must be built, but the compiler or ninja is missing",
        remedy="apt-get install g++ && pip install ninja, or set CXX to an installed compiler",
    ),
    "build_failed": Signature(
        r"RuntimeError: Error building extension '(?P<extension>\w+)'",
        cause="the extension {extension} could not be compiled",
        remedy="read the compiler's first `error:`; to check the compiler, ninja, headers and nvcc, run: trainwiz "
        "doctor",
    ),
    "other_cuda_libraries": Signature(
        r"(?<!\S)(?P<library>\S*lib(?:torch|c10|cu|nv|nccl)[\w.+-]*\.so[\w.]*): undefined symbol: ",
        r"Invalid config (?P<library>\w+) attribute value",
        cause="the loaded CUDA or NCCL library is not the version that torch ships ({library})",
        remedy="to leave it out, run: env -u LD_LIBRARY_PATH trainwiz launch; or reinstall torch with its own "
        "libraries: pip install --force-reinstall torch",
    ),
    "old_system": Signature(
        r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found",
        cause="a package needs {version}, but this system's libraries do not provide it",
        remedy="GLIBCXX: conda install -c conda-forge libstdcxx-ng, and put its lib folder first in LD_LIBRARY_PATH; "
        "GLIBC: use a newer system or container, or an older version of the package",
    ),
    "missing_library": Signature(
        r"(?<![\w.+-])(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        r"Could not load library (?P<library>lib[\w.+-]+\.so[\d.]*)",
        r"failed to open (?P<library>libnvrtc[\w.+-]+\.so[\d.]*)",
        cause="library {library} not found",
        remedy="CUDA libraries (libcudart, libcudnn, libnvrtc …): reinstall the package that needs them, for torch's "
        "CUDA version; libGL: apt-get install libgl1, or pip install opencv-python-headless",
    ),
    "broken_library": Signature(
        r"(?:^|[ :])(?P<library>[\w./+-]+\.so[\w.]*): (?:undefined symbol|version `)",
        r"(?P<library>numpy)\.dtype size changed",
        cause="the library {library} was built for versions other than the installed ones",
        remedy="reinstall the package it belongs to: pip install --force-reinstall --no-deps --no-cache-dir PACKAGE; "
        "for flash-attn and similar packages add --no-build-isolation",
    ),
    "bitsandbytes_cuda": Signature(
        r"CUDA Setup failed despite GPU being available",
        cause="bitsandbytes found no library of its own for this version of CUDA",
        remedy="pip install --upgrade bitsandbytes; to see what it looks for, run: python -m bitsandbytes",
    ),
    "numpy_abi": Signature(
        r"ImportError: numpy\.core\.multiarray failed to import",
        r"RuntimeError: Numpy is not available",
        cause="a package was built for NumPy 1, but NumPy 2 is installed",
        remedy="pip install --upgrade PACKAGE (the traceback names it), or pip install 'numpy<2'",
    ),
}
