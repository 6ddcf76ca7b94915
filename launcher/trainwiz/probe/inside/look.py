"""Inspect this interpreter: its packages, torch, and the devices that torch sees."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
from typing import Any


def main() -> None:
    # Modules must not be imported from the folder of this file.
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]
    found: dict[str, Any] = {
        "python_version": platform.python_version(),
        "packages": {name: version(name) for name in sys.argv[1:]},
        "python_headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
    }
    try:
        found.update(torch_facts(found["packages"]))
    except ModuleNotFoundError as error:
        found["error"] = str(error)
    except BaseException as error:  # a broken build may raise anything
        found["error"] = f"{type(error).__name__}: {error}"
    # On a line of its own, since importing torch may have printed something.
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None


def torch_facts(packages: dict[str, str | None]) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "cuda_build": torch.version.cuda,
        "torch_gpus": 0,
        "bf16": True,
        "fp8": False,
        "backends": [],
    }
    # The wheel's metadata does not have the +cpu or +cu126 that distinguishes builds.
    packages["torch"] = str(torch.__version__)
    distributed = getattr(torch, "distributed", None)
    if distributed and distributed.is_available():
        facts["backends"] = [b for b in ("nccl", "gloo", "mpi") if getattr(distributed, f"is_{b}_available")()]
    if "nccl" in facts["backends"] and torch.version.cuda:
        facts["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if torch.version.cuda:
        # get_arch_list() is empty if no GPU is usable, which is when the list is needed.
        facts["arch_list"] = (torch._C._cuda_getArchFlags() or "").split()
        facts.update(device_facts(torch))
    return facts


def device_facts(torch: Any) -> dict[str, Any]:
    count = torch.cuda.device_count()
    if not count:
        return {}
    try:
        torch.cuda.init()
        capabilities = [torch.cuda.get_device_capability(i) for i in range(count)]
    except Exception as error:
        return {"torch_gpus": 0, "cuda_error": str(error).splitlines()[0]}
    weakest = min(capabilities)
    # bf16 in hardware from Ampere (8.0), fp8 from Ada (8.9); PyTorch's own answer for bf16 includes emulation.
    return {"torch_gpus": count, "bf16": weakest >= (8, 0), "fp8": weakest >= (8, 9)}


if __name__ == "__main__":
    main()
