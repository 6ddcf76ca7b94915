"""GPUs, as NVML reports them: no torch, no CUDA context, a few milliseconds each."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz.machine import Gpu, GpuProcess, Problem
from trainwiz.probe.limit import within

SECONDS = 10.0
"""NVML takes seconds on a machine with 8 GPUs and no persistence daemon, and may hang."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """All that NVML reports."""

    gpus: tuple[Gpu, ...] = ()
    """The visible ones."""
    hidden: int = 0
    """The number of GPUs that CUDA_VISIBLE_DEVICES hides."""
    driver_version: str | None = None
    """Of the NVIDIA driver; None: NVML was not found."""
    cuda_driver_version: str | None = None
    """The newest version of CUDA that the driver supports."""
    problems: tuple[Problem, ...] = ()
    """What NVML could not report, and why."""


def gpus(nvml: Any = None, *, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES makes visible. `nvml` replaces the pynvml module in tests.

    The problem is called `nvml` if NVIDIA's library is missing, and `gpus` if it fails.
    """
    try:
        return within(SECONDS, lambda: _read(nvml or _library(), environ, root))
    except Exception as error:
        absent = type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded", "ImportError")
        return Gpus(problems=(Problem(probe="nvml" if absent else "gpus", detail=str(error)),))


def _library() -> Any:
    # Importing pynvml takes 7 ms, even if the library is missing.
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise ImportError(str(error)) from None
    return importlib.import_module("pynvml")


def _read(nvml: Any, environ: Mapping[str, str], root: Path) -> Gpus:
    nvml.nvmlInit()
    try:
        problems: list[Problem] = []
        everything: list[Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                everything.append(_gpu(nvml, index, root))
            except Exception as error:
                problems.append(Problem(probe="gpus", detail=f"GPU {index}: {error}"))
        visible = _visible(everything, environ.get("CUDA_VISIBLE_DEVICES"))
        cuda = _asked(nvml.nvmlSystemGetCudaDriverVersion)
        return Gpus(
            gpus=visible,
            hidden=len(everything) - len(visible),
            driver_version=_words(_asked(nvml.nvmlSystemGetDriverVersion)),
            # 12040 is 12.4: https://docs.nvidia.com/deploy/nvml-api/group__nvmlSystemQueries.html
            cuda_driver_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            problems=tuple(problems),
        )
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, root: Path) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = _asked(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _asked(nvml.nvmlDeviceGetMigMode, handle)
    milliwatts = _asked(getattr(nvml, "nvmlDeviceGetEnforcedPowerLimit", None), handle)
    return Gpu(
        index=index,
        name=_words(nvml.nvmlDeviceGetName(handle)) or "",
        memory_bytes=int(memory.total),
        # total − free includes what the driver reserves, which is not available either.
        used_bytes=int(memory.total) - int(memory.free),
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        uuid=_words(_asked(nvml.nvmlDeviceGetUUID, handle)) or "",
        mig=bool(mig and mig[0]),
        processes=_processes(nvml, handle, root),
        power_watts=milliwatts / 1000 if milliwatts else None,
    )


def _processes(nvml: Any, handle: Any, root: Path) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in _asked(getattr(nvml, ask, None), handle) or ():
            used = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            found[process.pid] = GpuProcess(pid=process.pid, used_bytes=used, name=_name(root, process.pid))
    return tuple(found[pid] for pid in sorted(found))


def _name(root: Path, pid: int) -> str:
    # In a container NVML reports the host's process ids, which do not exist here.
    try:
        return (root / f"proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _visible(everything: list[Gpu], wanted: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA selects: in the given order, by index or prefix of a UUID, up to the first unknown one.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    if wanted is None or "MIG-" in wanted:
        return tuple(everything)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in wanted.split(",")):
        matches = [
            g for g in everything if word == str(g.index) or (word.startswith("GPU-") and g.uuid.startswith(word))
        ]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return tuple(chosen)


def _asked(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """NVML's answer; None if this GPU or driver does not support the function."""
    try:
        return function(*arguments) if function else None
    except Exception:
        return None


def _words(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
