"""One act of a rehearsal: its ranks started and watched, and what they left."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.command import Command
    from trainwiz.machine import Machine
    from trainwiz.outcome import Outcome
    from trainwiz.rehearsal.runs import Seen
    from trainwiz.rehearsal.scene import Act, Scene
    from trainwiz.store.rehearsals import Stage

HANGING_SECONDS = 60.0
"""Without a sign of life for so long (three times as long before the first update), a run is ended."""
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class House:
    """Where a rehearsal happens."""

    folder: Path
    python: str
    stage: Stage
    machine: Machine


def run(house: House, scene: Scene, act: Act) -> Seen:
    """Run it to its end. Raises `KeyboardInterrupt` where somebody asked for the end."""
    from trainwiz.rehearsal.runs import Seen
    from trainwiz.store import rehearsals

    output, noted = house.stage.place(act.goes_on or act.name), house.stage.place(f"{act.name}-notes")
    outcome = _ran(house, scene, act, output, noted)
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


def _ran(house: House, scene: Scene, act: Act, output: Path, noted: Path) -> Outcome:
    from trainwiz.network import ports
    from trainwiz.process import ranks
    from trainwiz.process.watch import Watching

    asked = noted / "asked.json"
    wishes = {
        "samples": scene.samples,
        "record": str(noted),
        "gloo": scene.sharded,
        "steady": act.steady,
        "kill": act.killed_at,
    }
    asked.write_text(json.dumps(wishes), encoding="utf-8")
    port = ports.claim(0)
    try:
        command = _command(house, scene, act, port.number, [str(asked), *scene.arguments(act, str(output))])
        watching = Watching(
            files=lambda: sorted(noted.glob("rank-*.log")),
            metrics=output / "metrics.jsonl",
            stacks=noted,
            ranks=tuple(rank.rank for rank in command.ranks),
            floor=HANGING_SECONDS,
            stop=True,
        )
        return ranks.run(
            _processes(command, scene, noted), audience=_Silence(), grace=_GRACE_SECONDS, watching=watching
        )
    finally:
        port.release()


def _command(house: House, scene: Scene, act: Act, port: int, arguments: list[str]) -> Command:
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
    from trainwiz.process.child import Process

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
