"""The summary of a run: how it ended, what it reached, why it failed, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.language import t
from trainwiz.outcome import Outcome, Verified, signal_name
from trainwiz.quantities import clock_time
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis
    from trainwiz.ui.diagnosis import Fix

_CTRL_C = 2


def show(
    outcome: Outcome,
    diagnosis: Diagnosis | None,
    *,
    folder: Path,
    first: Mapping[str, Any],
    last: Mapping[str, Any],
    checkpoint: Path | None,
    resume: str | None,
    verified: Verified | None = None,
    log: str = "",
    fix: Fix | None = None,
) -> None:
    """Print the summary. `first` and `last` are metrics; `resume` is the command that continues, if one can.

    `log` names the log that the diagnosis was made from, `fix` is a change of the plan that removes the cause.
    """
    console.talk()
    words, style = _ending(outcome)
    console.talk(words, style=style)
    for line in _machines(outcome):
        console.talk(line, style="error")
    if "loss" in first and "loss" in last:
        console.talk(
            t(
                "loss {first:.4f} → {last:.4f} (updates {from_update} to {to_update})",
                first=first["loss"],
                last=last["loss"],
                from_update=first.get("update"),
                to_update=last.get("update"),
            )
        )
    if diagnosis:
        from trainwiz.ui import diagnosis as card  # not where nothing failed

        card.show(diagnosis, log=log, fix=fix)
    console.talk(t("all files of this run are in {folder}", folder=folder))
    if checkpoint:
        console.talk(t("newest checkpoint: {checkpoint}", checkpoint=checkpoint))
    if verified:
        _verified(verified)
    if resume and checkpoint:
        console.talk(t("to continue: {line}", line=resume))


def _ending(outcome: Outcome) -> tuple[str, str]:
    """How the run ended, and the style of the sentence."""
    time, code = clock_time(outcome.seconds), outcome.exit_code
    if outcome.stopped and outcome.signal is None:
        return t("stopped after {time}: a rank was asked to; exit code {code}", time=time, code=code), "warning"
    if outcome.signal is not None and not (code == 0 and not outcome.stopped):
        by = "Ctrl-C" if outcome.signal == _CTRL_C else signal_name(outcome.signal)
        if outcome.stopped:
            words = t(
                "stopped by {signal} after {time}; the ranks exited cleanly; exit code {code}",
                signal=by,
                time=time,
                code=code,
            )
            return words, "warning"
        return t("stopped by {signal} after {time}; exit code {code}", signal=by, time=time, code=code), "warning"
    if outcome.hung:
        return t("ended after {time}: no activity; exit code {code}", time=time, code=code), "error"
    if code == 0:
        return t("done in {time}", time=time), "good"
    return t("failed after {time}; exit code {code}", time=time, code=code), "error"


def _machines(outcome: Outcome) -> list[str]:
    """Which of several machines it was."""
    lines = [t("machine {rank} was lost: {how}", rank=rank, how=how) for rank, how in outcome.lost.items()]
    if 0 in outcome.lost:
        lines.append(
            t(
                "machine 0 cannot be replaced during a run; to continue from the newest checkpoint, launch on all "
                "machines with --resume (a scheduler's job does so when it restarts)"
            )
        )
    elif outcome.lost:
        lines.append(
            t("to wait longer for a machine: --rejoin SECONDS; to continue without it: --nnodes MIN:MAX"),
        )
    if outcome.machine:
        rank, host = outcome.machine
        lines.append(t("the rank that failed first ran on machine {rank} ({host})", rank=rank, host=host))
    return lines


def _verified(verified: Verified) -> None:
    if verified.damaged:
        console.talk(
            t(
                "that checkpoint is damaged ({files}); resuming uses the previous one",
                files=", ".join(verified.damaged),
            ),
            style="error",
        )
    elif verified.whole:
        console.talk(t("its files are intact: {n} verified against the manifest", n=verified.files))
    else:
        console.talk(
            t(
                "files verified against the manifest within the grace period: {n} of {all}; resuming verifies all "
                "of them",
                n=verified.read,
                all=verified.files,
            ),
            style="warning",
        )
