"""The rules, one folder for each thing they judge: `plan/`, `files/`, `tools/` and `script/`.

Their ids by subject: TW1xx environment, TW2xx precision, TW3xx sharding and offload, TW4xx batch and schedule,
TW5xx checkpoint and data, TW6xx cluster and launch, TW7xx a user's own script, TW8xx files of other training
tools, TW9xx files that start trainings.
"""

from __future__ import annotations

import importlib
import pkgutil

from trainwiz.rules.registry import REGISTRY, Facts, Rule, check, rule

__all__ = [
    "GENERATED_FILES",
    "REGISTRY",
    "Facts",
    "Rule",
    "check",
    "load",
    "of_configurations",
    "of_plans",
    "of_scripts",
    "rule",
]

GENERATED_FILES = "TW52"
"""Prefix of the rules on generated files; generating the files again satisfies all of them."""


def load() -> tuple[Rule, ...]:
    """Every rule, by id."""
    return tuple(sorted((*of_plans(), *of_scripts(), *of_configurations()), key=lambda r: r.id))


def of_plans() -> tuple[Rule, ...]:
    """The rules on plans and machines, by id."""
    return _in_folder("plan")


def of_scripts() -> tuple[Rule, ...]:
    """The rules on training scripts, by id."""
    return _in_folder("script")


def of_configurations() -> tuple[Rule, ...]:
    """The rules on files of other programs, by id."""
    return tuple(sorted((*_in_folder("files"), *_in_folder("tools")), key=lambda r: r.id))


def _in_folder(folder: str) -> tuple[Rule, ...]:
    """Import every module of a folder, which registers its rules; no other folder is imported."""
    package = importlib.import_module(f"{__name__}.{folder}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted((r for r in REGISTRY.values() if r.folder == folder), key=lambda r: r.id))
