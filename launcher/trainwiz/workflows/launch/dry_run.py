"""`launch --dry-run`: what would be started, with which environment, and where it would write."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainwiz.language import t
from trainwiz.record import redaction
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.finding import Finding
    from trainwiz.workflows.launch.supervise import Launch


def show(launch: Launch, findings: Sequence[Finding], *, by_hand: Sequence[str], as_json: bool) -> int:
    """Show it. The exit code is that of the preflight: 1 where a launch would be refused."""
    from trainwiz.finding import errors
    from trainwiz.workflows.check import preflight

    if as_json:
        console.data_json(_as_dict(launch, findings, by_hand))
    else:
        preflight.show(findings)
        _show(launch, by_hand)
        if errors(findings):
            console.talk(t("a launch would be refused: errors: {n}", n=len(errors(findings))), style="error")
    return 1 if errors(findings) else 0


def _show(launch: Launch, by_hand: Sequence[str]) -> None:
    command = launch.command
    console.data(t("folder       {folder}", folder=command.cwd))
    console.data(t("run folder   {folder}", folder=launch.run.folder))
    console.data(t("command      {command}", command=shlex.join(redaction.arguments(command.argv))))
    console.data(t("environment  {variables}", variables=_assignments(command.environ)))
    for rank in command.ranks:
        console.data(t("rank {rank}  {variables}", rank=rank.rank, variables=_assignments(rank.environ)))
        if rank.argv:
            console.data(t("command      {command}", command=shlex.join(redaction.arguments(rank.argv))))
    for line in by_hand:
        console.talk(line, style="dim")


def _assignments(variables: Any) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in redaction.environment(variables).items())


def _as_dict(launch: Launch, findings: Sequence[Finding], by_hand: Sequence[str]) -> dict[str, Any]:
    from trainwiz.ui import findings as shown
    from trainwiz.workflows.launch.supervise import describe

    described = describe(launch)
    kept = ("argv", "cwd", "environment", "ranks", "launcher", "config", "versions", "plan_hash", "resumed_from")
    return {
        **{key: described[key] for key in kept},
        "run_folder": str(launch.run.folder),
        "by_hand": list(by_hand[1:]),
        "preflight": shown.to_dict(findings),
    }
