"""Building and loading native extensions."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "cuda_mismatch": Signature(
        r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was compiled with "
        r"(?P<built>[\d.]+)",
        r"The detected CUDA version \((?P<installed>[\d.]+)\) mismatches [^()]*?\((?P<built>[\d.]+)\)",
        cause="nvcc is CUDA {installed}, but torch was built with CUDA {built}: extensions cannot be built",
        remedy="point CUDA_HOME to CUDA {built}, or install a torch built for {installed}; if only the minor version "
        "differs, DS_SKIP_CUDA_CHECK=1 skips DeepSpeed's check",
    ),
    "cuda_home": Signature(
        r"CUDA_HOME environment variable is not set",
        r"MissingCUDAException: CUDA_HOME does not exist",
        r"/bin/nvcc: (?:not found|No such file)|No such file or directory: '(?:[^']*/)?nvcc'",
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
    "missing_header": Signature(
        r"fatal error: (?P<header>(?!Python\.h)[\w./+-]+\.(?:h|hpp|hh|cuh)): No such file or directory",
        r"fatal error: '(?P<header>(?!Python\.h)[\w./+-]+\.(?:h|hpp|hh|cuh))' file not found",
        r"fatal error C1083: [^\n]*?['\"](?P<header>(?!Python\.h)[\w./\\+-]+)['\"]: No such file or directory",
        cause="code must be compiled, but the header file {header} is missing",
        remedy="install what it belongs to: headers of CUDA (cub, cublas, cusparse …) need the whole toolkit of the "
        "version that torch was built with, with CUDA_HOME pointing to it; others a -dev package or the git submodules "
        "of the source",
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
    "build_isolation": Signature(
        r"(?:Getting requirements to build wheel|prepare_metadata|get_requires_for_build_wheel)[\s\S]{0,3000}?"
        r"ModuleNotFoundError: No module named '(?:torch|packaging|wheel)'",
        cause="the package is built in an isolated environment without torch",
        remedy="install torch first, then: pip install --no-build-isolation PACKAGE",
    ),
    "torchvision_mismatch": Signature(
        r"operator torchvision::nms does not exist|Couldn't load custom C\+\+ ops",
        r"partially initialized module 'torchvision' has no attribute 'extension'",
        r"PyTorch and torchvision were compiled with different CUDA",
        r"Could not run 'torchvision::\w+' with arguments from the 'CUDA' backend",
        cause="torchvision was built for a different torch than the installed one",
        remedy="install both together: pip install --upgrade torch torchvision (the pairs are listed in torchvision's "
        "README)",
    ),
    "triton_kernel": Signature(
        # torch.compile's autotuner tries the next choice.
        r"out of resource: (?P<problem>(?:shared memory|registers|threads)(?:, Required: \d+, Hardware limit: \d+)?)"
        r"(?![^\n]*(?:\n[^\n]*){0,2}Ignoring this choice)",
        r"triton\.(?:\w+\.)*(?P<problem>CompilationError: at \d+:\d+)",
        r"(?P<problem>type fp8\w+ not supported in this architecture)",
        r"(?P<problem>PassManager::run failed|Internal Triton PTX codegen error|`ptxas` failed with error code -?\d+)",
        r"(?P<problem>Cannot find a working triton installation)",
        r"Triton Error \[CUDA\]: (?P<problem>(?!out of memory|an illegal memory).+)$",
        r"(?P<problem>LLVM ERROR: (?!.*numba)[^\n]+)",
        cause="a Triton kernel cannot run here: {problem}",
        remedy="use the Triton that torch pins (pip install --force-reinstall torch), smaller block sizes, or the "
        "variant without this kernel (attn_implementation='sdpa', TORCHDYNAMO_DISABLE=1)",
    ),
    "triton_gpu": Signature(
        r"Found (?P<gpu>.{1,80}?) which is too old to be supported by the triton GPU compiler",
        cause="torch.compile needs Triton, which does not support this GPU: {gpu}",
        remedy="train without it: set torch_compile to false, or run: TORCHDYNAMO_DISABLE=1 trainwiz launch",
    ),
    "kernel_cache": Signature(
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<file>[^']*(?:\.cubin|\.ptx|\.ttg?ir|\.llir|"
        r"/\.triton/|torchinductor_)[^']*)'",
        cause="a compiled kernel is no longer in the cache: {file}; another rank or job removed it, or the folder was "
        "cleaned",
        remedy="give each machine (or rank) a cache of its own on a local disk: TRITON_CACHE_DIR and "
        "TORCHINDUCTOR_CACHE_DIR, then launch again",
        transient=True,
    ),
    "linked_library": Signature(
        r"cannot find -l(?P<library>cuda|cudart|cublas|curand|nvrtc|cudnn)\b",
        cause="the linker does not find lib{library}.so, which an extension or a compiled kernel needs",
        remedy="run: export LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs; `ldconfig -p | grep "
        "lib{library}` shows where it is; a link named lib{library}.so next to it also works",
    ),
    "compiler_version": Signature(
        r"(?P<problem>too old version of GCC[^\n\"]*)",
        r"(?P<problem>unsupported (?:GNU|Microsoft Visual Studio|clang) version[^\n\"]*)",
        r"(?P<problem>internal compiler error: [^\n]*)",
        r"(?P<problem>No supported gcc/g\+\+ host compiler found[^\n]*|Unsupported \w+ compiler found[^\n]*)",
        r"(?P<problem>#error (?:-- )?\"?C\+\+\d\d or later compatible compiler is required[^\n\"]*)",
        cause="the C++ compiler does not match nvcc and torch: {problem}",
        remedy="install a version that both accept (gcc 9 to 13 for CUDA 12), and run with CC=gcc-11 CXX=g++-11; with "
        "conda: conda install -c conda-forge gxx_linux-64=11",
    ),
    "bitsandbytes_kernel": Signature(
        r"Error (?P<problem>[a-z][\w ]+) at line \d+ in file \S*csrc[/\\]ops\.cu",
        cause="a kernel of bitsandbytes failed on the GPU: {problem}",
        remedy="pip install --upgrade bitsandbytes; give each rank its own GPU (device_map={{'': local_rank}}), and "
        "look for empty weights (ZeRO 3, FSDP)",
    ),
    "wheel_download": Signature(
        r"Guessing wheel URL: +(?P<url>\S+)\s*\n(?:[^\n]*\n){0,3}?\s*error: (?P<problem>Remote end closed[^\n]*|"
        r"<urlopen error[^\n]*|\[Errno[^\n]*|[^\n]*(?:timed out|Connection (?:reset|refused|aborted))[^\n]*)",
        cause="the package's finished build could not be downloaded: {problem}",
        remedy="download {url} by hand or through a proxy (https_proxy), and run pip install FILE.whl; to compile "
        "without asking the network: FLASH_ATTENTION_FORCE_BUILD=TRUE pip install --no-build-isolation flash-attn",
        transient=None,
    ),
    "build_failed": Signature(
        r"RuntimeError: Error building extension '(?P<extension>\w+)'",
        r"ImportError: \S*/torch_extensions/\S*/(?P<extension>(?!cpu_adam|fused_adam)\w+)\.so: cannot open shared "
        r"object file",
        r"ERROR: (?:Failed building wheel for|Could not build wheels for) (?P<extension>[\w.-]+)",
        r"Failed to (?:generate package metadata for|build) `(?P<extension>[\w.-]+)",
        r"Failed to (?:fetch wheel|build): (?P<extension>[\w.-]+?)(?:==\S*)?\n[^\n]*[Bb]uild backend (?:failed|"
        r"returned)",
        r"Command '\['(?P<extension>ninja)'[^\n]*\]' returned non-zero exit status",
        r"^(?P<extension>ninja): build stopped: subcommand failed",
        r"^Building extension module (?P<extension>\w+)\.\.\.\n(?:.*\n){0,4}?CalledProcessError$",
        r"/ld: cannot find (?P<extension>\S+\.o): No such file",
        r"^FAILED: (?:\[code=\d+\] )?(?P<extension>\S+\.o)\b(?![\s\S]*(?:Error building extension|build stopped|"
        r"Failed building wheel))",
        r"(?:[Ee]rror|FAILED): command '(?P<extension>[^']*(?:nvcc|gcc|g\+\+|c\+\+|cl\.exe)[^']*)' failed with exit",
        cause="an extension could not be compiled: {extension}",
        remedy="read the compiler's first `error:`; to check the compiler, ninja, headers and nvcc, run: trainwiz "
        "doctor",
    ),
    "other_cuda_libraries": Signature(
        r"(?<!\S)(?P<library>\S*lib(?:torch|c10|cu|nv|nccl)[\w.+-]*\.so[\w.]*): undefined symbol: ",
        r"Invalid config (?P<library>\w+) attribute value",
        r"RuntimeError: (?P<library>cuDNN) version incompatibility: PyTorch was compiled",
        cause="the loaded CUDA or NCCL library is not the version that torch ships ({library})",
        remedy="to avoid it, run: env -u LD_LIBRARY_PATH trainwiz launch; or reinstall torch with its own libraries: "
        "pip install --force-reinstall torch",
    ),
    "old_system": Signature(
        r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found",
        cause="a package needs {version}, but this system's libraries do not provide it",
        remedy="GLIBCXX: conda install -c conda-forge libstdcxx-ng, and put its lib folder first in LD_LIBRARY_PATH; "
        "GLIBC: use a newer system or container, or an older version of the package",
    ),
    "bitsandbytes_cuda": Signature(
        r"CUDA Setup failed despite GPU being available|CUDA SETUP: (?:Setup Failed|CUDA detection failed)",
        r"libbitsandbytes_cpu\.so: undefined symbol",
        # Its functions are defined only where the library was loaded.
        r"NameError: name 'str2optimizer\w*' is not defined",
        r"Could not find the bitsandbytes CUDA binary|libbitsandbytes_\w+\.so: cannot open shared object file",
        cause="bitsandbytes found no library of its own for this version of CUDA",
        remedy="pip install --upgrade bitsandbytes; to see what it looks for, run: python -m bitsandbytes",
    ),
    "bitsandbytes_libcudart": Signature(
        r"CUDA_SETUP: WARNING! libcudart\.so not found in any environmental path",
        cause="bitsandbytes found no libcudart.so in the folders where it searched",
        remedy="pip install --upgrade bitsandbytes (0.43 and later take the one that torch brings); or add the folder "
        "of libcudart.so to LD_LIBRARY_PATH; python -m bitsandbytes shows what it finds",
        secondary=True,
    ),
    "missing_library": Signature(
        r"Could not load (?P<library>libtorchcodec)\b",
        r"(?<![\w.+-])(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        r"Could not load library (?P<library>lib[\w.+-]+\.so[\d.]*)",
        r"failed to open (?P<library>libnvrtc[\w.+-]+\.so[\d.]*)",
        r"ImportError: DLL load failed while importing (?P<library>\w+)",
        r"\[WinError (?:126|127|1114)\] .*Error loading \"(?P<library>[^\"]+)\"",
        cause="library {library} not found",
        remedy="CUDA libraries (libcudart, libcudnn, libnvrtc …): reinstall the package that needs them, for torch's "
        "CUDA version; libGL: apt-get install libgl1, or pip install opencv-python-headless",
    ),
    "static_tls": Signature(
        r"ImportError: (?P<library>\S+): cannot allocate memory in static TLS block",
        cause="{library} was loaded too late: the program has no thread-local memory left for it",
        remedy="load it first: LD_PRELOAD={library} trainwiz launch, or import its package before torch",
    ),
    "torch_symbol": Signature(
        r"^(?:ImportError: )?undefined symbol: (?P<symbol>_ZNK?(?:2at|3c10|5torch)\w+)",
        cause="a compiled package was built for another version of torch: it needs {symbol}, which the installed one "
        "does not have",
        remedy="reinstall the package whose .so file is named before these words (flash-attn, apex, xformers …) with "
        "the installed torch: pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation PACKAGE",
    ),
    "broken_library": Signature(
        r"(?:^|[ :])(?P<library>[\w./+-]+\.so[\w.]*): (?:undefined symbol|version `)",
        r"^(?P<library>[\w./+-]+\.so[\w.]*)\n: undefined symbol",
        r"\b(?P<library>[\w.]{1,100})\.\w{1,100} size changed, may indicate binary incompatibility",
        cause="the library {library} was built for versions other than the installed ones",
        remedy="reinstall the package it belongs to: pip install --force-reinstall --no-deps --no-cache-dir PACKAGE; "
        "for flash-attn and similar packages add --no-build-isolation",
    ),
    "missing_operator": Signature(
        r"'_OpNamespace' '(?P<space>\w+)' object has no attribute '(?P<operator>\w+)'",
        cause="the compiled operator {operator} of {space} is missing: its extension was not built, could not be "
        "loaded, or belongs to another version",
        remedy="look for a warning about {space} at the start of the log; reinstall the package for the installed "
        "torch "
        "(pip install --force-reinstall --no-deps PACKAGE), or build it again",
    ),
    "numpy_abi": Signature(
        r"ImportError: numpy\.core\.multiarray failed to import",
        r"RuntimeError: Numpy is not available",
        r"AttributeError: _ARRAY_API not found|compiled using NumPy 1\.x cannot be run in",
        cause="a package was built for NumPy 1, but NumPy 2 is installed",
        remedy="pip install --upgrade PACKAGE (the traceback names it), or pip install 'numpy<2'",
    ),
}
