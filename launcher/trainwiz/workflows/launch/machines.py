"""The roll-call before a launch over several machines: they agree on the run's folder and on what it continues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainwiz.cluster import Place
from trainwiz.language import t
from trainwiz.network import ports, rollcall
from trainwiz.store import runs
from trainwiz.store.runs import Run
from trainwiz.ui import console


def call_roll(
    place: Place, project: Path, *, digest: str, wait: float, continues: Run | None
) -> tuple[Run, Run | None, Mapping[str, str]]:
    """Hold or attend the roll-call, for up to `wait` seconds. Raises `TrainwizError` that names who is missing.

    `digest` is the plan's, which must be the same everywhere.
    Returns the run that machine 0 named, the one that it continues, and what to add to the environment.
    """
    me = rollcall.Machine(rank=place.rank, hostname=os.uname().nodename, plan=digest, machines=place.machines)
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
    if place.rank == 0:
        agreed = {"run": runs.next_name(project), "continues": continues.name if continues else ""}
        roll = rollcall.host(me, address=place.address, port=place.port, wait=wait, agreed=agreed)
    else:
        roll = rollcall.attend(me, address=place.address, port=place.port, wait=wait)
    for machine in sorted(roll.present, key=lambda m: m.rank):
        console.talk(t("machine {rank}: {host}", rank=machine.rank, host=machine.hostname), style="dim")
    before = runs.named(project, roll.agreed["continues"]) if roll.agreed["continues"] else None
    run = runs.join(project, roll.agreed["run"], machine=place.rank, continues=before)
    # gloo takes the address that the host name resolves to, which is often the loopback's.
    name = ports.interface_towards(place.address, place.port)
    added = {v: name for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name and v not in os.environ}
    return run, before, added
