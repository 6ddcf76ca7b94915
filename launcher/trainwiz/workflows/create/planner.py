"""Deciding with what this machine and the project's surroundings say; each is looked at once, when it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import tasks
from trainwiz.vocabulary import EMBEDDED

if TYPE_CHECKING:
    from trainwiz.decide import Decided, Source
    from trainwiz.finding import Finding
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan
    from trainwiz.project import Project

_PATHS = ("model.name", "data.train", "data.eval", "strategy.nvme_path")
_NAMES = {EMBEDDED, *tasks.preset_names()}


@dataclass(kw_only=True)
class Deciding:
    """Turns answers into a plan, on the machine that is here (or in a file) and for this folder."""

    folder: Path
    machine_file: str | None = None
    python: str | None = None
    origins: Mapping[str, Source] = field(default_factory=dict)
    _machine: Future[Machine] | None = None
    _projects: dict[tuple[object, ...], Project] = field(default_factory=dict)

    def look(self) -> None:
        """Begin to look at the machine, in the background; the training interpreter takes longest."""
        if self._machine is None:
            pool = ThreadPoolExecutor(1)
            self._machine = pool.submit(self._here)
            pool.shutdown(wait=False)

    @property
    def machine(self) -> Machine:
        """The machine, without its interpreter where that is still being looked at."""
        if self._machine is None:
            self._machine = Future()
            self._machine.set_result(self._here())
        return self._machine.result()

    def __call__(self, answers: Mapping[str, Any]) -> Decided:
        """The plan that the answers make. Raises `PlanError` where they cannot all hold."""
        from trainwiz.decide import decide

        answers = {key: self._located(key, value) for key, value in answers.items()}
        decided = decide(answers, self.machine, origins=self.origins)
        project = self._project(decided.plan)
        parameters = project.model.parameters if project.model else None
        samples = project.train.samples if project.train else None
        if parameters is None and samples is None:
            return decided
        return decide(answers, self.machine, origins=self.origins, parameters=parameters, samples=samples)

    def findings(self, plan: Plan, *, complete: bool) -> tuple[Finding, ...]:
        """What the rules say; `complete` waits for the training interpreter, where it is still being looked at."""
        from trainwiz import rules
        from trainwiz.rules.registry import check
        from trainwiz.workflows import facts

        machine = self.machine
        if complete and machine.interpreter is None:
            machine = facts.machine(machine_file=self.machine_file, python=self.python, folder=self._nearest())
        # What is wrong with generated files is mended by generating them, which comes next.
        return check(
            facts.gather(plan, str(self.folder), machine), rules=rules.of_plans(), ignore=(rules.GENERATED_FILES,)
        )

    def _here(self) -> Machine:
        from trainwiz.workflows import facts

        return facts.machine(machine_file=self.machine_file, python=self.python, folder=self._nearest(), wait=False)

    def _project(self, plan: Plan) -> Project:
        from trainwiz.probe import project

        key = (plan.task, plan.model, plan.data, plan.batch.sequence_length)
        if key not in self._projects:
            self._projects[key] = project.project(plan, str(self.folder))
        return self._projects[key]

    def _located(self, key: str, value: Any) -> Any:
        # A plan's paths count from its folder; what a person types counts from where they are.
        if key not in _PATHS or not isinstance(value, str) or value in _NAMES:
            return value
        typed = Path(os.path.expanduser(value))
        if typed.is_absolute():
            return str(typed)
        return str(typed.absolute()) if typed.exists() and not (self.folder / typed).exists() else value

    def _nearest(self) -> str:
        # The disk that counts is the one that the folder will lie on.
        folder = self.folder.absolute()
        while not folder.is_dir():
            folder = folder.parent
        return str(folder)
