"""The roll-call before a launch over several machines: they agree on the run's folder and on what it continues."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwiz import cluster
from trainwiz.cluster import Place
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.network import ports, rollcall
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.network.rollcall import Roll
from trainwiz.store import runs, secret
from trainwiz.store.runs import Run
from trainwiz.ui import console

SECRET = "TRAINWIZ_SECRET"
"""The variable that stands for `--secret`: a command line is seen by everybody on the machine."""
GOES_ON = "goes_on"
"""What machine 0 agrees on with the others, where the launchers stay connected until the end."""
BUILDS = "builds"
"""The same where they stay connected until all have built what their ranks need."""
_SHORTEST = 8
_FEW = 16
"""Up to so many machines, each lists all of them."""
_PORT_SECONDS = 60.0
"""How long machine 0 of a scheduler's job waits for its port; the others wait for machine 0 for longer."""
_LATE_SECONDS = 1.0
"""Less than what machine 0 gives a connection to say who it is, and the secret is checked before."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The machines of a launch, after their roll-call."""

    run: Run
    """The run that machine 0 named."""
    continues: Run | None
    """The run that it continues."""
    environ: Mapping[str, str]
    """What to add to the environment."""
    link: Coordinator | Participant | None = None
    """The connection to the other machines, where they go on together after a failure."""
    builders: Coordinator | Participant | None = None
    """The connection to the other machines, where all must build before any begins."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a machine brings to the roll-call."""

    place: Place
    """Its place among the machines."""
    project: Path
    """The project's folder."""
    digest: str
    """That of the plan."""
    facts: Mapping[str, str]
    """Facts that must be the same everywhere, like the plan."""
    wait: float
    """For how many seconds."""
    typed: str
    """The secret of `--secret`."""
    continues: Run | None
    """On machine 0: the run that is continued."""
    must_share: bool
    """Whether machines that do not see machine 0's folder are refused; otherwise that is said."""
    goes_on: bool
    """On machine 0: whether the launchers stay connected, to go on together after a failure."""
    builds: bool
    """On machine 0: whether all must build something before any begins."""
    least: int
    """On machine 0: with how many machines it begins when the time is over."""


@contextlib.contextmanager
def gathered(call: Call) -> Iterator[Gathered]:
    """Hold or attend the roll-call. Raises `TrainwizError` that names who is missing."""
    place, project = call.place, call.project
    me = rollcall.Machine(
        rank=place.rank,
        hostname=os.uname().nodename,
        plan=call.digest,
        machines=place.machines,
        facts=dict(call.facts),
    )
    console.talk(
        t(
            "machine {rank} of {n}: waiting for all machines to connect at {address}:{port}, up to {wait:g} s",
            rank=place.rank,
            n=place.machines,
            address=place.address,
            port=place.port,
            wait=call.wait,
        )
    )
    with contextlib.ExitStack() as kept:
        roll, link = _host(me, call, kept) if place.rank == 0 else _attend(me, call, kept)
        if place.rank == 0 or place.machines <= _FEW:  # else their common log has a line for each pair of them
            for machine in sorted(roll.present, key=lambda m: m.rank):
                console.talk(t("machine {rank}: {host}", rank=machine.rank, host=machine.hostname), style="dim")
        goes_on = bool(roll.agreed.get(GOES_ON))
        _look_at_folders(roll, call.must_share, goes_on=goes_on)
        before = runs.named(project, roll.agreed["continues"]) if roll.agreed["continues"] else None
        yield Gathered(
            run=runs.join(project, roll.agreed["run"], machine=place.rank, continues=before),
            continues=before,
            environ=_interfaces(roll, place),
            link=link if goes_on else None,
            builders=link if roll.agreed.get(BUILDS) else None,
        )


def _interfaces(roll: Roll, place: Place) -> dict[str, str]:
    # gloo takes the address that the host name resolves to, which is often the loopback's.
    name = ports.interface_towards(ports.outside(roll.peers) or place.address, place.port)
    return {v: name for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name and v not in os.environ}


def _sees(project: Path, typed: str) -> bool:
    """Whether machine 0's secret is seen in this folder; a network file system may show it late."""
    until = time.monotonic() + _LATE_SECONDS
    while (found := secret.read(project)) != (typed or found) or not found:
        if time.monotonic() >= until:
            return False
        time.sleep(0.1)
    return True


# docs/decisions/launching.md: Machines without a shared folder train only what one machine saves
def _look_at_folders(roll: Roll, must_share: bool, *, goes_on: bool = False) -> None:
    if not roll.apart:
        return
    ranks = ", ".join(map(str, roll.apart))
    if goes_on:
        raise TrainwizError(
            say(
                "machine {ranks} does not see the folder of machine 0, and could not continue from its checkpoints",
                ranks=ranks,
            ),
            say(
                "put the project on a file system that all machines mount, or launch without --max-restarts, "
                "--auto-batch and --nnodes"
            ),
        )
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
            "machine {ranks} does not see the folder of machine 0: checkpoints exist only on machine 0, but to "
            "resume, every machine needs them",
            ranks=ranks,
        ),
        style="warning",
    )


# docs/decisions/launching.md: Machines prove to each other that they know the launch's secret
def _host(me: rollcall.Machine, call: Call, kept: contextlib.ExitStack) -> tuple[Roll, Coordinator | None]:
    place, project, typed = call.place, call.project, typed_secret(call.typed)
    agreed = {
        "run": runs.next_name(project),
        "continues": call.continues.name if call.continues else "",
        GOES_ON: "1" if call.goes_on else "",
        # Where fewer machines are enough, one that cannot build is only missing.
        BUILDS: "1" if call.builds and call.least >= place.machines else "",
    }
    # Another machine 0 may be active in this folder: it must be recognized, and named.
    there = secret.read(project)
    own = typed or there or secret.made()
    if not typed:
        console.talk(t("machines that do not share this folder need: --secret {secret}", secret=own))
    with contextlib.ExitStack() as meanwhile:
        if own != there:
            meanwhile.enter_context(secret.shared(project, own))
        roll = rollcall.host(
            me,
            address=place.address,
            port=place.port,
            wait=call.wait,
            secret=own,
            agreed=agreed,
            least=call.least if call.least < place.machines else 0,
            notice=lambda roll, seconds: _tell_progress(roll, seconds, call.wait),
            # Where a job begins again, its own start before this one, or another job, may be about to end.
            patience=_PORT_SECONDS if cluster.job(os.environ) else 0.0,
        )
        if not (agreed[GOES_ON] or agreed[BUILDS]):
            return roll, None
        coordinator = Coordinator(me, roll, address=place.address, port=place.port, secret=own)
        # A machine that comes back needs the secret, too.
        kept.push(meanwhile.pop_all())
        kept.callback(coordinator.close)
        return roll, coordinator


def _attend(me: rollcall.Machine, call: Call, kept: contextlib.ExitStack) -> tuple[Roll, Participant | None]:
    place, typed, known = call.place, typed_secret(call.typed), [""]

    def current() -> str:
        known[0] = typed or secret.read(call.project) or known[0]
        return known[0]

    roll = rollcall.attend(
        me,
        address=place.address,
        port=place.port,
        wait=call.wait,
        secret=current,
        sees=lambda: _sees(call.project, typed),
        waiting=lambda seconds: console.talk(
            t("machine 0 is not ready yet: {seconds:.0f} s of {wait:g} s", seconds=seconds, wait=call.wait)
        ),
    )
    if not (roll.agreed.get(GOES_ON) or roll.agreed.get(BUILDS)):
        return roll, None
    me = me.model_copy(update={"run": roll.agreed["run"]})
    participant = Participant(me, address=place.address, port=place.port, secret=known[0])
    kept.callback(participant.close)
    return roll, participant


def _tell_progress(roll: Roll, seconds: float, wait: float) -> None:
    if not roll.missing:
        return
    console.talk(
        t(
            "present after {seconds:.0f} s: machine {present}; missing: {missing} (waiting up to {wait:g} s)",
            seconds=seconds,
            present=", ".join(f"{m.rank} ({m.hostname})" for m in sorted(roll.present, key=lambda m: m.rank)),
            missing=", ".join(map(str, roll.missing)),
            wait=wait,
        )
    )


def typed_secret(option: str) -> str:
    """The secret that somebody typed; empty if nobody did. Raises `UsageError` for one that can be guessed."""
    typed = option or os.environ.get(SECRET, "")
    if typed and len(typed) < _SHORTEST:
        raise UsageError(
            say("the secret has {n} characters; at least {least} are needed", n=len(typed), least=_SHORTEST),
            say("use a longer one, the same on every machine; or none, and machine 0 creates one"),
        )
    return typed
