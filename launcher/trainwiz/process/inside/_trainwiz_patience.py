"""Raises torch.distributed's timeouts, even those that a script sets, so that ranks can wait while one is debugged.

Nothing is imported here that the script would not import: torch's module is changed right after it was run.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

_MODULES = ("torch.distributed.constants", "torch.distributed.distributed_c10d")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the two modules as Python would, and changes them once they have run."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The module's own spec with a loader that does more."""
        if fullname not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                widen(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# docs/decisions/launching.md: Debugging raises torch's timeouts to a week, through a hook
def widen(module: Any) -> None:
    """Every default timeout, and whatever is given to the functions that make process groups."""
    from datetime import timedelta
    from functools import wraps

    patience = timedelta(seconds=int(os.environ["TRAINWIZ_PATIENCE"]))
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if hasattr(module, name):
            setattr(module, name, patience)
    for name, most in (("init_process_group", 2), ("new_group", 1)):
        if (function := getattr(module, name, None)) is not None:

            def patient(*given: Any, _function: Any = function, _most: int = most, **named: Any) -> Any:
                # Not changed if it is given by position, right after this many others.
                return _function(*given, **(named if len(given) > _most else {**named, "timeout": patience}))

            setattr(module, name, wraps(function)(patient))


def install() -> None:
    """From here on."""
    sys.meta_path.insert(0, Finder())
