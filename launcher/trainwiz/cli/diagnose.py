"""`trainwiz diagnose`: why a run failed, from its records, or from any log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis
    from trainwiz.outcome import Outcome
    from trainwiz.store.runs import Run


def diagnose(
    target: str = typer.Argument(
        "latest", metavar="[LOG|RUN]", help=t("A log of any training (- reads a pipe), or a run (default: the newest).")
    ),
    json: bool = typer.Option(False, "--json", help=t("The diagnosis as JSON.")),
) -> int:
    """Say which rank failed first, why, and what to type."""
    from trainwiz.store import history

    path = Path(target)
    if target == "-" or (path.exists() and not path.is_dir()):
        return _show(_of_file(target), target, json)
    if not path.exists() and not _is_run(target) and (path.suffix or len(path.parts) > 1):
        from trainwiz.errors import UsageError
        from trainwiz.message import say

        raise UsageError(say("there is no log {file}", file=target))
    return _of_run(history.find(target), json)


def diagnosed(run: Run, outcome: Outcome | None) -> tuple[Diagnosis | None, str]:
    """What was wrong with a run, and the log that says so; the ranks' logs speak where no outcome was recorded."""
    from trainwiz.diagnose import SIGNATURES, of_log
    from trainwiz.diagnose import diagnose as of_outcome
    from trainwiz.store import history, logs
    from trainwiz.workflows.launch.supervise import near

    if outcome is not None and outcome.first_failed is not None:
        file = near(log_of(run, outcome.first_failed))
        said = logs.lines(*_logs_of(run, outcome.first_failed))
        return of_outcome(outcome, {outcome.first_failed: said}, log=str(file)), str(file)
    found = [(of_log(logs.lines(file), log=str(file)), file, rank) for rank, file in history.logs(run).items()]
    failed = [(d, file, rank) for d, file, rank in found if d is not None]
    secondary = {signature.name for signature in SIGNATURES if signature.secondary}
    # A cause of its own before a lost connection, which is another rank's failure; then the lowest rank.
    failed.sort(key=lambda item: (not item[0].known, item[0].name in secondary, item[2]))
    if not failed:
        return None, str(run.logs)
    diagnosis, file, rank = failed[0]
    import dataclasses

    others = tuple(r for _, _, r in failed[1:])
    return dataclasses.replace(diagnosis, rank=rank, followed=others), str(file)


def log_of(run: Run, rank: int) -> Path:
    """The log to read first: behind torchrun, errors have a file of their own."""
    present = [file for file in _logs_of(run, rank) if file.is_file() and file.stat().st_size]
    return present[-1] if present else run.log(rank)


def _logs_of(run: Run, rank: int) -> list[Path]:
    files = [run.log(rank), run.logs / f"rank-{rank}.err.log"]
    # Behind accelerate's launcher all ranks write into one log.
    return files if any(file.exists() for file in files) else [run.log(0)]


def recorded(record: Mapping[str, Any]) -> Outcome | None:
    """The outcome that `outcome.json` holds; None where it is missing or torn."""
    from trainwiz.outcome import Outcome

    code, ranks = record.get("exit_code"), record.get("ranks")
    if not isinstance(code, int) or not isinstance(ranks, dict):
        return None
    first, observed = record.get("first_failed_rank"), record.get("observed")
    return Outcome(
        exit_code=code,
        codes={int(rank): value for rank, value in ranks.items() if str(rank).isdigit()},
        first_failed=first if isinstance(first, int) else None,
        signal=record["signal"] if isinstance(record.get("signal"), int) else None,
        observed={k: v for k, v in observed.items() if isinstance(v, int)} if isinstance(observed, dict) else {},
    )


def _is_run(target: str) -> bool:
    from trainwiz.store import runs

    return runs.is_name(target)


def _of_file(target: str) -> Diagnosis | None:
    from trainwiz.diagnose import of_log
    from trainwiz.store import logs

    return of_log(logs.read(target).lines(), log=target)


def _of_run(run: Run, json: bool) -> int:
    from trainwiz.store import history
    from trainwiz.ui import console

    outcome = recorded(run.read("outcome"))
    if outcome is None and history.read(run).alive:
        console.talk(t("run {name} is still running", name=run.name), style="warning")
    if outcome is not None and outcome.exit_code == 0:
        if json:
            console.data_json(None)
        else:
            console.data(t("run {name} ended well", name=run.name))
        return 0
    hung = outcome is not None and outcome.first_failed is None and _stalled(run, json)
    return 0 if hung else _show(*diagnosed(run, outcome), json)


def _stalled(run: Run, json: bool) -> bool:
    """Say where the ranks were in the last silence of a run that nothing else ended; whether there was one."""
    from trainwiz.ui import console

    stalls = run.read("outcome").get("stalls")
    last = stalls[-1] if isinstance(stalls, list) and stalls else None
    if not isinstance(last, dict) or not isinstance(last.get("where"), list):
        return False
    if json:
        console.data_json({"name": "hang", **last})
        return True
    console.data(t("run {name}: nothing moved for {seconds} s", name=run.name, seconds=last.get("seconds")))
    for sentence in last["where"]:
        console.data(f"  {sentence}")
    return True


def _show(diagnosis: Diagnosis | None, log: str, json: bool) -> int:
    from trainwiz.ui import console
    from trainwiz.ui import diagnosis as shown
    from trainwiz.workflows.launch.supervise import near

    if json:
        console.data_json({**diagnosis.to_dict(), "log": log} if diagnosis else None)
    elif diagnosis is None:
        console.data(t("no failure to be seen in {log}", log=log))
    else:
        shown.show(diagnosis, log=str(near(Path(log).absolute())) if log != "-" else "-", stream=sys.stdout)
    return 0
