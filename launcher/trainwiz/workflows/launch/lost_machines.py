"""A machine that went away, in a job whose scheduler starts all machines again: the others end so that it does."""

from __future__ import annotations

import dataclasses
import os
import time

from trainwiz import cluster
from trainwiz.language import t
from trainwiz.outcome import Outcome
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.launch.prepared import Prepared

_SECONDS = 30.0
"""How long a machine that is there takes at most to write down how its part ended."""


# docs/decisions/launching.md: A machine that only lost its peers asks for another start
def judged(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome; where this machine only lost others, with the code after which its scheduler starts all again."""
    around, code = cluster.job(os.environ), prepared.request.stopped_code
    if around is None or not around.queues_again or prepared.plan is None:
        return outcome
    if outcome.exit_code in (0, code) or outcome.interrupted or outcome.hung:
        return outcome
    if _failed_by_themselves(prepared, outcome):
        return outcome
    gone = [*outcome.lost] if prepared.team else _silent(prepared)
    if not gone:
        return outcome
    console.talk(
        t(
            "machine {ranks} was lost, and no rank here failed by itself: exit code {code}, so that {scheduler} "
            "can restart all machines",
            ranks=", ".join(map(str, gone)),
            code=code,
            scheduler=around.scheduler,
        ),
        style="warning",
    )
    return dataclasses.replace(outcome, exit_code=code)


def _failed_by_themselves(prepared: Prepared, outcome: Outcome) -> bool:
    from trainwiz.workflows.launch import failure  # not before ranks have failed

    return bool(failure.culprits(prepared.run, outcome, prepared.ranks))


def _silent(prepared: Prepared) -> list[int]:
    """The other machines that began and never said how their part ended, as far as they share this folder.

    None where another one says that it failed: it does not wait, as those do that only lost others.
    """
    place = prepared.place
    if place is None:
        return []
    others = [Run(prepared.run.folder, machine) for machine in range(place.machines) if machine != place.rank]
    begun = [machine for machine in others if machine.file("command").exists()]
    until = time.monotonic() + _SECONDS
    while (left := [m for m in begun if not m.file("outcome").exists()]) and time.monotonic() < until:
        time.sleep(0.2)
    said = (machine.read_own("outcome") for machine in begun)
    failed = any(each.get("exit_code") not in (None, 0, prepared.request.stopped_code) for each in said)
    return [] if failed else [machine.machine for machine in left]
