"""The tasks, found by folder: each module with a `TASK` is one."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, get_args

from trainwiz import vocabulary
from trainwiz.tasks.task import Task

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = ["Task", "every", "named", "of", "preset_names"]


@functools.cache
def every() -> tuple[Task, ...]:
    """All tasks, the usual ones first."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return tuple(sorted((m.TASK for m in modules if hasattr(m, "TASK")), key=_position))


def named(name: str) -> Task:
    """The task of this name. Raises `KeyError` for any other word."""
    return _by_name()[name]


@functools.cache
def _by_name() -> dict[str, Task]:
    return {task.name: task for task in every()}


def of(plan: Plan) -> Task:
    """The task of a plan."""
    return named(plan.task)


def preset_names() -> frozenset[str]:
    """The names of all preset models of all tasks."""
    return frozenset(name for task in every() for name in task.presets)


def _position(task: Task) -> int:
    return get_args(vocabulary.Task).index(task.name)
