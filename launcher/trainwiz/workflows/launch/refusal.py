"""A machine of several that cannot start: the others are told why, or they would wait for it up to their limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trainwiz import cluster
from trainwiz.cluster import Place
from trainwiz.errors import TrainwizError
from trainwiz.language import t, text
from trainwiz.network import messages, rollcall
from trainwiz.plan import Plan
from trainwiz.store import secret
from trainwiz.ui import console
from trainwiz.workflows.launch import machines
from trainwiz.workflows.launch.request import Request

_SECONDS = 5.0
"""How long a machine launched by hand tries to tell the others, whose own limit is short."""
_JOB_SECONDS = 60.0
"""The same in a scheduler's job: its machines do not come at the same moment, and wait for minutes."""


@contextlib.contextmanager
def told(request: Request, plan: Plan, folder: Path) -> Iterator[None]:
    """Before the roll-call: tell the other machines of an error that ends the launch on this one."""
    try:
        yield
    except TrainwizError as error:
        if not request.dry_run and plan.machine.num_machines > 1:
            # Telling the others failed, or was interrupted; the error itself matters.
            with contextlib.suppress(TrainwizError, OSError, KeyboardInterrupt):
                _tell(request, plan, folder, why(error))
        raise


def _tell(request: Request, plan: Plan, folder: Path, problem: str) -> None:
    place = cluster.place(plan, request.machine_rank, os.environ, folder=request.folder)
    seconds = _JOB_SECONDS if cluster.job(os.environ) else _SECONDS
    console.talk(
        t("this machine cannot start: telling the other machines, for up to {seconds:g} s", seconds=seconds),
        style="warning",
    )
    known = machines.typed_secret(request.secret) or secret.read(folder)
    with contextlib.ExitStack() as kept:
        if place.rank == 0 and not known:
            known = secret.made()
            kept.enter_context(secret.shared(folder, known))
        rollcall.refuse(
            _me(plan, place, problem),
            address=place.address,
            port=place.port,
            wait=seconds,
            secret=lambda: known or secret.read(folder),
        )


def why(error: TrainwizError) -> str:
    """An error as other machines are told of it."""
    problem = text(error.message)
    said = t("{problem}; {remedy}", problem=problem, remedy=text(error.remedy)) if error.remedy else problem
    return said.encode(errors="replace").decode()[: messages.LONGEST_PROBLEM]


def _me(plan: Plan, place: Place, problem: str) -> messages.Machine:
    return messages.Machine(
        rank=place.rank,
        hostname=os.uname().nodename,
        plan=plan.digest(),
        machines=place.machines,
        problem=problem,
    )
