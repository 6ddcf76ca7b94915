"""Version numbers that can be compared, packages that are missing, and the line that installs them."""

from __future__ import annotations

import re

from trainwiz.finding import Fix, installing, remedy
from trainwiz.machine import Machine


def parts(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `2.13.0+cpu` → (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(n) for n in found.group().split(".")) if found else ()


def install(python: str, *requirements: str) -> Fix:
    """What to type so that an interpreter has the packages."""
    wanted = " ".join(f"'{r}'" for r in requirements)
    return installing(remedy("run: {python} -m pip install {packages}", python=python, packages=wanted))


def lacks(machine: Machine, package: str) -> str | None:
    """The training interpreter's path if it is known to lack the package."""
    interpreter = machine.interpreter
    known = interpreter and interpreter.packages.get(package, "unknown") is None
    return interpreter.python if interpreter and known else None
