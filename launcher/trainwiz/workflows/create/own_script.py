"""The script that an import is given: its model, data and loss become the task.py of a project."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from trainwiz import strategies, tasks
from trainwiz.adoption import Left, own_code
from trainwiz.decide import Source
from trainwiz.errors import Refused
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.record.tokens import HIDDEN
from trainwiz.render import own_secrets, own_task
from trainwiz.render.artifact import Artifact
from trainwiz.script import Script
from trainwiz.script.pieces import Pieces, pieces
from trainwiz.shell_words import operand
from trainwiz.store import templates

_MODULES = ("train_templates/loops/", "train_templates/parts/", "train_templates/tasks/", "train_templates/imported/")
_HOOK = "build_optimizers"
_LONGEST_PATH = 200
_RATE = "optimizer.learning_rate"
_SHAPE, _WARMUP = "schedule.lr_scheduler_type", "schedule.n_warmup_steps"
_OF_OPTIMIZER = ("optimizer.name", "optimizer.weight_decay", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon")


@dataclass(frozen=True, kw_only=True)
class OwnScript:
    """A script with the pieces of it that were found."""

    script: Script
    """The script, parsed."""
    pieces: Pieces
    """Its model, data and loss."""
    as_code: bool
    """Whether task.py takes them; False: the user chose another task for the plan."""

    @property
    def answers(self) -> Mapping[str, Any]:
        """What it answers of the plan."""
        if not self.as_code:
            return {}
        constant = {_SHAPE: "constant", _WARMUP: 0} if self.makes_schedule else {}
        return {"task": _own_task(), "data.eval": None, **constant}

    @property
    def sources(self) -> Mapping[str, Source]:
        """Where these answers come from."""
        name = Path(self.script.file).name
        source = Source(kind="file", reason=say("{file} has its own model, data and loss", file=name))
        schedule = Source(kind="file", reason=say("task.py has the schedule of {file}", file=name))
        return {key: schedule if key in (_SHAPE, _WARMUP) else source for key in self.answers}

    @property
    def left(self) -> tuple[Left, ...]:
        """What of its code the project does not have."""
        found = own_code.left(self.script, self.pieces, as_code=self.as_code)
        return (*found, *self._hidden(), *self._secrets()) if self.as_code else found

    def _hidden(self) -> Iterator[Left]:
        """The script's own modules that the project's modules of the same name would hide."""
        taken = {PurePath(path).stem for path in templates.load() if path.startswith(_MODULES)} - {"own"}
        beside = self._beside
        for node in self.script.tree.outlines[-1].imports:
            for name in sorted(own_code.modules(node) & beside & taken):
                why = say("the project has a module of this name, too; rename yours")
                yield own_code.entry(self.script, "code", f"import {name}", node, why)

    def _secrets(self) -> Iterator[Left]:
        """The secrets in what task.py takes, which it reads from variables."""
        parts = own_task.slices(self.pieces)
        texts = [line for one in parts for line in (*one.outer, *one.inner, one.expression) if line]
        found = {value: variable for text in texts for value, variable in own_secrets.variables(text).items()}
        nodes = [one for one in ast.walk(self.script.tree.module) if isinstance(one, ast.Constant)]
        for value, variable in found.items():
            node = next((one for one in nodes if one.value == value), self.script.tree.module)
            why = say("a secret; task.py reads it from the variable {name}: set it before the launch", name=variable)
            entry = own_code.entry(self.script, "lost", "token", node, why)
            yield replace(entry, value=HIDDEN)

    @property
    def _beside(self) -> frozenset[str]:
        """The modules beside the script."""
        folder = Path(os.path.realpath(self.script.file)).parent
        return frozenset(path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir())

    @property
    def taken(self) -> dict[str, int]:
        """The lines of what task.py takes, by the piece's name."""
        every = (*self.pieces.all, *([self.pieces.optimizer] if self.pieces.optimizer else []))
        found = (one for one in every if one.taken and not isinstance(one.node, ast.Module))
        lines = {one.name: getattr(one.node, "lineno", 1) for one in found}
        return lines | (
            {"schedule": self.pieces.schedule.node.lineno} if self.makes_schedule and self.pieces.schedule else {}
        )

    @property
    def makes_schedule(self) -> bool:
        """Whether task.py has the script's own schedule."""
        return self.as_code and self.pieces.schedule is not None and not self.pieces.late_warmup

    def makes_optimizer(self, plan: Plan) -> bool:
        """Whether task.py can make the script's own optimizer."""
        found = self.pieces.optimizer or (self.pieces.lightning and self.pieces.lightning.configures)
        return self.as_code and bool(found) and _HOOK not in strategies.of(plan).refused_hooks(plan)

    def covers(self, left: Left, plan: Plan) -> bool:
        """Whether task.py does what an entry says the plan cannot."""
        if left.key == _SHAPE:
            return self.makes_schedule
        return self.makes_optimizer(plan) and left.key in _OF_OPTIMIZER

    def told(self, left: Left, plan: Plan) -> Left:
        """An entry as it is, or what task.py makes of it."""
        if left.kind == "open" and left.key == _RATE and self.makes_optimizer(plan):
            return replace(left, kind="code", why=say("build_optimizers takes it from the script, not from the plan"))
        return left

    def files(self, folder: Path, plan: Plan, carried: Collection[str]) -> Callable[[str], tuple[Artifact, ...]] | None:
        """Makes `task.py` and what it needs from the example that the plan generates."""
        if not self.as_code:
            return None
        path = os.path.relpath(os.path.realpath(self.script.file), os.path.realpath(folder))
        return lambda example: own_task.files(
            self.pieces,
            example,
            templates.load(),
            script=path,
            name=Path(self.script.file).name,
            lines=self.script.lines,
            beside=self._beside,
            decided=("optimizer", *carried) if self.makes_optimizer(plan) else (),
            start=self._start(folder),
        )

    def _start(self, folder: Path) -> str:
        """The folder that the script's relative paths begin at, from the project's; empty where none names a file.

        That is where people start it: this one, or the script's own.
        """
        nodes = (one for part in self.script.parts for one in ast.walk(part.module) if isinstance(one, ast.Constant))
        texts = {one.value for one in nodes if isinstance(one.value, str)}
        paths = {
            text for text in texts if 1 < len(text) < _LONGEST_PATH and text.isprintable() and not os.path.isabs(text)
        }
        for start in (Path.cwd(), Path(os.path.realpath(self.script.file)).parent):
            if any((start / path).exists() for path in paths if path.strip("./")):
                return os.path.relpath(start, os.path.realpath(folder))
        return ""


def of(script: Script, given: Mapping[str, Any]) -> OwnScript:
    """The script, for a plan with these values."""
    task = tasks.named(given.get("task", _own_task()))
    found = pieces(script)
    if task.own_code and found.trainer and found.trainer.writes_answers:
        at = script.place(found.trainer.call.node)
        raise Refused(
            say(
                "{place}: with {name} the model writes answers as it trains; a project trains on data that exists "
                "beforehand",
                place=f"{at.file}:{at.line}",
                name=found.trainer.name,
            ),
            say(
                "start the script itself: trainwiz launch --config accelerate.yaml {script}",
                script=operand(script.file),
            ),
            place=at,
        )
    return OwnScript(script=script, pieces=found, as_code=task.own_code)


def _own_task() -> str:
    return next(task.name for task in tasks.every() if task.own_code)
