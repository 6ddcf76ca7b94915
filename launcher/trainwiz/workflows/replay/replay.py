"""`trainwiz replay`: a run's plan, code and arguments once more, and whether the curves are the same."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import cluster, config, files
from trainwiz import plan as plans
from trainwiz.errors import PlanError, TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.probe import code, interpreter
from trainwiz.record.differences import Difference, differences, flat
from trainwiz.record.divergence import Divergence, divergence
from trainwiz.record.run import Recorded
from trainwiz.record.tokens import HIDDEN
from trainwiz.render import PLAN_FILE
from trainwiz.store import code_files, history, runs
from trainwiz.store.manifest import sha256
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui import replay as shown
from trainwiz.workflows import facts, launch
from trainwiz.workflows.launch import provenance
from trainwiz.workflows.launch.request import Request as LaunchRequest
from trainwiz.workflows.replay import sources
from trainwiz.workflows.replay.request import LATEST, Request

_TOLERANCE_32, _TOLERANCE_16 = 1e-5, 2e-2
"""Relative: how much another order of additions changes a loss (`rehearse` uses the same)."""
_NOT_SAME = 1


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """A run that can be repeated."""

    run: Run
    read: Recorded
    project: Path
    plan: Plan
    arguments: tuple[str, ...]
    python: str


def replay(request: Request) -> int:
    """Repeat a run; its exit code, or 1 where the curves part. Raises `TrainwizError` before anything starts."""
    if request.json and not (request.dry_run or request.compare):
        raise UsageError(say("--json needs --dry-run or --compare; a replay shows the training's own output"))
    run = history.find(request.run)
    project = _project(run)
    if request.compare:
        other = history.find(request.compare, project)
        return _compared(run, other, request)
    recorded = _understood(request, run, project)
    rank = _machine_rank(request, recorded)
    found = sources.find(project, recorded.read)
    before, now = _then(recorded, found), _now(recorded)
    differ = [each for each in differences(before, now) if each.section in shown.SECTIONS]
    folder = _folder(request, recorded, differ)
    if request.dry_run and request.json:
        console.data_json(shown.to_dict(run.name, folder, differ, rebuilt=folder != project))
        return 0
    shown.show_before(run.name, folder, differ, rebuilt=folder != project, whole=found.whole)
    if recorded.read.command.get("resumed_from"):
        first = recorded.read.command["resumed_from"]
        console.talk(t("{name} continued {first}; the replay starts at the first update", name=run.name, first=first))
    if request.dry_run:
        return 0
    if folder != project:
        sources.rebuild(project, found, folder)
    return _launched(request, recorded, folder, rank)


def _machine_rank(request: Request, recorded: _Recorded) -> int:
    """The rank of this machine, 0 if the run had one. Raises `UsageError` where several cannot agree on the run."""
    machines, name = recorded.plan.machine.num_machines, recorded.run.name
    if machines == 1 or request.dry_run:
        return 0
    line = f"trainwiz replay {name}"
    if request.run == LATEST:  # which another machine's replay may be by now
        raise UsageError(
            say("run {name} ran on {n} machines, which all replay the same run", name=name, n=machines),
            say("pass it on each machine: {line} --machine-rank N", line=line),
        )
    rank = cluster.machine_rank(os.environ) if request.machine_rank is None else request.machine_rank
    if rank is None:
        raise UsageError(
            say("run {name} ran on {n} machines, and the rank of this machine is not known", name=name, n=machines),
            say("run on each machine, starting with 0: {line} --machine-rank N", line=line),
        )
    return cluster.checked_rank(machines, rank)


def _launched(request: Request, recorded: _Recorded, folder: Path, rank: int) -> int:
    known = {run.name for run in runs.every(folder)}
    words = LaunchRequest(
        words=(str(folder),),
        arguments=recorded.arguments,
        new=True,
        python=recorded.python,
        ignore=tuple(str(prefix) for prefix in recorded.read.command.get("ignored") or ()),
        replays=recorded.run.name,
        machine_rank=rank if recorded.plan.machine.num_machines > 1 else None,
        wait=request.wait,
        secret=request.secret,
    )
    exit_code = launch.launch(words)
    if rank:  # machine 0 has the metrics
        return exit_code
    made = [
        run
        for run in runs.every(folder)
        if run.name not in known and run.read("command").get("replays") == recorded.run.name
    ]
    if not made:
        return exit_code
    verdict = _compared(recorded.run, made[-1], request)
    return exit_code or verdict


def _compared(run: Run, other: Run, request: Request) -> int:
    """Show how far the curves are apart; 1 where they part."""
    found = _divergence(run, other, request.tolerance)
    if request.json:
        console.data_json({"before": run.name, "after": other.name, **found.to_dict()})
    else:
        shown.show_curves(run.name, other.name, found)
    return 0 if found.verdict in ("equal", "alike") else _NOT_SAME


def _divergence(run: Run, other: Run, tolerance: float | None) -> Divergence:
    before, after = ([record for each in history.lineage(one) for record in each.records] for one in (run, other))
    if tolerance is None:
        precision = flat(run.read("command").get("plan") or {}).get("precision.mixed_precision")
        tolerance = _TOLERANCE_32 if precision in ("no", None) else _TOLERANCE_16
    return divergence(before, after, tolerance)


def _project(run: Run) -> Path:
    """The project of a run's folder. Raises `UsageError` for a run that was moved out of one."""
    if run.folder.parent.name != runs.RUNS:
        raise UsageError(
            say("{folder} is not in a project's runs", folder=run.folder),
            say("pass a run of a project: trainwiz replay PROJECT/runs/NAME"),
        )
    return run.folder.parent.parent


def _understood(request: Request, run: Run, project: Path) -> _Recorded:
    """What the run's records say. Raises `UsageError` where it cannot be repeated from them."""
    read = history.without_metrics(run)
    command = read.command
    if not command:
        raise UsageError(say("{folder} has no command.json, so it is unknown how it was launched", folder=run.folder))
    if not command.get("plan"):
        raise UsageError(
            say("run {name} has no plan: it was launched with --config", name=run.name),
            say("launch its script again: trainwiz launch --config FILE SCRIPT"),
        )
    plan = _plan(command)
    arguments = request.arguments or tuple(str(word) for word in command.get("arguments") or ())
    if any(HIDDEN in word for word in arguments):
        raise UsageError(
            say("run {name} was given an argument that was hidden in its record: it may be a secret", name=run.name),
            say("give all arguments again: trainwiz replay {name} -- ARGS", name=run.name),
        )
    python = request.python or _recorded_python(command)
    return _Recorded(run=run, read=read, project=project, plan=plan, arguments=arguments, python=python)


def _plan(command: Mapping[str, Any]) -> Plan:
    """The plan as the launch read it: without what arguments said instead. Raises `TrainwizError`."""
    instead = {
        key: said.get("plan")
        for key, said in (command.get("instead_of_plan") or {}).items()
        if key in plans.fields() and isinstance(said, Mapping)
    }
    try:
        return plans.with_changes(plans.parse(command["plan"]), instead)
    except PlanError as error:
        raise TrainwizError(
            say("this version of trainwiz cannot read the recorded plan: {problem}", problem=error.problems[0]),
            say("install the recorded version, and replay it there"),
        ) from None


def _recorded_python(command: Mapping[str, Any]) -> str:
    """The interpreter that trained, where it still is."""
    first = next(iter(command.get("argv") or ()), "")
    with contextlib.suppress(ValueError):  # NUL, or half a surrogate pair
        if isinstance(first, str) and os.access(first, os.X_OK):
            return interpreter.located(first)
    found = interpreter.located(sys.executable)
    if first:
        console.talk(
            t("the run's Python, {first}, is no longer there; using {python}", first=first, python=found),
            style="warning",
        )
    return found


def _then(recorded: _Recorded, found: sources.Sources) -> Recorded:
    """The run's record, with the plan that stood in its file."""
    command = dict(recorded.read.command)
    files = {path: sha256(text) for path, text in found.texts.items()}
    text = found.texts.get(PLAN_FILE)
    plan = _read_plan(text) or recorded.plan
    return dataclasses.replace(
        recorded.read, command={**command, "plan": plan.model_dump(mode="json"), "files": _without_plan(files)}
    )


def _now(recorded: _Recorded) -> Recorded:
    """The project and the machine as a launch would record them now."""
    project = recorded.project
    machine = facts.machine(machine_file=None, python=recorded.python, folder=str(project), interfaces=False)
    file = project / PLAN_FILE
    plan = _read_plan(file.read_bytes()) if file.is_file() else None
    command = {
        "plan": plan.model_dump(mode="json") if plan else {},
        "versions": provenance.versions(machine),
        "machine": provenance.described(machine),
        "hostname": os.uname().nodename,
        "files": _without_plan(code_files.look(project).digests),
        "data": provenance.data_digests(recorded.plan, project),
        "git": dataclasses.asdict(code.state(str(project), without=runs.RUNS)),
    }
    return Recorded(name="now", command=command)


def _read_plan(text: bytes | None) -> Plan | None:
    """The plan in a file's text; None if it is none now."""
    if text is None:
        return None
    try:
        return plans.parse(config.read(PLAN_FILE, text.decode()).values)
    except (TrainwizError, UnicodeDecodeError):
        return None


def _without_plan(files: Mapping[str, str]) -> dict[str, str]:
    # Its values are compared; a comment changes nothing.
    return {path: digest for path, digest in files.items() if path != PLAN_FILE}


def _folder(request: Request, recorded: _Recorded, differ: list[Difference]) -> Path:
    """The project itself where its plan and code are those of the run; else where they are rebuilt."""
    project = recorded.project
    changed = any(each.section in ("plan", "files") for each in differ)
    if not changed and not request.into:
        return project
    whole = files.resolved(project)
    into = Path(os.path.expanduser(request.into)) if request.into else None
    return into or whole.with_name(f"{whole.name}-replay-{recorded.run.name}")
