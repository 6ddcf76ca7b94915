"""A prepared launch run to its end: its records before, the screen meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz import cluster
from trainwiz.cluster import Place
from trainwiz.language import t
from trainwiz.network import ports
from trainwiz.outcome import STOPPED_CODE, Outcome
from trainwiz.plan import Plan
from trainwiz.probe import cgroup
from trainwiz.process import early_signals, ranks, torchrun
from trainwiz.process.child import Process
from trainwiz.process.progress import FLOOR_SECONDS
from trainwiz.process.ranks import Inbox
from trainwiz.process.watch import Watching
from trainwiz.store import history
from trainwiz.store.jsonl import JsonLines
from trainwiz.store.liveness import HeartbeatFile
from trainwiz.ui import console
from trainwiz.ui.live import Progress, Screen, terminal_size
from trainwiz.workflows.launch import build_locks, debugger, lockstep, provenance
from trainwiz.workflows.launch.job_output import JobOutput
from trainwiz.workflows.launch.memory_samples import Sampler
from trainwiz.workflows.launch.metrics import Remembered
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.statement import Statement


def run(prepared: Prepared, by_hand: Sequence[str] = ()) -> int:
    """Run it, tell how it ended, and return the exit code. `by_hand` are the lines that do the same."""
    early_signals.defer()
    for line in by_hand:
        console.talk(console.styled(f"  {line}", "dim"))
    console.talk(t("this run: {folder}", folder=console.near(prepared.run.folder)))
    debugger.tell(prepared.debug_ports)
    record = provenance.CommandRecord(prepared)
    prepared.run.reserve()
    provenance.keep_plan(prepared)
    code = provenance.CodeState(prepared, record)
    job_output = JobOutput(prepared)
    metrics = Remembered(JsonLines(prepared.run.metrics), job_output.metrics)

    def news() -> Sequence[Mapping[str, Any]]:
        statement.look()
        found = metrics.new()
        if not metrics.first:  # it may be waiting for a build that does not run
            locks.look()
        return found

    progress = Progress(
        news,
        prepared.total_updates,
        task=prepared.plan.task if prepared.plan else None,
        place=lambda: history.place(prepared.run),
    )
    screen = Screen(progress, provenance.secrets(prepared))
    job_output.begin(screen, record.values)
    locks = build_locks.Watch(prepared.command.environ, screen.say)
    statement = Statement(prepared, record, screen.say)
    heartbeat = HeartbeatFile(prepared.run.beat) if not (prepared.place and prepared.place.rank) else None
    attempts, sampler = lockstep.attempts_of(prepared), Sampler(prepared.run.memory)

    def once(attempt: Prepared, inbox: Inbox) -> Outcome:
        statement.begin(attempt)
        kills = cgroup.oom_kills()
        outcome = ranks.run(
            _processes(attempt, terminal_size()),
            audience=screen,
            grace=attempt.request.grace,
            show=attempt.workers.found if attempt.workers else None,
            inbox=inbox,
            watching=_watching(attempt),
            standby=attempts.standby,
            stopped_code=STOPPED_CODE if attempt.plan else 0,
        )
        # Not needed before a rank has started, and it brings all signatures of failures with it.
        from trainwiz.workflows.launch import conclusion

        judged = conclusion.judged(attempt, outcome, kills, metrics.update(), stated=statement.made)
        screen.judged(innocent=bool(judged.exit_code) and judged.first_failed not in (None, attempt.ranks.start))
        return judged

    locks.look()
    try:
        outcome = attempts.run(once, screen, metrics.update)
        statement.look()
    finally:
        if heartbeat:
            heartbeat.close()
        sampler.close()
        screen.close()
        code.close()
    metrics.new()
    from trainwiz.workflows.launch import conclusion

    exit_code = conclusion.conclude(prepared, outcome, metrics, attempts.entries)
    job_output.end()
    if outcome.exit_code or outcome.stopped:
        from trainwiz.workflows.launch import requeue

        requeue.after(prepared, outcome, trained=metrics.update() > 0)
    return exit_code


def _watching(prepared: Prepared) -> Watching | None:
    if prepared.debug_ports:
        return None  # a rank under a debugger is silent
    run, place = prepared.run, prepared.place
    return Watching(
        files=lambda: [run.log(rank) for rank in prepared.ranks],
        metrics=run.metrics,
        stacks=run.logs,
        ranks=tuple(prepared.ranks),
        floor=prepared.hang_limit or FLOOR_SECONDS,
        stop=prepared.stop_on_hang,
        # Behind torchrun the world spans several machines.
        machine=run.machine if place else None,
        # Machines that stay connected hear each other.
        others={} if prepared.team or not place else _others(prepared.plan, place),
        # While the run goes on, torchrun on the first machine listens for the others.
        over=lambda: bool(place and place.rank and not ports.answers(place.address, place.port)),
    )


def _others(plan: Plan | None, place: Place) -> dict[int, range]:
    """The ranks of each other machine."""
    machines = [machine for machine in range(place.machines) if machine != place.rank]
    return {m: cluster.ranks(plan, dataclasses.replace(place, rank=m)) for m in machines} if plan else {}


def _processes(prepared: Prepared, terminal: Mapping[str, str]) -> list[Process]:
    command, run = prepared.command, prepared.run
    ignored, variables = torchrun.ignored_signals() if prepared.place else ((), {})
    return [
        Process(
            # torchrun stands for all ranks of its machine.
            rank=prepared.ranks.start if prepared.place else rank.rank,
            argv=rank.argv or command.argv,
            environ={**(terminal if rank.rank == 0 else {}), **command.environ, **rank.environ, **variables},
            cwd=command.cwd,
            log=prepared.launcher_log if prepared.place else run.log(rank.rank),
            agent=command.launcher is not None,
            ignored=ignored,
        )
        for rank in command.ranks
    ]
