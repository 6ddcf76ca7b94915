"""`launch --dry-run`: what would be started, with which environment, and where it would write."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz.finding import Finding, errors
from trainwiz.language import t
from trainwiz.record import redaction
from trainwiz.ui import console
from trainwiz.ui import findings as shown
from trainwiz.workflows.launch import provenance
from trainwiz.workflows.launch.prepared import Prepared

_SHOWN = ("argv", "cwd", "environment", "ranks", "launcher", "config", "versions", "plan_hash", "resumed_from")
"""What of a run's record the JSON has."""


def show(prepared: Prepared, findings: Sequence[Finding], by_hand: Sequence[str] = ()) -> int:
    """Show it. The exit code is that of the preflight: 1 where a launch would be refused."""
    if prepared.request.json:
        described = provenance.describe(prepared)
        console.data_json(
            {
                **{key: described[key] for key in _SHOWN},
                "run_folder": str(prepared.run.folder),
                "by_hand": list(by_hand[1:]),
                "preflight": shown.to_dict(findings),
            }
        )
    else:
        shown.show(findings)
        _show(prepared, by_hand)
        if errors(findings):
            console.talk(t("a launch would be refused; errors: {n}", n=len(errors(findings))), style="error")
    return 1 if errors(findings) else 0


def _show(prepared: Prepared, by_hand: Sequence[str]) -> None:
    command = prepared.command
    console.data(t("folder       {folder}", folder=command.cwd))
    console.data(t("run folder   {folder}", folder=prepared.run.folder))
    console.data(t("command      {command}", command=shlex.join(redaction.arguments(command.argv))))
    console.data(t("environment  {variables}", variables=_assignments(command.environ)))
    for rank in command.ranks:
        console.data(t("rank {rank}  {variables}", rank=rank.rank, variables=_assignments(rank.environ)))
        if rank.argv:
            console.data(t("command      {command}", command=shlex.join(redaction.arguments(rank.argv))))
    for line in by_hand:
        console.talk(line, style="dim")


def _assignments(variables: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in redaction.environment(variables).items())
