"""A rehearsal: look at task.py, train a small copy of the project several times, and compare the runs."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz import tasks
from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import say
from trainwiz.probe import host, interpreter
from trainwiz.probe import rehearsal as programs
from trainwiz.rehearsal import comparison, schedule, setup, task
from trainwiz.rehearsal.check import Check, failed
from trainwiz.rehearsal.result import RunResult
from trainwiz.rehearsal.setup import Setup
from trainwiz.store import artifacts, plans, rehearsals
from trainwiz.store.rehearsals import Workspace
from trainwiz.ui import console
from trainwiz.ui import rehearsal as card
from trainwiz.workflows.launch import ops
from trainwiz.workflows.rehearse import trial_run
from trainwiz.workflows.rehearse.request import Request
from trainwiz.workflows.rehearse.trial_run import Environment

_MODEL_FIELD = "model_name"
_TOKENIZER_FIELD = "tokenizer_name"
_LENGTH_FIELD = "sequence_length"


def rehearse(request: Request) -> int:
    """Show the report card; 1 if anything failed. Raises `UsageError` for a project that cannot be read."""
    began = time.monotonic()
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), plan_file.parent.absolute()
    _refuse_conflicts(folder)
    fields = setup.declared_fields(rehearsals.sources(folder))
    small = setup.small_copy(plan, fields, by_hand=_by_hand(request.arguments, fields), updates=request.updates)
    workspace = Workspace(request.keep or None)
    environment = Environment(
        folder=folder,
        python=interpreter.located(request.python or sys.executable),
        workspace=workspace,
        machine=host.host(str(folder), interfaces=False),
    )
    try:
        checks = tuple(_checks(environment, small, fields, train=not request.task_only))
        if failed(checks) and workspace.has_runs:
            workspace.kept = True
    finally:
        workspace.remove()
    _report(checks, small, request, time.monotonic() - began, workspace)
    return 1 if failed(checks) else 0


def _refuse_conflicts(folder: Path) -> None:
    """Raise `UsageError` for a file in which a merge left a conflict: task.py would be blamed for it."""
    for path, line in artifacts.conflict_markers(folder, sorted(file.name for file in folder.glob("*.py"))):
        raise UsageError(
            say("{file} still contains both sides of a conflict", file=f"{path}:{line}"),
            say("keep the correct lines, and delete the markers"),
        )


def _by_hand(words: Sequence[str], fields: Mapping[str, Any]) -> dict[str, str]:
    """The script's settings by name. Raises `UsageError` for those that it does not have or a rehearsal sets itself."""
    joined = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    names, values = joined[::2], joined[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise UsageError(
            say("{words}: write script settings as --name value", words=" ".join(words)),
            say("run: trainwiz rehearse DIR -- --hidden_size 32"),
        )
    found = {name[2:]: value for name, value in zip(names, values, strict=True)}
    for name, word in found.items():
        if name not in fields:
            raise UsageError(say("{name}: no such field in Config or TaskConfig", name=name))
        if name in setup.RESERVED:
            raise UsageError(say("{name} is set by the rehearsal itself", name=name), say("remove it"))
        try:
            _typed(fields[name], word)
        except ValueError:
            raise UsageError(
                say(
                    "{name}: {word} does not have the same type as {default}",
                    name=name,
                    word=word,
                    default=fields[name],
                )
            ) from None
    return found


def _checks(environment: Environment, small: Setup, fields: Mapping[str, Any], *, train: bool) -> Iterator[Check]:
    console.talk(t("checking task.py …"), style="dim")
    cut, scale = rehearsals.first_parts(environment.folder, fields, environment.workspace.place("data"))
    model, problem = small_model(environment, small, fields)
    if problem:
        yield problem
        return
    by_hand = {name: _typed(fields[name], word) for name, word in small.by_hand.items()}
    found, values = look(environment, small, fields, {**small.values, **cut, **model}, by_hand, scale)
    yield from task.checks(found, small.plan)
    if "schedule" in found:
        yield schedule.check(found["schedule"], estimated=bool(fields.get("n_epochs")) and scale != 1)
    if not train or "length" not in found:
        return
    if obstacle := setup.obstacle(small.plan):
        yield Check(name="runs", title=say("runs"), verdict="skipped", found=obstacle)
        return
    random_loss = bool(found.get("loss", {}).get("random"))
    samples = min(small.samples, found["length"])
    small = dataclasses.replace(small, values=values, samples=samples, random_loss=random_loss)
    yield from comparison.checks(small, _results(environment, small))


def look(
    environment: Environment,
    small: Setup,
    fields: Mapping[str, Any],
    values: Mapping[str, Any],
    by_hand: Mapping[str, Any],
    scale: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is seen of task.py, and the values that it was seen with: the shortest samples that it can load."""
    found: dict[str, Any] = {}
    settled, part = dict(values), scale
    planned = fields[_LENGTH_FIELD] if _LENGTH_FIELD in values else 0
    for length in small.lengths(planned) if planned else (0,):
        if planned:
            settled[_LENGTH_FIELD] = length
            part = scale * length / planned if tasks.of(small.plan).generative else scale
        found = programs.look(
            environment.python, environment.folder, values={**settled, **by_hand}, planned=small.planned, scale=part
        )
        if "length" in found:
            break
    return found, settled


def small_model(
    environment: Environment, small: Setup, fields: Mapping[str, Any]
) -> tuple[dict[str, str], Check | None]:
    """The field that names a small model of the same architecture, and the failed check if none could be made."""
    name = fields.get(_MODEL_FIELD)
    if not name:
        return {}, None
    if _MODEL_FIELD in small.by_hand:
        return _its_tokenizer(environment.folder, small.by_hand[_MODEL_FIELD], fields), None
    into = environment.workspace.place("model")
    made = programs.small_model(
        environment.python, environment.folder, name=name, auto_class=tasks.of(small.plan).auto_class, into=into
    )
    if "error" not in made:
        return {_MODEL_FIELD: str(into)}, None
    return {}, Check(
        name="small_model",
        title=say("small model"),
        verdict="failed",
        found=say("cannot create a small version of {name}: {what}", name=name, what=made["error"]["what"]),
        fix=say("rehearse with your own small model: trainwiz rehearse DIR -- --model_name FOLDER"),
    )


def _its_tokenizer(folder: Path, model: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """That of a model that was named by hand, where the plan's is the model's own and the folder has one."""
    own = folder / model
    has_one = not own.is_dir() or any((own / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return {_TOKENIZER_FIELD: model} if has_one and fields.get(_TOKENIZER_FIELD) == fields[_MODEL_FIELD] else {}


def _results(environment: Environment, small: Setup) -> dict[str, RunResult]:
    """Run one after the other; none after the first failed, and none that would resume from one that failed."""
    results: dict[str, RunResult] = {}
    planned = list(small.runs())
    # Within the ranks it would be taken for a hang.
    ops.build(small.plan, python=environment.python, machine=environment.machine, added=programs.CPU_ONLY)
    for number, run in enumerate(planned, start=1):
        if run.name != "whole" and not results["whole"].succeeded:
            break
        if run.resumes and not results[run.resumes].succeeded:
            continue
        values = {"number": number, "of": len(planned), "what": text(run.title), "world": run.split.world}
        console.talk(t("run {number} of {of}: {what}, ranks: {world} …", **values), style="dim")
        results[run.name] = trial_run.train(environment, small, run)
        dropout = any(rank.get("dropout") for rank in results["whole"].notes)
        if run.name == "whole" and (dropout or small.random_loss):
            planned.append(small.run_without_dropout())
    return results


def _typed(default: Any, word: str) -> Any:
    if isinstance(default, bool):
        return word == "true"
    return type(default)(word) if isinstance(default, int | float) else word


def _report(checks: Sequence[Check], small: Setup, request: Request, seconds: float, workspace: Workspace) -> None:
    for note in small.notes:
        console.talk(console.styled(t("note: {what}", what=text(note)), "dim"))
    if request.json:
        console.data_json(
            {
                "passed": not failed(checks),
                "seconds": round(seconds, 1),
                "checks": [card.to_dict(check) for check in checks],
                "notes": [text(note) for note in small.notes],
            }
        )
    else:
        card.show(checks, seconds=seconds)
    if workspace.kept:
        console.talk(t("logs, metrics and checkpoints of the runs: {folder}", folder=workspace.folder))
