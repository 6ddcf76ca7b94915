"""`trainwiz init`: collect answers, decide, check, write, report."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import language, recipes
from trainwiz.decide import Decided
from trainwiz.decide.earlier_answers import carry, values_to_keep
from trainwiz.errors import PlanError, Refused, UsageError
from trainwiz.finding import errors
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.questions import BASIC
from trainwiz.recipes import Recipe
from trainwiz.shell_words import quoted
from trainwiz.store import answers as store
from trainwiz.ui import console, findings
from trainwiz.wizard import terminal
from trainwiz.workflows.create import project_files
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.create.request import Answers, InitRequest


def init(request: InitRequest) -> None:
    """Write a project, with questions or without. Raises `TrainwizError`."""
    person = terminal.available()
    saved = None
    if request.resume:
        request, saved = _resumed(request)
    elif person and not request.defaults:
        _tell_of_kept_answers(request.folder)
    project_files.check_folder(request.folder)
    resolution = project_files.resolution(request.force, request.on_conflict)
    session = store.session_file(request.folder)
    recipe = _recipe(request.recipe) if request.recipe else None
    gpus = recipe.gpus if recipe else ""
    planner = Planner(folder=request.folder, machine_file=request.machine, gpus=gpus, python=request.python)
    is_dialogue = person and not (request.defaults and request.yes)
    if not is_dialogue:
        planner.look()
    answers = _collect(request, saved, recipe)
    planner.sources = answers.sources
    if is_dialogue:
        # questionary is slow to import, and only a dialogue needs it.
        from trainwiz.workflows.create import dialogue

        final, decided = dialogue.hold(request, planner, answers, saved, session)
    else:
        _refuse_incomplete(request, answers)
        final, decided = _decide(planner, answers)
    may_ask, gpus = person and not request.yes, planner.gpus_elsewhere
    written = project_files.write(decided, request.folder, final, resolution, may_ask=may_ask, gpus=gpus)
    store.forget(session)
    options = {"--recipe": request.recipe, "--python": request.python, "--machine": planner.machine_file}
    from trainwiz.plan import parse_values

    implied = parse_values(recipe.answers) if recipe else {}
    own = {key: value for key, value in final.items() if key not in implied or implied[key] != value}
    given = {name: value for name, value in options.items() if value}
    elsewhere, host_bytes = planner.plans_elsewhere, decided.outlook.host_bytes
    outside = project_files.outside(decided.plan, request.folder) if elsewhere else ()
    project_files.report(
        written, request.folder, own, given, elsewhere=elsewhere, host_bytes=host_bytes, outside=outside
    )


def _resumed(request: InitRequest) -> tuple[InitRequest, store.Saved]:
    """The interrupted init of this folder, or, where no folder was named, the last one of any. Raises `UsageError`."""
    saved, place = store.read(store.session_file(request.folder)), request.place
    is_named = saved is not None or place != "."
    saved = saved if is_named else store.newest()
    if saved:
        if saved.language and not language.typed():
            language.choose(["--lang", saved.language])
        if not is_named:
            below = os.path.relpath(saved.folder)
            place = saved.folder if below.startswith(os.pardir) else below
            console.talk(t("continuing with the answers for {folder}", folder=place))
    if saved is None:
        raise UsageError(
            say("no saved answers for {folder}", folder=request.folder),
            say("run: trainwiz init {folder}", folder=quoted(request.folder)),
        )
    return request.resumed(place, saved.options), saved


def _tell_of_kept_answers(folder: Path) -> None:
    saved = store.read(store.session_file(folder))
    if saved and saved.answers:
        where = quoted(folder)
        console.talk(
            t(
                "Answers from an interrupted init were kept; to continue:\n  trainwiz init {folder} --resume",
                folder=where,
            ),
            style="dim",
        )


def _recipe(name: str) -> Recipe:
    found = recipes.named(name)
    if found is None:
        near = difflib.get_close_matches(name.lower(), [recipe.name for recipe in recipes.RECIPES], n=1, cutoff=0.4)
        raise UsageError(
            say("--recipe {name}: did you mean {near}?", name=name, near=near[0])
            if near
            else say("--recipe {name}: no such recipe", name=name),
            say("list them: trainwiz recipes"),
        )
    return found


def _collect(request: InitRequest, saved: store.Saved | None, recipe: Recipe | None) -> Answers:
    project = (request.folder / "trainwiz.yaml").exists()
    if not (request.flags or request.assignments or request.answers or saved or recipe or project):
        return Answers(given={})
    # Reading values takes pydantic, which the first question need not wait for where nothing was given.
    from trainwiz.workflows.create import answers

    earlier, edited = answers.of_project(request.folder)
    if saved is not None:
        earlier, edited = answers.legal(saved.answers), set()
    collected = answers.collect(request.flags, request.assignments, request.answers, earlier, edited, recipe=recipe)
    if saved is not None:
        collected = answers.with_given(collected, saved.given)
    return answers.with_edited_plan(collected, request.folder) if edited and not collected.given else collected


def _refuse_incomplete(request: InitRequest, answers: Answers) -> None:
    """Name everything that a user would be asked, at once."""
    missing = [] if request.yes else [say("--yes: confirm that the project may be written")]
    if not request.defaults:
        known = {**answers.earlier, **answers.given}
        missing += [
            say("{key}: {prompt}", key=q.key, prompt=q.prompt)
            for q in BASIC
            if q.when(known) and q.asked(known) and not set(q.sets) & known.keys()
        ]
    if missing:
        raise PlanError(
            missing,
            head=say("cannot ask questions with TERM=dumb; missing: {n}", n=len(missing))
            if terminal.is_dumb()
            else say("cannot ask questions without a terminal; missing: {n}", n=len(missing)),
            remedy=say(
                "pass answers with --set KEY=VALUE or --answers FILE, or use the defaults: trainwiz init {folder} "
                "--defaults --yes",
                folder=quoted(request.folder),
            ),
        )


def _decide(planner: Planner, answers: Answers) -> tuple[Mapping[str, Any], Decided]:
    """The final answers and their plan, without questions. Raises `Refused` for a plan with errors."""
    planner.decide(answers.given)
    kept, dropped = carry(answers.given, answers.earlier, planner.decide)
    if answers.edited_plan:
        kept |= values_to_keep(kept, answers.edited_plan, planner.decide)
    for lost in dropped:
        console.talk(
            t(
                "{key}: the earlier value {value} is no longer valid; a new value is chosen",
                key=lost.key,
                value=lost.value,
            )
        )
    final = {**answers.given, **kept}
    planner.wait()
    decided = planner.decide(final)
    found = planner.findings(decided.plan, complete=True)
    findings.show(found)
    if errors(found):
        raise Refused(
            say("the plan has errors: {n}; nothing was written", n=len(errors(found))),
            say("change these keys with --set KEY=VALUE"),
        )
    return final, decided
