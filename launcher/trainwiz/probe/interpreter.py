"""The Python that will run the training, inspected by a child process: trainwiz itself never imports torch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.machine import Interpreter
from trainwiz.process.capture import Captured, Running

SECONDS = 60.0
"""Importing torch takes 1–3 s; from a network disk, cold, tens of seconds."""

PACKAGES = (
    "torch",
    "accelerate",
    "deepspeed",
    "transformers",
    "datasets",
    "numpy",
    "peft",
    "safetensors",
    "huggingface-hub",
    "ninja",
    "triton",
    "tensorboard",
    "wandb",
    "pydantic",
    "transformer-engine",
    "torchao",
    "msamp",
    "flash-attn",
    "bitsandbytes",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "colossalai",
    "pillow",
    "scikit-learn",
)
"""Distributions whose versions are looked up."""

_LOOK = Path(__file__).parent / "inside" / "look.py"


class PendingInterpreter:
    """An interpreter that is being inspected."""

    def __init__(self, python: str, running: Running) -> None:
        self.python = python
        self._running = running

    def result(self, timeout: float = SECONDS) -> Interpreter:
        """The result, after at most `timeout` seconds. Failures are in its `error`, never raised."""
        return _understood(self.python, self._running.result(timeout), timeout)

    def cancel(self) -> None:
        """Kill the child process."""
        self._running.cancel()


def start(python: str) -> PendingInterpreter:
    """Start to inspect it; importing torch takes a while, during which the user can answer questions."""
    executable = located(python)
    return PendingInterpreter(executable, Running([executable, str(_LOOK), *PACKAGES]))


def located(python: str) -> str:
    """The interpreter's absolute path, as given if it is missing. Links, which select environments, are kept."""
    found = shutil.which(os.path.expanduser(python))
    return os.path.abspath(found) if found else python


# docs/decisions/launching.md: What is remembered about an interpreter, and when it is discarded
def cache_key(python: str, environ: Mapping[str, str] = os.environ) -> str:
    """A key that changes with everything that may change the result: interpreter, packages, driver, visible GPUs.

    Empty if the site-packages cannot be found from outside (a wrapper script); then nothing may be remembered.
    """
    executable = located(python)
    state: list[object] = [executable, PACKAGES, _LOOK.stat().st_mtime_ns]
    folders = _site_packages(executable)
    if not folders:
        return ""
    for place in (
        executable,
        *folders,
        *environ.get("PYTHONPATH", "").split(os.pathsep),
        "/proc/driver/nvidia/version",
    ):
        try:
            status = os.stat(place)
            state.append((place, status.st_mtime_ns if not place.startswith("/proc") else Path(place).read_text()))
        except OSError:
            state.append((place, None))
    state += [environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PYTHONNOUSERSITE")]
    # The state contains environment variables, which must not be written to the cache.
    return f"{executable} {hashlib.sha256(repr(state).encode('utf-8', 'surrogateescape')).hexdigest()}"


def _site_packages(executable: str) -> list[str]:
    """The interpreter's own site-packages and the user's; none if its own cannot be found from outside."""
    real = os.path.realpath(executable)
    try:
        with open(real, "rb") as file:
            if file.read(2) == b"#!":
                return []  # a wrapper, such as pyenv's, which may run any Python
    except OSError:
        return []
    own, base = Path(executable).parent.parent, Path(real).parent.parent
    environment = own / "pyvenv.cfg"
    prefixes = [own] if environment.exists() else [base]
    if environment.exists() and "include-system-site-packages = true" in environment.read_text():
        prefixes.append(base)
    found = [folder for prefix in prefixes for folder in _folders(prefix)]
    return found and [*found, *_folders(Path(os.path.expanduser("~/.local")))]


def _folders(prefix: Path) -> list[str]:
    patterns = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/*-packages")
    return [str(folder) for pattern in patterns for folder in sorted(prefix.glob(pattern))]


def _understood(python: str, captured: Captured, timeout: float) -> Interpreter:
    if captured.timed_out:
        return Interpreter(python=python, error=f"no answer within {timeout:g} s")
    lines = captured.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        packages: dict[str, str | None] = dict(found["packages"])
    except (IndexError, ValueError, KeyError, TypeError):
        return Interpreter(python=python, error=captured.last_line or f"ended with code {captured.code}")
    torch_version = found.pop("torch_version", None)
    if torch_version:
        packages["torch"] = torch_version
    nccl = found.get("nccl_version")
    return Interpreter(
        python=python,
        python_version=found.get("python_version", ""),
        packages=packages,
        cuda_build=found.get("cuda_build"),
        nccl_version=nccl,
        torch_gpus=found.get("torch_gpus"),
        bf16=found.get("bf16"),
        fp8=found.get("fp8"),
        arch_list=tuple(found.get("arch_list") or ()),
        backends=tuple(found.get("backends") or ()),
        python_headers=found.get("python_headers"),
        cuda_error=found.get("cuda_error"),
        error=found.get("error"),
    )
