"""Completions of values on the command line. Only a shell that completes asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import get_args

from trainwiz import vocabulary


def values(command: str, parameter: str) -> Iterable[str]:
    """The values of a command's parameter; none where the shell should offer files."""
    if parameter in _RUNS.get(command, ()):
        return _run_names()
    offered = _VALUES.get(parameter)
    return offered() if offered else ()


def _tasks() -> Iterable[str]:
    return get_args(vocabulary.Task)


def _strategies() -> Iterable[str]:
    from trainwiz import strategies

    for row in strategies.every():
        yield row.label
        if row.offload_speed:
            yield f"{row.label}+offload"


def _presets() -> Iterable[str]:
    from trainwiz import tasks

    return sorted(tasks.preset_names())


def _recipes() -> Iterable[str]:
    from trainwiz.recipes import RECIPES

    return [recipe.name for recipe in RECIPES]


def _rules() -> Iterable[str]:
    from trainwiz import rules

    return [rule.id for rule in rules.load()]


def _keys() -> Iterable[str]:
    from trainwiz import plan

    return plan.fields()


def _run_names() -> Iterable[str]:
    """Those of the project that the shell is in, the newest first."""
    from trainwiz.store import runs

    made = [run.name for run in reversed(runs.every(Path()))]
    return [runs.LATEST, *made] if made else ()


_RUNS = {
    **dict.fromkeys(("report", "share", "replay"), ("run", "compare")),
    **dict.fromkeys(("stop", "logs", "watch"), ("target", "run")),
    **dict.fromkeys(("chat", "sample", "diagnose"), ("target",)),
    "diff": ("before", "after"),
    "launch": ("resume",),
}
"""The parameters that name runs, by command."""
_VALUES: Mapping[str, Callable[[], Iterable[str]]] = {
    "task": _tasks,
    "strategy": _strategies,
    "model": _presets,
    "recipe": _recipes,
    "precision": lambda: get_args(vocabulary.MixedPrecision),
    "device": lambda: get_args(vocabulary.Device),
    "on_hang": lambda: get_args(vocabulary.OnHang),
    "assignments": lambda: (f"{key}=" for key in _keys()),
    "topic": lambda: ("keys", *_rules(), *_keys()),
    "select": _rules,
    "ignore": _rules,
    "lang": lambda: ("en", "zh"),
}
"""Values by parameter, where they are the same for each command that has it."""
