"""The Python that will run the training, inspected by a child process: trainwiz itself never imports torch."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from trainwiz.machine import Interpreter
from trainwiz.process.capture import Asked, Captured

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
    "mlflow",
    "swanlab",
    "trackio",
    "pydantic",
    "transformer-engine",
    "torchao",
    "msamp",
    "flash-attn",
    "liger-kernel",
    "bitsandbytes",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "colossalai",
    "pillow",
    "scikit-learn",
    "timm",
    "sacrebleu",
    "rouge-score",
)
"""Distributions whose versions are looked up."""

_LOOK = Path(__file__).parent / "inside" / "look.py"


PendingInterpreter = Asked[Interpreter]
"""An interpreter that is being inspected. Failures are in the result's `error`, never raised."""


def start(python: str) -> PendingInterpreter:
    """Start to inspect it; importing torch takes a while, during which the user can answer questions."""
    executable = located(python)
    argv = [executable, str(_LOOK), *PACKAGES]
    return Asked(argv, functools.partial(_understood, executable), seconds=SECONDS)


def located(python: str) -> str:
    """The interpreter's absolute path, as given if it is missing. Links, which select environments, are kept."""
    found = shutil.which(os.path.expanduser(python))
    return os.path.abspath(found) if found else python


# docs/decisions/launching.md: What is remembered about an interpreter, and when it is discarded
def cache_key(python: str, environ: Mapping[str, str] = os.environ) -> str:
    """A key that changes whenever the result may change: interpreter, packages, driver, visible GPUs.

    Empty if the site-packages cannot be found from outside (a wrapper script); then nothing may be remembered.
    """
    executable = located(python)
    state: list[object] = [executable, PACKAGES, _LOOK.stat().st_mtime_ns]
    folders = _site_packages(executable)
    if not folders:
        return ""
    path = environ.get("PYTHONPATH", "").split(os.pathsep)
    for place in (executable, *folders, *path, "/proc/driver/nvidia/version"):
        try:
            status = os.stat(place)
            state.append((place, status.st_mtime_ns if not place.startswith("/proc") else Path(place).read_text()))
        except OSError:
            state.append((place, None))
    state += [environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PYTHONNOUSERSITE")]
    # The state contains environment variables, which must not be written to the cache.
    return f"{executable} {hashlib.sha256(repr(state).encode('utf-8', 'surrogateescape')).hexdigest()}"


def installed(python: str, package: str) -> str | None:
    """The version of a package in an interpreter's environment, by its files; None where it has none."""
    folders = _site_packages(located(python))
    return next((found.version for found in metadata.distributions(name=package, path=folders)), None)


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


def _understood(python: str, captured: Captured) -> Interpreter:
    found = captured.answer
    if found is None or "packages" not in found:
        return Interpreter(python=python, error=captured.problem)
    facts: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
    return Interpreter(python=python, **facts)
