"""A rehearsal: look at the task, run the acts one after the other, and hold them against each other."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.cli.rehearse import Options
from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.machine import Machine
    from trainwiz.outcome import Outcome
    from trainwiz.rehearsal.check import Check
    from trainwiz.rehearsal.runs import Seen
    from trainwiz.rehearsal.scene import Act, Scene
    from trainwiz.store.rehearsals import Stage

HANGING_SECONDS = 60.0
"""Without a sign of life for so long (three times as long before the first update), a run is ended."""
_GRACE_SECONDS = 5.0
_MODEL_FIELD = "model_name"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _House:
    """Where a rehearsal happens."""

    folder: Path
    python: str
    stage: Stage
    machine: Machine


def rehearse(options: Options) -> int:
    """Show the report card; 1 if anything failed. Raises `UsageError` for a project that cannot be read."""
    from trainwiz.cli.launch import _interpreter
    from trainwiz.probe import host
    from trainwiz.rehearsal import check, scene
    from trainwiz.store import plans, rehearsals

    began = time.monotonic()
    plan_file = plans.find(options.folder)
    plan, folder = plans.read(plan_file), plan_file.parent.absolute()
    fields = scene.declared(rehearsals.sources(folder))
    if strange := [name for name in options.by_hand if name not in fields]:
        raise UsageError(say("{name}: neither Config nor TaskConfig has such a field", name=strange[0]))
    stage = rehearsals.Stage(options.keep)
    house = _House(
        folder=folder,
        python=_interpreter(options.python),
        stage=stage,
        machine=host.host(str(folder), interfaces=False),
    )
    try:
        planned = scene.scene(plan, fields, by_hand=options.by_hand, updates=options.updates)
        checks = tuple(_checks(house, planned, fields, options, scene.without_runs(plan)))
        if check.failed(checks):
            stage.kept = True
    finally:
        stage.remove()
    _report(checks, planned, options, time.monotonic() - began, stage)
    return 1 if check.failed(checks) else 0


def _checks(
    house: _House, scene: Scene, fields: dict[str, Any], options: Options, no_runs: Message | None
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
    scene = dataclasses.replace(scene, values=values)
    by_hand = {name: _typed(fields[name], word) for name, word in scene.set_by_hand.items()}
    found = rehearsal.look(house.python, house.folder, values={**values, **by_hand}, planned=scene.planned, scale=scale)
    checks = list(task.checks(found, scene.plan))
    if "schedule" in found:
        checks.append(schedule.check(found["schedule"], estimated=scale > 1))
    if options.task_only or "length" not in found:
        return checks
    if no_runs:
        return [*checks, _skipped(no_runs)]
    scene = dataclasses.replace(scene, samples=min(scene.samples, found["length"]))
    return [*checks, *runs.Runs(scene=scene, seen=_runs(house, scene)).checks()]


def _with_small_model(house: _House, scene: Scene, values: dict[str, Any], fields: dict[str, Any]) -> Check | None:
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


def _runs(house: _House, scene: Scene) -> dict[str, Seen]:
    """Run the acts; after one that went badly, none that depends on it."""
    seen: dict[str, Seen] = {}
    acts = list(scene.acts())
    for number, act in enumerate(acts, start=1):
        if act.name != "whole" and not seen["whole"].went_well:
            break
        if act.goes_on and not seen[act.goes_on].went_well:
            continue
        values = {"number": number, "of": len(acts), "what": text(act.title), "world": act.split.world}
        console.talk(t("run {number} of {of}: {what}, ranks: {world} …", **values), style="dim")
        seen[act.name] = _run(house, scene, act)
        if act.name == "whole" and any(rank.get("dropout") for rank in seen["whole"].ranks):
            acts.append(scene.steady())
    return seen


def _run(house: _House, scene: Scene, act: Act) -> Seen:
    from trainwiz.network import ports
    from trainwiz.process import ranks
    from trainwiz.process.watch import Watching
    from trainwiz.rehearsal.runs import Seen
    from trainwiz.store import rehearsals

    output, noted = house.stage.place(act.goes_on or act.name), house.stage.place(f"{act.name}-notes")
    asked = {
        "samples": scene.samples,
        "record": str(noted),
        "gloo": scene.sharded,
        "steady": act.steady,
        "kill": act.killed_at,
    }
    (noted / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    port = ports.claim(0)
    try:
        command = _command(
            house, scene, act, port.number, [str(noted / "asked.json"), *scene.arguments(act, str(output))]
        )
        outcome = ranks.run(
            _processes(command, scene, noted),
            audience=_Silence(),
            grace=_GRACE_SECONDS,
            watching=Watching(
                files=lambda: sorted(noted.glob("rank-*.log")),
                metrics=output / "metrics.jsonl",
                stacks=noted,
                ranks=tuple(rank.rank for rank in command.ranks),
                floor=HANGING_SECONDS,
                stop=True,
            ),
        )
    finally:
        port.release()
    cause, remedy, log = _why(outcome, noted) if outcome.exit_code and not act.killed_at else (None, None, "")
    saved, torn = rehearsals.saved(output)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return Seen(
        act=act,
        code=outcome.exit_code,
        seconds=outcome.seconds,
        records=rehearsals.records(output),
        weights=rehearsals.weights(output),
        ranks=rehearsals.notes(noted),
        saved=saved,
        torn=torn,
        cause=cause,
        remedy=remedy,
        log=log,
    )


def _command(house: _House, scene: Scene, act: Act, port: int, arguments: list[str]) -> Command:
    from trainwiz import command, plan
    from trainwiz.probe import rehearsal

    changes: dict[str, Any] = {"machine.num_processes": act.split.world}
    if scene.plan.strategy.kind == "single" and act.split.world > 1:
        changes["strategy.kind"] = "ddp"
    return command.for_plan(
        plan.with_changes(scene.plan, changes),
        python=house.python,
        folder=str(house.folder),
        script=str(rehearsal.RANK),
        arguments=arguments,
        port=port,
        machine=house.machine,
        inherited=os.environ,
    )


def _processes(command: Command, scene: Scene, noted: Path) -> list[Any]:
    from trainwiz.probe import rehearsal
    from trainwiz.process.ranks import Process

    added = dict(rehearsal.CPU_ONLY)
    if scene.plan.strategy.kind not in ("single", "ddp"):
        del added["ACCELERATE_USE_CPU"]  # would turn sharding off
    if scene.sharded:
        added["ACCELERATE_TORCH_DEVICE"] = "cpu"
    return [
        Process(
            rank=rank.rank,
            argv=command.argv,
            environ={**command.environ, **rank.environ, **added},
            cwd=command.cwd,
            log=noted / f"rank-{rank.rank}.log",
        )
        for rank in command.ranks
    ]


class _Silence:
    """Nobody listens to a rehearsal's ranks; their logs are there when something fails."""

    def output(self, data: bytes) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def say(self, message: Message) -> None:
        """Nothing."""


def _why(outcome: Outcome, noted: Path) -> tuple[Message | None, Message | None, str]:
    from trainwiz import diagnose
    from trainwiz.store import logs

    rank = outcome.first_failed or 0
    log = noted / f"rank-{rank}.log"
    found = diagnose.diagnose(outcome, {rank: logs.lines(log)}, log=str(log))
    return (found.cause, found.remedy, str(log)) if found else (None, None, str(log))


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
