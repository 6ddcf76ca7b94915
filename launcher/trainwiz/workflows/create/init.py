"""The course of `trainwiz init`, with a person or without."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.ui import console
from trainwiz.workflows.create.planner import Deciding

if TYPE_CHECKING:
    from trainwiz.decide import Decided
    from trainwiz.finding import Finding
    from trainwiz.plan import Plan
    from trainwiz.wizard import Interview
    from trainwiz.workflows.create.answers import Given
    from trainwiz.workflows.create.project_files import Resolution


@dataclass(kw_only=True)
class Init:
    """One `trainwiz init`. `terminal` says whether there is somebody to ask."""

    folder: Path
    flags: Mapping[str, str]
    assignments: Sequence[str]
    file: str | None
    resume: bool
    python: str | None
    machine_file: str | None
    defaults: bool
    yes: bool
    resolution: Resolution | None
    terminal: bool
    deciding: Deciding = field(init=False)

    def __post_init__(self) -> None:
        self.deciding = Deciding(folder=self.folder, machine_file=self.machine_file, python=self.python)

    def run(self) -> None:
        """Ask or decide, check, write, and say what comes next. Raises `TrainwizError`."""
        from trainwiz.store import answers as store

        session = store.session_file(self.folder)
        saved = self._saved(session)
        asks = self.terminal and not self.defaults
        if not self.terminal or (self.defaults and self.yes):
            self.deciding.look()
        given = self._given(saved.answers if saved else None)
        self.deciding.origins = given.origins
        if not self.terminal:
            self._name_what_is_missing(given)
        if not self.terminal or (self.defaults and self.yes):
            answers, decided = self._without_questions(given)
        else:
            answers, decided = self._with_questions(given, saved, session, asks)
        self._write(answers, decided)
        store.forget(session)

    def _saved(self, session: Path) -> Any:
        from trainwiz.errors import UsageError
        from trainwiz.store import answers as store

        saved = store.read(session)
        where = shlex.quote(str(self.folder))
        if self.resume and saved is None:
            raise UsageError(
                say("there are no kept answers for {folder}", folder=self.folder),
                say("trainwiz init {folder}", folder=where),
            )
        if saved and saved.answers and not self.resume and self.terminal and not self.defaults:
            console.talk(
                t("Answers of an interrupted init are kept; go on with: trainwiz init {folder} --resume", folder=where),
                style="dim",
            )
        return saved if self.resume else None

    def _given(self, resumed: Mapping[str, Any] | None) -> Given:
        from trainwiz.workflows.create import answers

        # Nothing was given: nothing to parse, and the first question need not wait for pydantic.
        project = (self.folder / "trainwiz.yaml").exists()
        if not (self.flags or self.assignments or self.file or resumed or project):
            return answers.Given(firm={})
        earlier, edited = answers.of_project(self.folder)
        if resumed is not None:
            earlier, edited = answers.legal(resumed), set()
        given = answers.collect(self.flags, self.assignments, self.file, earlier, edited)
        return answers.standing(given, self.folder) if edited and not given.firm else given

    def _name_what_is_missing(self, given: Given) -> None:
        from trainwiz.errors import PlanError
        from trainwiz.questions import BASIC

        missing = [] if self.yes else [say("--yes confirms that the project may be written")]
        if not self.defaults:
            known = {**given.earlier, **given.firm}
            missing += [
                say("{key}: {prompt}", key=q.key, prompt=q.prompt)
                for q in BASIC
                if q.when(known) and not set(q.sets) & known.keys()
            ]
        if missing:
            raise PlanError(
                missing,
                head=say("there is no terminal to ask on; missing: {n}", n=len(missing)),
                remedy=say(
                    "give answers with --set KEY=VALUE or --answers FILE, or take defaults: trainwiz init {folder} "
                    "--defaults --yes",
                    folder=shlex.quote(str(self.folder)),
                ),
            )

    def _without_questions(self, given: Given) -> tuple[dict[str, Any], Decided]:
        from trainwiz.decide.earlier import carry, standing
        from trainwiz.errors import Refused
        from trainwiz.finding import errors

        self.deciding(given.firm)
        carried, fallen = carry(given.firm, given.earlier, self.deciding)
        if given.standing:
            carried |= standing(carried, given.standing, self.deciding)
        for lost in fallen:
            console.talk(
                t("{key}: the earlier {value} no longer fits and is decided anew", key=lost.key, value=lost.value)
            )
        answers = {**given.firm, **carried}
        decided = self.deciding(answers)
        findings = self._show(self.deciding.findings(decided.plan, complete=True))
        if errors(findings):
            raise Refused(
                say("the plan has errors: {n}; nothing was written", n=len(errors(findings))),
                say("change the named keys with --set KEY=VALUE"),
            )
        return answers, decided

    def _with_questions(self, given: Given, saved: Any, session: Path, asks: bool) -> tuple[dict[str, Any], Decided]:
        from trainwiz.errors import Cancelled
        from trainwiz.store import answers as store
        from trainwiz.wizard import Interview, ask

        kept = False

        def save(answers: Mapping[str, Any], step: str) -> None:
            nonlocal kept
            if not (answers or interview.fixed):
                return
            state = store.Saved(answers={**answers, **interview.fixed}, step=step, advanced=interview.advanced)
            kept = store.write(session, state)

        interview = Interview(
            decide=self.deciding,
            objections=self._objections,
            save=save,
            ask=ask,
            talk=console.talk,
            fixed=given.firm,
            answers=dict(given.earlier),
            shown=self.deciding.look,
            advanced=bool(saved and saved.advanced),
        )
        try:
            if asks:
                interview.run(saved.step if saved and saved.step else "task")
            return self._settled(interview)
        except KeyboardInterrupt:
            if not kept:
                raise Cancelled(say("interrupted; only defaults were accepted, so there was nothing to keep")) from None
            raise Cancelled(
                say("interrupted; the answers are kept in {path}", path=session),
                say("trainwiz init {folder} --resume", folder=shlex.quote(str(self.folder))),
            ) from None

    def _settled(self, interview: Interview) -> tuple[dict[str, Any], Decided]:
        """Review and mend until the person has seen everything that speaks against the plan, and it has no errors."""
        from trainwiz.finding import errors
        from trainwiz.wizard import review

        seen: Sequence[Finding] = ()
        reviewed = self.yes
        while True:
            decided = interview.decided()
            findings = self.deciding.findings(decided.plan, complete=True)
            if findings != seen:
                seen = self._show(findings)
                reviewed = self.yes
            if errors(findings):
                self._reopen(interview, errors(findings)[0])
                seen = ()
            elif reviewed:
                return {**interview.answers, **interview.fixed}, decided
            else:
                review(interview)
                reviewed = True

    def _reopen(self, interview: Interview, finding: Finding) -> None:
        from trainwiz.errors import Refused
        from trainwiz.questions import question_for
        from trainwiz.wizard import Action, review

        try:
            left = interview.answer(question_for(finding.where)) is Action.BACK
        except KeyError:
            # No question changes what is wrong: a file, a folder, the environment.
            left = True
        if left and self.yes:
            raise Refused(say("the plan has errors; nothing was written"))
        if left:
            review(interview)

    def _objections(self, plan: Plan) -> Sequence[tuple[str, Message]]:
        from trainwiz.finding import errors

        return [(f.where, _with_fix(f)) for f in errors(self.deciding.findings(plan, complete=False))]

    def _show(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        if findings:
            from trainwiz.ui import findings as shown

            shown.show(findings)
        return findings

    def _write(self, answers: Mapping[str, Any], decided: Decided) -> None:
        from trainwiz.workflows.create import project_files

        ask = self.terminal and not self.yes
        written = project_files.write(decided, self.folder, answers, self.resolution, ask)
        extra = [
            x
            for flag, value in (("--python", self.python), ("--machine", self.machine_file))
            if value
            for x in (flag, value)
        ]
        project_files.report(written, self.folder, answers, extra)


def _with_fix(finding: Finding) -> Message:
    if finding.fix is None:
        return finding.message
    return say("{problem} → {fix}", problem=finding.message, fix=finding.fix.message)
