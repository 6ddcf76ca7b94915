"""The roll-call before a launch over several machines: they agree on the run's folder and on what it continues."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from trainwiz.cluster import Place
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.network import ports, rollcall
from trainwiz.network.rollcall import Roll
from trainwiz.store import runs, secret
from trainwiz.store.runs import Run
from trainwiz.ui import console

SECRET = "TRAINWIZ_SECRET"
"""The variable that stands for `--secret`: a command line is seen by everybody on the machine."""
_SHORTEST = 8
_LATE_SECONDS = 1.0
"""Less than what machine 0 gives a connection to say who it is, and the secret is checked before."""


def call_roll(
    place: Place,
    project: Path,
    *,
    digest: str,
    facts: Mapping[str, str],
    wait: float,
    typed: str,
    continues: Run | None,
    must_share: bool,
) -> tuple[Run, Run | None, Mapping[str, str]]:
    """Hold or attend the roll-call, for up to `wait` seconds. Raises `TrainwizError` that names who is missing.

    The plan's `digest` and the `facts` must be the same everywhere. `typed` is the secret of `--secret`.
    Where machines do not see machine 0's folder, that is refused if they `must_share` it, and else said.
    Returns the run that machine 0 named, the one that it continues, and what to add to the environment.
    """
    me = rollcall.Machine(
        rank=place.rank,
        hostname=os.uname().nodename,
        plan=digest,
        machines=place.machines,
        facts=dict(facts),
    )
    console.talk(
        t(
            "machine {rank} of {n}: waiting for all machines to connect at {address}:{port}, up to {wait:g} s",
            rank=place.rank,
            n=place.machines,
            address=place.address,
            port=place.port,
            wait=wait,
        )
    )
    typed = _typed(typed)
    roll = (
        _host(me, place, project, wait, typed, continues)
        if place.rank == 0
        else rollcall.attend(
            me,
            address=place.address,
            port=place.port,
            wait=wait,
            secret=lambda: typed or secret.read(project),
            sees=lambda: _sees(project, typed),
        )
    )
    for machine in sorted(roll.present, key=lambda m: m.rank):
        console.talk(t("machine {rank}: {host}", rank=machine.rank, host=machine.hostname), style="dim")
    _look_at_folders(roll, must_share)
    before = runs.named(project, roll.agreed["continues"]) if roll.agreed["continues"] else None
    run = runs.join(project, roll.agreed["run"], machine=place.rank, continues=before)
    # gloo takes the address that the host name resolves to, which is often the loopback's.
    name = ports.interface_towards(ports.outside(roll.peers) or place.address, place.port)
    added = {v: name for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name and v not in os.environ}
    return run, before, added


def _sees(project: Path, typed: str) -> bool:
    """Whether machine 0's secret is seen in this folder; a network file system may show it late."""
    until = time.monotonic() + _LATE_SECONDS
    while (found := secret.read(project)) != (typed or found) or not found:
        if time.monotonic() >= until:
            return False
        time.sleep(0.1)
    return True


# docs/decisions/launching.md: Machines that share no folder train only what one machine saves
def _look_at_folders(roll: Roll, must_share: bool) -> None:
    if not roll.apart:
        return
    ranks = ", ".join(map(str, roll.apart))
    if must_share:
        raise TrainwizError(
            say(
                "machine {ranks} does not see the folder of machine 0, but each machine saves its part there",
                ranks=ranks,
            ),
            say("put the project on a file system that all machines mount, and launch there on each of them"),
        )
    console.talk(
        t(
            "machine {ranks} does not see the folder of machine 0: checkpoints lie on machine 0 only, and to resume, "
            "every machine needs them",
            ranks=ranks,
        ),
        style="warning",
    )


# docs/decisions/launching.md: Machines prove to each other that they know the launch's secret
def _host(me: rollcall.Machine, place: Place, project: Path, wait: float, typed: str, continues: Run | None) -> Roll:
    agreed = {"run": runs.next_name(project), "continues": continues.name if continues else ""}
    # Another machine 0 may be at it in this folder: it is to be recognised, and named.
    there = secret.read(project)
    own = typed or there or secret.made()
    if not typed:
        console.talk(t("machines that do not share this folder need: --secret {secret}", secret=own))
    with contextlib.nullcontext() if own == there else secret.shared(project, own):
        return rollcall.host(me, address=place.address, port=place.port, wait=wait, secret=own, agreed=agreed)


def _typed(option: str) -> str:
    """The secret that somebody typed; empty if nobody did. Raises `UsageError` for one that can be guessed."""
    typed = option or os.environ.get(SECRET, "")
    if typed and len(typed) < _SHORTEST:
        raise UsageError(
            say("the secret has {n} characters; at least {least} are needed", n=len(typed), least=_SHORTEST),
            say("use a longer one, the same on every machine; or none, and machine 0 makes one"),
        )
    return typed
