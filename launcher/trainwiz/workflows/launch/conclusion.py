"""How a run ended: which rank failed by itself, why, what was saved, and what to type next."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import recovery, schedulers
from trainwiz.errors import TrainwizError
from trainwiz.language import t
from trainwiz.outcome import SIGNAL_BASE, STOPPED_CODE, Outcome, Verified, shell_code
from trainwiz.probe import space
from trainwiz.record import redaction
from trainwiz.shell_words import operand
from trainwiz.store import checkpoints, log_secrets
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui import outcome as ending
from trainwiz.workflows.launch import forecasts, lost_machines, provenance
from trainwiz.workflows.launch.merged_outcome import merged
from trainwiz.workflows.launch.metrics import Remembered
from trainwiz.workflows.launch.prepared import Prepared

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis
    from trainwiz.ui.diagnosis import Fix

_RESERVE_SECONDS = 1.0
"""Of the grace: kept for writing the outcome down."""


def judged(prepared: Prepared, outcome: Outcome, oom_kills: int | None, update: int, *, stated: bool) -> Outcome:
    """An attempt's outcome with the rank that failed by itself, and what the surroundings showed.

    `oom_kills` is the count of the cgroup before the attempt, `update` the last one that was trained, and
    `stated` whether its script has stated its settings.
    """
    outcome = _stopped(prepared, _translated(prepared, outcome), update, stated=stated)
    if outcome.stopped:
        code, unwanted = prepared.request.stopped_code, prepared.run.stop_mark.exists()
        return dataclasses.replace(outcome, exit_code=code, first_failed=None, unwanted=unwanted)
    outcome = _blamed(prepared, outcome)
    if not outcome.exit_code:
        return outcome
    return dataclasses.replace(outcome, observed=space.around(str(prepared.run.folder), oom_kills))


def conclude(prepared: Prepared, outcome: Outcome, metrics: Remembered, attempts: Sequence[Mapping[str, Any]]) -> int:
    """Record the outcome, show it, and return the exit code of the training."""
    run, outcome = prepared.run, lost_machines.judged(prepared, merged(prepared, outcome))
    checkpoint = run.checkpoint()
    verified = _verified(prepared, outcome, checkpoint)
    diagnosis = _explained(run, outcome) if outcome.exit_code and not outcome.stopped else None
    rank = diagnosis.rank if diagnosis else None
    compared = forecasts.recorded(prepared)
    if diagnosis and diagnosis.name in recovery.OUT_OF_MEMORY and (seen := forecasts.out_of_memory(compared, rank)):
        diagnosis = dataclasses.replace(diagnosis, observed=(*diagnosis.observed, seen))
    record = {
        **outcome.to_dict(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "first_update_seconds": metrics.first_update_seconds,
        "peak_rank_bytes": metrics.peak.bytes(),
        "attempts": list(attempts),
        "checkpoint": checkpoint.name if checkpoint else None,
        "diagnosis": provenance.diagnosis(prepared, diagnosis) if diagnosis else None,
        **compared,
    }
    forecasts.learn(prepared, record)
    if verified:
        record["verified"] = verified.to_dict()
    _record(run, record)  # before the fix is looked for, which forecasts other plans
    fix = _fix(prepared, diagnosis) if diagnosis else None
    if fix:
        _record(run, {**record, "fix": provenance.fix(fix)})
    run.release()
    _hide_secrets(prepared)
    # The training's own code is the result, also where nobody is left to be told (a terminal that closed).
    with contextlib.suppress(OSError):
        ending.show(
            outcome,
            provenance.shown(prepared, diagnosis) if diagnosis else None,
            folder=console.near(run.folder),
            first=metrics.first,
            last=metrics.last,
            checkpoint=console.near(checkpoint) if checkpoint else None,
            verified=verified,
            resume=_resume_line(prepared) if outcome.exit_code or outcome.interrupted else None,
            log=_log(run, rank) if rank is not None else "",
            fix=fix,
        )
    return outcome.exit_code


# What knows the causes of failures takes as long to import as the rest of this room: not where nothing failed.
def _explained(run: Run, outcome: Outcome) -> Diagnosis | None:
    from trainwiz.workflows.launch import failure

    return failure.explained(run, outcome)


def _fix(prepared: Prepared, diagnosis: Diagnosis) -> Fix | None:
    from trainwiz.workflows.launch import failure

    return failure.fix(prepared, diagnosis)


def _log(run: Run, rank: int) -> str:
    from trainwiz.workflows.launch import failure

    return str(console.near(failure.log_of(run, rank)))


def _record(run: Run, outcome: Mapping[str, Any]) -> None:
    try:
        run.record("outcome", outcome)
    except TrainwizError as error:
        # The training's own exit code matters more than its record.
        console.failure(error)


def _hide_secrets(prepared: Prepared) -> None:
    """In all logs of the run; the ranks that wrote them have ended."""
    known = provenance.secrets(prepared)
    left = [str(log) for log in sorted(prepared.run.logs.glob("*.log")) if not log_secrets.hide_secrets(log, known)]
    if left:
        console.talk(t("secrets may remain in {files}: cannot write to them", files=", ".join(left)), style="warning")


def _translated(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome of the ranks behind a launcher, which turns every exit code into 1."""
    if prepared.command.launcher is None:
        return outcome
    if outcome.hung:  # it was ended from here, not by the ranks
        return _as_ranks(prepared, outcome) if prepared.place else outcome
    if outcome.exit_code == 0:
        return dataclasses.replace(outcome, codes=dict.fromkeys(prepared.ranks, 0))
    from trainwiz.workflows.launch import failure

    first = failure.first(prepared.launcher_log if prepared.place else prepared.run.log(0))
    if first is None:
        return _as_ranks(prepared, outcome) if prepared.place else outcome
    # Where only one process is started, nobody says which.
    rank, code = first[0] or 0, first[1]
    if code == STOPPED_CODE and prepared.plan:
        return dataclasses.replace(
            outcome, exit_code=code, first_failed=None, codes=dict.fromkeys(prepared.ranks, code), stopped=True
        )
    return dataclasses.replace(outcome, exit_code=shell_code(code), first_failed=rank, codes={rank: code})


def _as_ranks(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome of a torchrun that ended without saying how its ranks did: they ended with it."""
    code = next(iter(outcome.codes.values()), None)
    return dataclasses.replace(
        outcome,
        codes=dict.fromkeys(prepared.ranks, code),
        killed=tuple(prepared.ranks) if outcome.killed else (),
        first_failed=None if outcome.first_failed is None else prepared.ranks.start,
    )


# docs/decisions/supervision.md: A stopped run ends with exit code 75
def _stopped(prepared: Prepared, outcome: Outcome, update: int, *, stated: bool) -> Outcome:
    """The outcome, with whether the training was stopped before its end where its ranks' codes do not say it."""
    if outcome.stopped or outcome.signal is None:
        return outcome
    if outcome.exit_code == 0:
        # Scripts of other people end so, whether they were done or not.
        finished = (prepared.run.folder / "model").exists() or update == prepared.total_updates
        return dataclasses.replace(outcome, stopped=not finished)
    # Asked before its ranks could save: a generated script states its settings first, so that nothing is trained yet.
    early = prepared.plan and outcome.preempted and not stated
    return dataclasses.replace(outcome, stopped=bool(early and outcome.exit_code == SIGNAL_BASE + outcome.signal))


def _blamed(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome with the rank that failed by itself, which need not be the first that was seen to end."""
    if sum(code not in (0, None) for code in outcome.codes.values()) < 2:
        return outcome
    from trainwiz.workflows.launch import failure

    return failure.blamed(prepared.run, outcome)


def _verified(prepared: Prepared, outcome: Outcome, checkpoint: Path | None) -> Verified | None:
    """After an orderly stop: whether what was saved can be read, within what is left of the grace."""
    if outcome.saving_seconds is None or checkpoint is None:
        return None
    seconds = prepared.request.grace - outcome.saving_seconds - _RESERVE_SECONDS
    return checkpoints.verify(checkpoint, seconds=seconds)


def _resume_line(prepared: Prepared) -> str | None:
    """What continues the run; None for a script, whose checkpoints are its own."""
    if prepared.plan is None:
        return None
    request = prepared.request
    where = [] if request.folder == "." else [operand(request.folder)]
    around = schedulers.around(os.environ)
    if around and around.scheduler == prepared.plan.cluster.kind and not request.arguments:
        # A launch on the machine that submits would train there; a job goes on by itself from what is unfinished.
        return shlex.join(["trainwiz", "submit", *where])
    words = ["trainwiz", "launch", *where, "--resume"]
    if prepared.place:
        words += ["--machine-rank", str(prepared.place.rank)]
    if request.arguments:
        words += ["--", *redaction.arguments(request.arguments)]
    return shlex.join(words)
