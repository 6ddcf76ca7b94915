"""Makes plans from answers, for the machine and the folder where they will train.

Rules and probes are imported when they are needed: the first question is asked without them.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import cluster, schedulers, tasks
from trainwiz.decide import Decided, Source, decide
from trainwiz.errors import UsageError
from trainwiz.estimate.gpus import gpu_model
from trainwiz.finding import Finding, Level
from trainwiz.machine import Machine
from trainwiz.probe import programs
from trainwiz.project import ModelFacts, Project
from trainwiz.questions import Question
from trainwiz.vocabulary import EMBEDDED
from trainwiz.workflows import facts
from trainwiz.workflows.planning import price
from trainwiz.workflows.planning.quantity import machine_named

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_PATHS = ("model.name", "data.train", "data.eval", "strategy.nvme_path")
_SOURCES = ("data.train", "data.eval")
"""Keys that may name several."""
_NAMES = {EMBEDDED, *tasks.preset_names()}


@dataclass(kw_only=True)
class Planner:
    """Decides and checks plans. The machine and each model and dataset are looked at once, when they are needed."""

    folder: Path
    """The project's folder; may be missing."""
    machine_file: str | None = None
    """A machine to plan for instead of this one."""
    gpus: str = ""
    """GPUs to plan for where there is no such file: 8xH100; empty: this machine."""
    python: str | None = None
    """The interpreter that will train; None for the running one."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where answers come from that nobody typed."""
    _machine: Future[Machine] | None = None
    _heard: list[str | None] = field(default_factory=list)
    """The `machine_file` before a person named another machine; empty while nobody has."""
    _projects: dict[tuple[object, ...], Project] = field(default_factory=dict)

    def look(self) -> None:
        """Start to examine the machine in the background; the interpreter takes longest."""
        if self._machine is None:
            pool = ThreadPoolExecutor(1)
            self._machine = pool.submit(self._examine, wait=False)
            pool.shutdown(wait=False)

    @property
    def plans_elsewhere(self) -> bool:
        """Whether another machine than this one will train."""
        return bool(self.machine_file or self.gpus)

    @property
    def gpus_elsewhere(self) -> str:
        """The GPUs of that machine, as `machine_named` reads them; empty where they differ, and for this machine."""
        gpus = self.machine.gpus if self.plans_elsewhere else ()
        name = gpu_model(gpus[0].name) if len({gpu.name for gpu in gpus}) == 1 else None
        return f"{len(gpus)}x{name.name}" if name else ""

    @property
    def machine(self) -> Machine:
        """The machine, without its interpreter while that is still being examined."""
        if self._machine is None:
            self._machine = Future()
            self._machine.set_result(self._examine(wait=False))
        return self._machine.result()

    def submits(self) -> bool:
        """Whether a scheduler is at hand, and this machine seems not to be one of those that will train."""
        if self.machine.probed and self.machine.gpus:
            return False
        return cluster.job(os.environ) is None and bool(programs.at_hand(os.environ))

    def heard(self, question: Question, typed: str, values: Mapping[str, Any]) -> str:
        """Machines of a job that are named by their GPUs, 2x8xH100, as devices: they are planned for from now on."""
        if question.key == "cluster.kind" and typed == "none" and self._heard:
            self._plan_for(self._heard.pop())
        if question.key != "machine.num_processes" or schedulers.named(str(values.get("cluster.kind"))) is None:
            return typed
        try:
            machine, count = machine_named(typed)
        except UsageError:
            return typed
        if not self._heard:
            self._heard.append(self.machine_file)
        self._plan_for(f"{len(machine.gpus)}x{machine.gpus[0].name}")
        return f"cuda {count}x{len(machine.gpus)}"

    def decide(self, answers: Mapping[str, Any]) -> Decided:
        """The plan that the answers make. Raises `PlanError` where they contradict each other."""
        decided = self._decided(answers)
        outlook, ranks = decided.outlook, decided.plan.machine.num_processes
        return replace(decided, outlook=replace(outlook, cost=price.cost(self.machine, ranks, outlook.seconds)))

    def _decided(self, answers: Mapping[str, Any]) -> Decided:
        answers = {key: self.located(key, value) for key, value in answers.items()}
        decided = decide(answers, self.machine, origins=self.sources)
        project = self._project(decided.plan)
        if project.model is None and project.train is None:
            return decided
        found = decide(answers, self.machine, origins=self.sources, model=project.model, data=project.train)
        if _columns(found.plan) == _columns(decided.plan):
            return found
        # How much text there is shows only in the right column.
        project = self._project(found.plan)
        return decide(answers, self.machine, origins=self.sources, model=project.model, data=project.train)

    def folder_of(self, name: str) -> Path | None:
        """The folder that a model's name means, from the project's folder or from here; None for another name."""
        places = (place / os.path.expanduser(name) for place in (self.folder, Path()))
        return next((place for place in places if place.is_dir()), None)

    def model(self, plan: Plan) -> ModelFacts | None:
        """What is known of the plan's model."""
        return self._project(plan).model

    def wait(self) -> None:
        """Wait for the interpreter that will train to be examined: what it has installed decides, too."""
        if self.machine.interpreter is None:
            self._machine = Future()
            self._machine.set_result(self._examine(wait=True))

    def findings(self, plan: Plan, *, complete: bool) -> tuple[Finding, ...]:
        """What the rules say; `complete` waits for the interpreter that will train to be examined.

        A missing package is a warning: a launch needs it, and requirements.txt names it.
        """
        from trainwiz.rules import GENERATED_FILES

        if complete:
            self.wait()
        # Generated files are written next, so that what is wrong with them does not matter.
        machine = facts.training_machine(plan, self.machine)
        found = facts.findings(plan, str(self.folder), machine, ignore=(GENERATED_FILES,))
        return tuple(replace(f, level=Level.WARNING) if f.level is Level.ERROR and _installs(f) else f for f in found)

    def _plan_for(self, machine_file: str | None) -> None:
        self.machine_file, self._machine = machine_file, None

    def _examine(self, *, wait: bool) -> Machine:
        if self.gpus and not self.machine_file:
            return machine_named(self.gpus)[0]
        # The disk that counts is the one that the folder will lie on.
        folder = self.folder.absolute()
        while not folder.is_dir():
            folder = folder.parent
        return facts.machine(machine_file=self.machine_file, python=self.python, folder=str(folder), wait=wait)

    def _project(self, plan: Plan) -> Project:
        from trainwiz.probe import project

        key = (plan.task, plan.model, plan.data, plan.batch.sequence_length)
        if key not in self._projects:
            self._projects[key] = project.project(plan, str(self.folder))
        return self._projects[key]

    def located(self, key: str, value: Any) -> Any:
        """An answer with the paths in it as they count from the project's folder, not from where a person types."""
        if key in _SOURCES and isinstance(value, str) and not Path(os.path.expanduser(value)).exists():
            return ", ".join(self._located_path(name) for name in re.split(r",\s*(?![^\[]*\])", value))
        if key not in _PATHS or not isinstance(value, str):
            return value
        return self._located_path(value)

    def _located_path(self, value: str) -> str:
        if value in _NAMES:
            return value
        typed = Path(os.path.expanduser(value))
        if typed.is_absolute():
            return str(typed)
        there, here = (
            any(glob.iglob(value, recursive=True)),
            any(glob.iglob(value, root_dir=self.folder, recursive=True)),
        )
        is_there = typed.exists() or (glob.has_magic(value) and there)
        return str(typed.absolute()) if is_there and not (self.folder / typed).exists() and not here else value


def _installs(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.installs


def _columns(plan: Plan) -> tuple[str | None, ...]:
    return plan.data.columns, plan.data.text_column, plan.data.label_column
