"""Questions and review: what a person answers, until the plan has no errors and the person has seen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import language, quantities
from trainwiz.decide import Decided
from trainwiz.errors import Cancelled, Refused
from trainwiz.finding import Finding, Level, errors
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.questions import question_for
from trainwiz.shell_words import quoted
from trainwiz.store import answers as store
from trainwiz.ui import console, findings
from trainwiz.wizard import Action, Interview, Trail, review
from trainwiz.wizard.prompts import ask, erase
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.create.request import Answers, InitRequest

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_FIRST = "task"


def hold(
    request: InitRequest, planner: Planner, answers: Answers, saved: store.Saved | None, session: Path
) -> tuple[Mapping[str, Any], Decided]:
    """Ask what is open, then show the review; return the final answers and their plan.

    After each answer they are saved in the session's file, so that Ctrl-C loses none. Raises `Cancelled`.
    """
    is_saved = False

    def save(current: Mapping[str, Any], step: str) -> None:
        nonlocal is_saved
        if not (current or interview.fixed):
            return
        state = store.Saved(
            answers={key: planner.located(key, value) for key, value in {**current, **interview.fixed}.items()},
            step=step,
            language=language.typed(),
            folder=str(request.folder.absolute()),
            options=replace(request, machine=planner.machine_file).options,
            given=tuple(interview.fixed),
        )
        is_saved = store.write(session, state)

    interview = Interview(
        decide=planner.decide,
        # The errors as far as they are known without waiting for the interpreter.
        objections=lambda plan: [(f.where, _with_fix(f)) for f in errors(planner.findings(plan, complete=False))],
        save=save,
        ask=ask,
        talk=console.talk,
        gauge=lambda plan: _gauge(planner, plan),
        fixed=answers.given,
        answers=dict(answers.earlier),
        submits=planner.submits,
        heard=planner.heard,
        shown=planner.look,
        trail=Trail(talked=console.rows_talked, erase=erase),
    )
    try:
        if not request.defaults:
            interview.run(saved.step if saved and saved.step else _FIRST)
        return _settled(interview, planner, reviewed=request.yes)
    except KeyboardInterrupt:
        if not is_saved:
            raise Cancelled(say("interrupted; only defaults were accepted, so there are no answers to keep")) from None
        raise Cancelled(
            say("interrupted; the answers were saved in {path}", path=session),
            say("run: trainwiz init {folder} --resume", folder=quoted(request.folder)),
        ) from None


def _gauge(planner: Planner, plan: Plan) -> str:
    """The forecast of a rank's peak as a bar of its GPU, or of its share of the host's memory."""
    # Not before a question shows it: the first one is asked without estimates.
    from trainwiz.decide.candidates import MOMENTS
    from trainwiz.decide.memory_bar import bar
    from trainwiz.estimate.forecast import forecast
    from trainwiz.estimate.reserve import FILLED
    from trainwiz.estimate.state import device_needs

    model, machine = planner.model(plan), planner.machine
    if model is None or not model.parameters:
        return ""
    need = device_needs(plan, model.parameters, model.transformer)
    if host := forecast(plan, model.parameters, model.transformer, gpu=None).host_bytes:
        # A CPU rank is a process, too: what Python and torch take themselves is most of a small one.
        beside = host - need.total
        need = replace(
            need, moments={at: {**each, "state": each["state"] + beside} for at, each in need.moments.items()}
        )
    if plan.machine.device != "cpu" and machine.gpus:
        memory = min(gpu.memory_bytes for gpu in machine.gpus)
    else:
        memory = machine.memory.total_bytes // plan.machine.ranks_per_machine
    if not memory:
        return ""
    words = {
        "bar": bar(need, memory),
        "need": quantities.size(need.total),
        "memory": quantities.size(memory),
        "moment": text(MOMENTS[need.peak]),
        "how": plan.model.activation_checkpointing,
    }
    if need.total > FILLED * memory:
        return t("{bar} {need} per rank, {moment}: does not fit into {memory} (recomputed: {how})", **words)
    return t("{bar} {need} of {memory} per rank, {moment} (recomputed: {how})", **words)


def _with_fix(finding: Finding) -> Message:
    if finding.fix is None:
        return finding.message
    return say("{problem} → {fix}", problem=finding.message, fix=finding.fix.message)


def _settled(interview: Interview, planner: Planner, *, reviewed: bool) -> tuple[Mapping[str, Any], Decided]:
    """Ask again and review until the plan has no errors and the person has seen every finding.

    `reviewed` at first says that no review is wanted.
    """
    unattended = reviewed
    shown: Sequence[Finding] = ()
    while True:
        planner.wait()
        decided = interview.decided()
        found = planner.findings(decided.plan, complete=True)
        if found != shown:
            # Advice that comes up after the review, as of a port taken meanwhile, is told, and no reason to ask.
            reviewed = unattended or (reviewed and all(each.level is Level.HINT for each in found if each not in shown))
            shown = found
            findings.show(found)
        if errors(found):
            _ask_again(interview, errors(found)[0], unattended=unattended)
            shown = ()
        elif reviewed:
            return {**interview.answers, **interview.fixed}, decided
        else:
            review(interview)
            reviewed = True


def _ask_again(interview: Interview, finding: Finding, *, unattended: bool) -> None:
    """Ask the question that changes what is wrong; the review where none does, or the person does not answer."""
    try:
        went_back = interview.answer(question_for(finding.where)) is Action.BACK
    except KeyError:
        # No question changes what is wrong: a file, a folder, the environment.
        went_back = True
    if went_back and unattended:
        raise Refused(say("the plan has errors; nothing was written"))
    if went_back:
        review(interview)
