"""Which ranks of a run failed by themselves, and why.

Imported where a rank has failed, and not before: it brings all the causes that `diagnose` knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainwiz import diagnose as causes
from trainwiz.diagnose import Diagnosis, launchers
from trainwiz.diagnose.log_text import Line
from trainwiz.outcome import Outcome
from trainwiz.store import history, logs
from trainwiz.store.runs import Run
from trainwiz.ui.diagnosis import Fix
from trainwiz.workflows import diagnose
from trainwiz.workflows.launch import plan_fix
from trainwiz.workflows.launch.prepared import Prepared

_TAIL_BYTES = 1 << 16


def culprits(run: Run, outcome: Outcome, ranks: Iterable[int]) -> list[int]:
    """The ranks that failed by themselves, by what those of `ranks` wrote that failed."""
    failed = [rank for rank in ranks if outcome.codes.get(rank) not in (0, None)]
    return [*causes.culprits(outcome, _lines(run, failed))]


def blamed(run: Run, outcome: Outcome) -> Outcome:
    """The outcome with the rank that failed by itself, which need not be the first that was seen to end."""
    return causes.blamed(outcome, _lines(run, outcome.codes))


def first(log: Path) -> tuple[int | None, int] | None:
    """What a launcher wrote of the rank that failed first: its number, if it is told, and its exit code."""
    return launchers.first_failure(history.tail(log, _TAIL_BYTES))


def explained(run: Run, outcome: Outcome) -> Diagnosis | None:
    """Why the rank failed, by its log."""
    return diagnose.of_failed_rank(run, outcome)


def log_of(run: Run, rank: int) -> Path:
    """The log that the diagnosis of a rank was made from."""
    return diagnose.log_of(run, rank)


def fix(prepared: Prepared, diagnosis: Diagnosis) -> Fix | None:
    """The change of the plan that removes the cause, solved and checked."""
    return plan_fix.of_run(prepared, diagnosis)


def _lines(run: Run, ranks: Iterable[int]) -> dict[int, tuple[Line, ...]]:
    return {rank: logs.lines(run.log(rank)) for rank in ranks}
