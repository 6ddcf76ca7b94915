"""Why a run failed, from its records, or why any training failed whose log there is."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from trainwiz.diagnose import SIGNATURES, Diagnosis, flight_recorder, of_log
from trainwiz.diagnose import diagnose as of_outcome
from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import say
from trainwiz.outcome import Outcome
from trainwiz.record.run import message, why
from trainwiz.schedulers import Job, Seen
from trainwiz.store import history, jobs, logs, runs
from trainwiz.store import recordings as dumps
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui import diagnosis as shown
from trainwiz.workflows import recorded_fix
from trainwiz.workflows.jobs import output, states

_PATIENCE_SECONDS = 2.0


def diagnose(target: str, *, json: bool) -> int:
    """Show why a log or a run failed; 0 also where nothing did. Raises `UsageError` where there is neither."""
    path = Path(target)
    if path.exists() and (recordings := _recordings(path)):
        read = {rank: recording for rank, recording in recordings.items() if recording is not None}
        return _show(flight_recorder.compare(read, recordings.keys() - read.keys()), target, json)
    if target == "-" or (path.exists() and not path.is_dir()):
        with _patiently(target):
            excerpt = logs.read(target)
        # Between head and tail only if these show nothing: a training may have survived those failures.
        found = of_log(excerpt.lines(), log=target) or of_log(excerpt.pieces(), log=target)
        return _show(found, target, json)
    if elsewhere := output.meant(target):
        job, (seen, diagnosis, command) = elsewhere[0], output.diagnosis(elsewhere[0])
        return _show_job(job, seen, diagnosis, command, json, output.place(job, command))
    if failed := output.failed(target):
        job, seen, file = failed
        return _show_job(job, seen, of_log(logs.read(str(file)).lines(), log=str(file)), str(file), json)
    if not path.exists() and not runs.is_name(target) and (path.suffix or len(path.parts) > 1):
        raise UsageError(say("log {file} does not exist", file=target))
    run = history.find(target)
    outcome = Outcome.of_record(run.read("outcome"))
    if outcome is None and history.without_metrics(run).alive:
        console.talk(t("run {name} is still running", name=run.name), style="warning")
    if outcome is not None and (outcome.exit_code == 0 or outcome.stopped or _only_lost(outcome)):
        _show_end(run, outcome, json)
        return 0
    if outcome is not None and outcome.first_failed is None and _show_stall(run, json):
        return 0
    diagnosis, log = of_run(run, outcome)
    return _show(_observed(run, diagnosis), log, json, recorded_fix.of_run(run))


def _show_end(run: Run, outcome: Outcome, json: bool) -> None:
    """How a run ended that no rank of its own has failed, and what its scheduler makes of that."""
    if json:
        lost = {str(rank): how for rank, how in outcome.lost.items()}
        console.data_json({"name": "lost machine", "machines": lost} if lost else None)
        return
    if not outcome.exit_code:
        console.data(t("run {name} ended normally", name=run.name))
        return
    if ended := why(history.without_metrics(run)):
        console.data(t("run {name}: {why}", name=run.name, why=text(ended)))
    if (job := jobs.of_run(run)) and (seen := states.seen([job]).get(job)) and not seen.over:
        console.data(output.line(job, seen))


def _only_lost(outcome: Outcome) -> bool:
    """Whether a machine of several was lost, and no rank failed by itself."""
    return bool(outcome.lost) and outcome.first_failed is None


@contextlib.contextmanager
def _patiently(target: str) -> Iterator[None]:
    """Say what is awaited if the input does not end, or nothing comes."""
    waiting = threading.Timer(_PATIENCE_SECONDS, console.talk, (t("reading stdin until it ends; Ctrl-C stops"),))
    waiting.daemon = True
    if target == "-":
        waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


def _recordings(path: Path) -> dict[int, flight_recorder.Recording | None]:
    """The flight recorder's dumps in a folder, or beside one of them; None for one that cannot be read."""
    read: dict[int, flight_recorder.Recording | None] = {}
    for rank, data in dumps.beside(path):
        read[rank] = read.get(rank) or flight_recorder.read(data)
    unread = sorted(rank for rank, recording in read.items() if recording is None)
    if len(unread) == len(read):
        return {}
    if unread:
        ranks = ", ".join(map(str, unread))
        words = t("the files of ranks {ranks} are not dumps, or are too large; these ranks are ignored", ranks=ranks)
        console.talk(words, style="warning")
    return read


def of_run(run: Run, outcome: Outcome | None) -> tuple[Diagnosis | None, str]:
    """What was wrong with a run, and the log that says so; the ranks' logs speak where no outcome was recorded."""
    if outcome is not None and outcome.first_failed is not None:
        file = console.near(log_of(run, outcome.first_failed))
        lines = logs.lines(*_logs_of(run, outcome.first_failed))
        diagnosis = of_outcome(outcome, {outcome.first_failed: lines}, log=str(file))
        return diagnosis and dataclasses.replace(diagnosis, project=str(console.near(run.project))), str(file)
    found = [(of_log(logs.lines(file), log=str(file)), file, rank) for rank, file in history.logs(run).items()]
    failed = [(d, file, rank) for d, file, rank in found if d is not None]
    secondary = {signature.name for signature in SIGNATURES if signature.secondary}
    # A cause of its own before a lost connection, which is another rank's failure; then the lowest rank.
    failed.sort(key=lambda item: (not item[0].known, item[0].name in secondary, item[2]))
    if not failed:
        return None, str(run.logs)
    diagnosis, file, rank = failed[0]
    project, followed = str(console.near(run.project)), tuple(r for _, _, r in failed[1:])
    return dataclasses.replace(diagnosis, rank=rank, followed=followed, project=project), str(file)


def _observed(run: Run, diagnosis: Diagnosis | None) -> Diagnosis | None:
    """The diagnosis with what the launch saw around the end, if it came to the same cause."""
    told = run.read("outcome").get("diagnosis")
    if diagnosis is None or not isinstance(told, dict) or told.get("name") != diagnosis.name:
        return diagnosis
    seen = [message(each) for each in told.get("observed") or ()]
    return dataclasses.replace(diagnosis, observed=tuple(each for each in seen if each)) if any(seen) else diagnosis


def of_failed_rank(run: Run, outcome: Outcome) -> Diagnosis | None:
    """What was wrong, by the log of the rank that failed first; None where none did."""
    return of_run(run, outcome)[0] if outcome.first_failed is not None else None


def log_of(run: Run, rank: int) -> Path:
    """The log to read first: behind torchrun, errors have a file of their own."""
    present = [file for file in _logs_of(run, rank) if file.is_file() and file.stat().st_size]
    return present[-1] if present else run.log(rank)


def _logs_of(run: Run, rank: int) -> list[Path]:
    files = [run.log(rank), run.logs / f"rank-{rank}.err.log"]
    # Behind accelerate's launcher all ranks write into one log.
    return files if any(file.exists() for file in files) else [run.log(0)]


def _show_stall(run: Run, json: bool) -> bool:
    """Say where the ranks were in the last silence of a run that nothing else ended; whether there was one."""
    stalls = run.read("outcome").get("stalls")
    last = stalls[-1] if isinstance(stalls, list) and stalls else None
    if not isinstance(last, dict) or not isinstance(last.get("where"), list):
        return False
    if json:
        console.data_json({"name": "hang", **last})
        return True
    console.data(t("run {name}: no activity for {seconds} s", name=run.name, seconds=last.get("seconds")))
    for sentence in last["where"]:
        console.data(f"  {sentence}")
    return True


def _show_job(job: Job, seen: Seen, diagnosis: Diagnosis | None, log: str, json: bool, place: str = "") -> int:
    """A job whose run is in no folder here: its state with the reason, and what its output shows."""
    if json:
        known = {"job": job.id, "phase": seen.phase.value, "reason": str(seen.reason) if seen.reason else None}
        console.data_json({**known, **(diagnosis.to_dict() if diagnosis else {}), "log": log})
        return 0
    console.data(output.line(job, seen))
    if diagnosis:
        shown.show(diagnosis, log=place or log, stream=sys.stdout)
    return 0


def _show(diagnosis: Diagnosis | None, log: str, json: bool, fix: shown.Fix | None = None) -> int:
    if json:
        told = {"fix": recorded_fix.to_dict(fix)} if fix else {}
        console.data_json({**diagnosis.to_dict(), "log": log, **told} if diagnosis else None)
    elif diagnosis is None:
        console.data(t("no failure found in {log}", log=log))
    else:
        place = str(console.near(Path(log).absolute())) if log != "-" else "-"
        shown.show(diagnosis, log=place, fix=fix, stream=sys.stdout)
    return 0
