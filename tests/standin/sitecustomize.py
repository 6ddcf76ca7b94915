"""FSDP2 on CPU ranks, for tests on machines without a GPU: never part of a generated file.

torch shards over gloo, but accelerate asks for a device type that it does not give to the CPU. With this folder on
PYTHONPATH and ACCELERATE_TORCH_DEVICE=cpu, that one answer is another, and unmodified FSDP2 scripts train.
"""

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def change(module: ModuleType) -> None:
    """`PartialState._prepare_backend` answers that there are GPUs, which speak gloo."""
    answer = ("gloo", module.DistributedType.MULTI_GPU)
    module.PartialState._prepare_backend = lambda *_, **__: answer


class StandIn(importlib.abc.MetaPathFinder):
    """Changes accelerate.state once it has been imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != "accelerate.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get("ACCELERATE_TORCH_DEVICE") == "cpu":
    if "accelerate.state" in sys.modules:  # in a rank that was forked
        change(sys.modules["accelerate.state"])
    else:
        sys.meta_path.insert(0, StandIn())
