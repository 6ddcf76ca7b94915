"""A rehearsal: look at the task, run the acts one after the other, and hold them against each other."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from trainwiz.cli.rehearse import Options
from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.ui import console
from trainwiz.workflows.rehearse import runs

if TYPE_CHECKING:
    from trainwiz.rehearsal.check import Check
    from trainwiz.rehearsal.runs import Seen
    from trainwiz.rehearsal.scene import Scene
    from trainwiz.store.rehearsals import Stage

_MODEL_FIELD = "model_name"
_ROWS_OF_TOKENS = ("causal_lm", "sft")
"""Tasks whose data has the fewer samples the longer these are."""


def rehearse(options: Options) -> int:
    """Show the report card; 1 if anything failed. Raises `UsageError` for a project that cannot be read."""
    from trainwiz.probe import host
    from trainwiz.rehearsal import check, scene
    from trainwiz.store import plans, rehearsals
    from trainwiz.workflows import interpreter

    began = time.monotonic()
    plan_file = plans.find(options.folder)
    plan, folder = plans.read(plan_file), plan_file.parent.absolute()
    fields = scene.declared(rehearsals.sources(folder))
    _check_usage(options, fields)
    stage = rehearsals.Stage(options.keep)
    house = runs.House(
        folder=folder,
        python=interpreter.path_of(options.python),
        stage=stage,
        machine=host.host(str(folder), interfaces=False),
    )
    try:
        planned = scene.scene(plan, fields, by_hand=options.by_hand, updates=options.updates)
        checks = tuple(_checks(house, planned, fields, options, scene.without_runs(plan)))
        if check.failed(checks) and stage.has_runs:
            stage.kept = True
    finally:
        stage.remove()
    _report(checks, planned, options, time.monotonic() - began, stage)
    return 1 if check.failed(checks) else 0


def _check_usage(options: Options, fields: dict[str, Any]) -> None:
    from trainwiz.rehearsal import scene

    for name, word in options.by_hand.items():
        if name not in fields:
            raise UsageError(say("{name}: neither Config nor TaskConfig has such a field", name=name))
        if name in scene.OWN:
            raise UsageError(say("{name} is what a rehearsal sets itself", name=name), say("leave it out"))
        try:
            _typed(fields[name], word)
        except ValueError:
            raise UsageError(
                say("{name}: {word} is not of the kind of {default}", name=name, word=word, default=fields[name])
            ) from None


def _checks(
    house: runs.House, scene: Scene, fields: dict[str, Any], options: Options, no_runs: Message | None
) -> list[Check]:
    from trainwiz.probe import rehearsal
    from trainwiz.rehearsal import runs, schedule, task
    from trainwiz.store import rehearsals

    console.talk(t("looking at task.py …"), style="dim")
    cut, scale = rehearsals.first_parts(house.folder, fields, house.stage.place("data"))
    values = {**scene.values, **cut}
    problem = _with_small_model(house, scene, values, fields)
    if problem:
        return [problem]
    if scene.plan.task in _ROWS_OF_TOKENS and "sequence_length" in values:
        scale *= values["sequence_length"] / fields["sequence_length"]
    scene = dataclasses.replace(scene, values=values)
    by_hand = {name: _typed(fields[name], word) for name, word in scene.set_by_hand.items()}
    found = rehearsal.look(house.python, house.folder, values={**values, **by_hand}, planned=scene.planned, scale=scale)
    checks = list(task.checks(found, scene.plan))
    if "schedule" in found:
        checks.append(schedule.check(found["schedule"], estimated=bool(fields.get("n_epochs")) and scale != 1))
    if options.task_only or "length" not in found:
        return checks
    if no_runs:
        return [*checks, _skipped(no_runs)]
    scene = dataclasses.replace(scene, samples=min(scene.samples, found["length"]))
    return [*checks, *runs.Runs(scene=scene, seen=_runs(house, scene)).checks()]


def _with_small_model(house: runs.House, scene: Scene, values: dict[str, Any], fields: dict[str, Any]) -> Check | None:
    """Put a small model of the same architecture in the place of the named one; the check that fails if it cannot."""
    from trainwiz.probe import rehearsal
    from trainwiz.rehearsal.check import Check

    name = fields.get(_MODEL_FIELD)
    if not name or _MODEL_FIELD in scene.set_by_hand:
        return None
    into = house.stage.place("model")
    made = rehearsal.small_model(house.python, house.folder, name=name, task=scene.plan.task, into=into)
    if "error" not in made:
        values[_MODEL_FIELD] = str(into)
        return None
    return Check(
        name="small_model",
        title=say("small model"),
        verdict="failed",
        found=say("{name} could not be made small: {what}", name=name, what=made["error"]["what"]),
        fix=say("rehearse with a model of your own: trainwiz rehearse DIR -- --model_name FOLDER"),
    )


def _runs(house: runs.House, scene: Scene) -> dict[str, Seen]:
    """Run the acts; after one that went badly, none that depends on it."""
    seen: dict[str, Seen] = {}
    planned = list(scene.acts())
    for number, act in enumerate(planned, start=1):
        if act.name != "whole" and not seen["whole"].went_well:
            break
        if act.goes_on and not seen[act.goes_on].went_well:
            continue
        values = {"number": number, "of": len(planned), "what": text(act.title), "world": act.split.world}
        console.talk(t("run {number} of {of}: {what}, ranks: {world} …", **values), style="dim")
        seen[act.name] = runs.run(house, scene, act)
        if act.name == "whole" and any(rank.get("dropout") for rank in seen["whole"].ranks):
            planned.append(scene.steady())
    return seen


def _typed(default: Any, word: str) -> Any:
    if isinstance(default, bool):
        return word == "true"
    return type(default)(word) if isinstance(default, int | float) else word


def _skipped(why: Message) -> Check:
    from trainwiz.rehearsal.check import Check

    return Check(name="runs", title=say("runs"), verdict="skipped", found=why)


def _report(checks: tuple[Check, ...], scene: Scene, options: Options, seconds: float, stage: Stage) -> None:
    from trainwiz.rehearsal.check import failed
    from trainwiz.ui import rehearsal as card

    for note in scene.notes:
        console.talk(console.styled(t("note: {what}", what=text(note)), "dim"))
    if options.as_json:
        console.data_json(
            {
                "passed": not failed(checks),
                "seconds": round(seconds, 1),
                "checks": [card.to_dict(check) for check in checks],
                "notes": [text(note) for note in scene.notes],
            }
        )
    else:
        card.show(checks, seconds=seconds)
    if stage.kept:
        console.talk(t("logs, metrics and checkpoints of its runs: {folder}", folder=stage.folder))
