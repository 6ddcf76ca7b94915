"""Names that a script gives a value as it runs, and that its own functions and classes use as globals.

The main block gives them, or the module itself where it trains on import: neither runs in a project.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainwiz.message import say
from trainwiz.script.definitions import given, used
from trainwiz.script.slices import OWN, Gap, Slice, Slicer
from trainwiz.script.tree import is_main_guard, walk

if TYPE_CHECKING:
    from trainwiz.script import Script

_OF_OWN = re.compile(rf"\b{OWN}\.(\w+)")


_OF_ENGINE = ("Accelerator", "Booster", "DataLoader", "DeepSpeedEngine", "Fabric", "Optimizer", "Scheduler")
"""Kinds of objects of which a project makes its own: a second one would be another than the one that trains."""


def wanted(script: Script, slices: Iterable[Slice]) -> tuple[str, ...]:
    """The names that the definitions behind these slices use but do not make, in the order of the alphabet."""
    guards = [one for one in script.tree.module.body if is_main_guard(one)]
    inside = {name for guard in guards for one in walk(guard) if isinstance(one, ast.stmt) for name in given(one)}
    outside = {name: one for one in script.tree.module.body if not is_main_guard(one) for name in given(one)}
    if script.runs_when_imported:
        inside, outside = inside | script.definitions.made, script.definitions.own
    if not inside:
        return ()
    texts = (part for one in slices for part in (*one.outer, *one.inner, one.expression))
    waiting = {name for text in texts for name in _OF_OWN.findall(text)}
    seen, missing = set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name in outside:
            waiting |= used(outside[name]) - seen
        elif name in inside and name not in script.names.imports and not hasattr(builtins, name):
            missing.add(name)
    return tuple(sorted(missing))


def slice_of(script: Script, names: Iterable[str], at: ast.AST, trained: str) -> Slice:
    """The statements that give these names their values before a node. Raises `Gap`.

    `trained` is the name of the model: what uses it as a global cannot be had, since it would use another model.
    """
    loads = [ast.copy_location(ast.Name(name, ast.Load()), at) for name in names]
    for load in loads:
        if load.id == trained or script.engines.kind(load) in _OF_ENGINE:
            raise Gap(at, say("{name} is what the project makes itself", name=load.id))
    every = ast.copy_location(ast.Tuple([*loads], ast.Load()), at)
    for node in (every, *loads):
        node._parent = at.__dict__.get("_parent")  # type: ignore[attr-defined]
    return Slicer(script).of(every)
