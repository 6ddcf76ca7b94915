"""`launch --debug`: which ranks wait for a debugger, on which ports, and how to attach to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

from trainwiz import command as commands
from trainwiz.command import Command
from trainwiz.errors import Refused, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.network import ports
from trainwiz.process.capture import capture
from trainwiz.process.stacks import INSIDE
from trainwiz.ui import console
from trainwiz.workflows.launch.request import Request
from trainwiz.workflows.launch.usage import ALL_RANKS, names_ranks

_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('debugpy') is None)"
_PROBE_SECONDS = 20.0


def ranks(words: str, world: int) -> list[int]:
    """The ranks that `words` name, in a world of so many. Raises `UsageError`."""
    if words == ALL_RANKS:
        return list(range(world))
    chosen = sorted({int(word) for word in words.split(",") if word.isdecimal()})
    if not names_ranks(words) or not chosen or chosen[-1] >= world:
        raise UsageError(
            say("--debug {words}: the ranks on this machine are 0 to {last}", words=words, last=world - 1),
            say("run: trainwiz launch with --debug 0, --debug 0,1 or --debug all"),
        )
    return chosen


def chosen(request: Request, *, world: int, machines: int = 1, launcher: str | None = None) -> list[int]:
    """The ranks to be debugged, none without --debug. Raises where that cannot work, or debugpy is missing."""
    if not request.debug:
        return []
    if machines > 1:
        raise UsageError(
            say("--debug works on one machine only; the plan has {n}", n=machines),
            say("debug on one machine: trainwiz init --set machine.num_machines=1 in a separate folder"),
        )
    if launcher:
        raise UsageError(
            say("--debug needs ranks that trainwiz starts itself; these are started by {name}", name=launcher)
        )
    if request.max_restarts or request.auto_batch:
        raise UsageError(
            say("--debug cannot be combined with --max-restarts or --auto-batch: it debugs a single attempt")
        )
    found = ranks(request.debug, world)
    if not request.dry_run:
        _needs_debugpy(request.python)
    return found


@contextlib.contextmanager
def claimed(chosen: Sequence[int]) -> Iterator[Mapping[int, int]]:
    """A port for each of these ranks, for as long as the launch lasts."""
    with contextlib.ExitStack() as held:
        taken = {rank: held.enter_context(ports.claim(commands.port_of(rank))) for rank in chosen}
        yield {rank: port.number for rank, port in taken.items()}


def applied(command: Command, debug_ports: Mapping[int, int]) -> Command:
    """The command with these ranks waiting for a debugger, and with no time limit that could end it meanwhile."""
    if not debug_ports:
        return command
    changed = commands.debugged(command, debug_ports)
    paths = [str(INSIDE), changed.environ.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    return dataclasses.replace(changed, environ={**changed.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))})


def tell(debug_ports: Mapping[int, int]) -> None:
    """How to attach."""
    if not debug_ports:
        return
    for rank, port in debug_ports.items():
        line = t("rank {rank} is waiting for a debugger on 127.0.0.1:{port}", rank=rank, port=port)
        console.talk(line, style="bold")
        wanted = commands.port_of(rank)
        if port != wanted:
            taken = t("port {wanted}, set for this rank in .vscode/launch.json, is already in use", wanted=wanted)
            console.talk(taken, style="warning")
    console.talk(
        t('VS Code: Run and Debug, "attach to rank N"; other editors: attach to a remote Python process (debugpy)')
    )
    if os.environ.get("SSH_CONNECTION"):
        tunnels = " ".join(f"-L {port}:127.0.0.1:{port}" for port in debug_ports.values())
        console.talk(t("run on your own machine: ssh {tunnels} {host}", tunnels=tunnels, host=os.uname().nodename))
    console.talk(t("all other ranks wait without a time limit, and hang detection is off; Ctrl-C ends the run"))


def _needs_debugpy(python: str) -> None:
    if capture([python, "-c", _PROBE], timeout=_PROBE_SECONDS).code == 1:
        raise Refused(
            say("--debug needs debugpy, which is not installed for {python}", python=python),
            say("run: {python} -m pip install debugpy", python=python),
        )
