"""`trainwiz import`: read the files, decide, say what does not fit, write, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwiz.adoption import Adoption, Left, adopt
from trainwiz.decide import Decided, Source
from trainwiz.decide.earlier_answers import carry
from trainwiz.errors import Refused
from trainwiz.finding import Finding
from trainwiz.message import say
from trainwiz.render import plan_file
from trainwiz.store import scripts
from trainwiz.store.artifacts import Written
from trainwiz.ui import adoption as shown
from trainwiz.ui import console, findings
from trainwiz.wizard import terminal
from trainwiz.workflows.create import import_files, own_script, project_files
from trainwiz.workflows.create.answers import collect
from trainwiz.workflows.create.own_script import OwnScript
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.create.request import ImportRequest

_SETTINGS = "deepspeed"
_TASK = "task.py"
_LATER = ("batch.real_batch_size",)
"""Follows from other keys where they are given, so that it is the one that is dropped if they disagree.

Not where a script decides it, which has no other numbers.
"""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of the files."""

    adoption: Adoption
    """What the files say, as answers."""
    answers: Mapping[str, Any]
    """What makes the plan, by key."""
    decided: Decided
    """The plan, and where its values come from."""
    left: Sequence[Left]
    """What the files say but the plan does not."""
    findings: Sequence[Finding]
    """What is wrong with the plan."""


def import_(request: ImportRequest) -> None:
    """Read, decide, show what does not fit, write, report. Raises `TrainwizError`."""
    request = import_files.with_script(request)
    project_files.check_folder(request.folder)
    resolution = project_files.resolution(request.force, request.on_conflict or None)
    planner = Planner(folder=request.folder, machine_file=request.machine or None, python=request.python or None)
    planner.look()
    files = import_files.of(request)
    given = collect({}, request.assignments, None, {}, set()).given
    script = scripts.read(request.script, request.arguments) if request.script else None
    adoption = adopt(files.accelerate, files.deepspeed, script, files.tool_file)
    own = own_script.of(script, given) if script else None
    imported = _decide(planner, adoption, {**(own.answers if own else {}), **given}, own)
    if not request.json:
        shown.show(adoption.files, len(adoption.carried), imported.left, imported.decided)
        findings.show(imported.findings)
    _refuse_unknown(imported.left)
    written = None
    if not request.dry_run:
        may_ask = not request.yes and not request.json and terminal.available()
        written = project_files.write(
            imported.decided,
            request.folder,
            imported.answers,
            resolution,
            may_ask=may_ask,
            own=own.files(request.folder, imported.decided.plan, imported.adoption.carried) if own else None,
            gpus=planner.gpus_elsewhere,
            has_into=True,
        )
    if own and own.as_code and not request.json:
        in_place = written is not None and _TASK in (*written.written, *written.unchanged)
        shown.show_code(own.script.file, own.taken, written=in_place)
    _report(request, imported, written)


def _decide(planner: Planner, adoption: Adoption, given: Mapping[str, Any], own: OwnScript | None) -> Imported:
    """The plan that keeps as much of the files as fits together, beside what was given."""
    carried = adoption.carried
    last = [key for key in _LATER if key in carried and not carried[key].why]
    earlier = {key: carried[key].value for key in sorted(carried, key=lambda key: key in last)}
    planner.sources = {**sources(adoption), **(own.sources if own else {})}
    kept, dropped = carry(given, earlier, planner.decide)
    answers = {**given, **kept}
    decided = planner.decide(answers)
    settings = adoption.settings(decided.plan)
    if settings:
        answers[_SETTINGS] = {**settings, **answers.get(_SETTINGS, {})}
        decided = planner.decide(answers)
        decided = replace(decided, sources={**decided.sources, **_of_settings(adoption, settings)})
    lost = [
        Left(
            kind="lost",
            path=carried[one.key].path,
            value=str(one.value),
            place=carried[one.key].place,
            why=one.problems[0],
            key=one.key,
        )
        for one in dropped
    ]
    known = {one.path for one in lost}
    rest = [one for one in adoption.remainder(decided.plan) if one.path not in known]
    code = own.left if own else ()
    return Imported(
        adoption=adoption,
        answers=answers,
        decided=decided,
        # What `--set` decides is no longer unknown.
        left=[
            replace(one, kind="lost") if one.kind == "unknown" and one.key in given else one
            for one in (own.told(one, decided.plan) if own else one for one in (*lost, *rest, *code))
            if not (own and own.covers(one, decided.plan))
        ],
        findings=planner.findings(decided.plan, complete=True),
    )


def _refuse_unknown(left: Sequence[Left]) -> None:
    unknown = next((one for one in left if one.kind == "unknown"), None)
    if unknown is not None:
        raise Refused(
            say("{path} {value}: {why}; nothing was written", path=unknown.path, value=unknown.value, why=unknown.why),
            say("set it: --set {key}=…", key=unknown.key),
        )


def _report(request: ImportRequest, imported: Imported, written: Written | None) -> None:
    decided = imported.decided
    if request.json:
        record = shown.to_dict(imported.adoption.carried, imported.left, decided)
        record |= findings.to_dict(imported.findings)
        record["written"] = [str(request.folder / path) for path in written.written] if written else []
        console.data_json(record)
    elif written is None:
        console.data(plan_file.text(decided.plan, project_files.reasons(decided)).rstrip("\n"))
    else:
        project_files.report_files(written, request.folder)
        project_files.report_next(request.folder)


def sources(adoption: Adoption) -> dict[str, Source]:
    """Where each carried value comes from: file, line and key, or why it counts although the file leaves it out."""
    found = {}
    for key, carried in adoption.carried.items():
        name = Path(carried.place.file).name
        at = f"{name}:{carried.place.line}"
        reason = say("{place} {key}", place=at, key=carried.path)
        if carried.why and name.endswith(".py"):
            reason = say("{place} {key}: {why}", place=at, key=carried.path, why=carried.why)
        elif carried.why:
            reason = say("{file}: {why}", file=name, why=carried.why)
        found[key] = Source(kind="file", reason=reason)
    found[_SETTINGS] = Source(
        kind="file", reason=say("from the DeepSpeed configuration; delete a line to use trainwiz's own value")
    )
    return found


def _of_settings(adoption: Adoption, settings: Mapping[str, Any]) -> dict[str, Source]:
    found = {}
    for path in settings:
        at = adoption.place_of_setting(path)
        reason = say("{place}", place=at) if at else say("not set; DeepSpeed's default")
        found[f"{_SETTINGS}.{path}"] = Source(kind="file", reason=reason)
    return found
