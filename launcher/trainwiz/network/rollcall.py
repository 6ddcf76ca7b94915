"""The roll call of machines: which are present, missing or duplicated, and whether all have the same plan.

Machine 0 listens on the rendezvous port itself, so that the roll-call also proves that this port is open; the others
connect and say who they are. It takes seconds; the engines' rendezvous would wait 15 minutes and name nobody.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.language import t
from trainwiz.message import Message, say

_SETTLE_SECONDS = 1.5
"""After the first thing that is wrong: how long to hear the others, so that the report is complete."""
_ANSWER_SECONDS = 5.0
"""How much longer than machine 0 the others wait, for its verdict to reach them."""
_RETRY_SECONDS = 0.3
_HELLO_SECONDS = 2.0
"""How long a connection may take to say who it is; nobody else is heard meanwhile."""
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine, by its own account."""

    rank: int
    """Its rank among the machines."""
    hostname: str
    """The name of its host."""
    plan: str
    """The digest of its plan."""
    machines: int
    """How many machines its plan has."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells two processes on the same host apart."""


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What machine 0 heard."""

    machines: int
    """How many machines its plan has."""
    plan: str
    """The digest of its plan."""
    present: tuple[Machine, ...]
    """The machines that answered; a rank may be there twice."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """What machine 0 tells the others if all is well."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Machine ranks that no machine claimed."""
        return tuple(sorted(set(range(self.machines)) - {m.rank for m in self.present}))

    def problems(self) -> tuple[Message, ...]:
        """Everything that is wrong, except missing machines."""
        found = []
        for rank in sorted({m.rank for m in self.present}):
            hosts = [m.hostname for m in self.present if m.rank == rank]
            if rank >= self.machines:
                told = {"host": hosts[0], "rank": rank, "last": self.machines - 1}
                found.append(say("{host} reports machine rank {rank}, but the plan has machines 0 to {last}", **told))
            if len(hosts) > 1:
                used = {"rank": rank, "n": len(hosts), "hosts": ", ".join(hosts)}
                found.append(say("machine rank {rank} is used {n} times: {hosts}", **used))
        for machine in self.present:
            if machine.plan != self.plan:
                found.append(
                    say(
                        "machine {rank} ({host}) has a different plan: {theirs}; machine 0 has {ours}",
                        rank=machine.rank,
                        host=machine.hostname,
                        theirs=machine.plan[:12],
                        ours=self.plan[:12],
                    )
                )
        return tuple(found)


# docs/decisions/launching.md: The roll call uses the rendezvous port itself
def host(me: Machine, *, address: str, port: int, wait: float, agreed: Mapping[str, Any]) -> Roll:
    """Machine 0: hold the roll-call. Raises `TrainwizError` naming who is missing, there twice, or of another plan."""
    server = _listen(address, port)
    result: list[Roll] = []
    thread = threading.Thread(target=lambda: result.append(_hold(server, me, wait, agreed)), daemon=True)
    thread.start()
    # To itself, by the address that the others use: another machine 0 may be the one that answers there.
    hint: Message | None = None
    try:
        elsewhere = _attend(me, address, port, wait, only_if_not=me.key, needed=thread.is_alive)
        if elsewhere is not None:
            _judge(elsewhere, wait)
    except OSError as error:
        hint = say(
            "machine 0 cannot reach itself at {address}:{port} ({error}): is main_process_ip its own address?",
            address=address,
            port=port,
            error=error.strerror or error,
        )
    thread.join()
    return _judge(result[0], wait, hint)


def attend(me: Machine, *, address: str, port: int, wait: float) -> Roll:
    """Any other machine: say that it is here, and hear the verdict. Raises `TrainwizError`."""
    try:
        roll = _attend(me, address, port, wait)
    except OSError as error:
        raise TrainwizError(
            say(
                "machine 0 did not answer at {address}:{port} within {wait:g} s ({error}); this is machine {rank}",
                address=address,
                port=port,
                wait=wait,
                error=error.strerror or error,
                rank=me.rank,
            ),
            say(
                "run the same command with --machine-rank 0 on {address}, and open port {port} between the machines",
                address=address,
                port=port,
            ),
        ) from None
    assert roll is not None
    return _judge(roll, wait)


def _judge(roll: Roll, wait: float, hint: Message | None = None) -> Roll:
    problems = [*roll.problems()]
    if roll.missing:
        problems.append(
            say(
                "missing after {wait:g} s: machine rank {ranks}; present: {present}",
                wait=wait,
                ranks=", ".join(map(str, roll.missing)),
                present=", ".join(f"{m.rank} ({m.hostname})" for m in roll.present),
            )
        )
    if hint and roll.missing:
        problems.append(hint)
    if not problems:
        return roll
    raise TrainwizError(
        say("cannot start on all machines: {problems}", problems=_joined(problems)),
        say(
            "run the same command with the same plan on every machine; use each --machine-rank from 0 to {last} once",
            last=roll.machines - 1,
        ),
    )


def _joined(problems: Sequence[Message]) -> Message:
    first, *rest = problems
    return say("{first}\n  {rest}", first=first, rest=_joined(rest)) if rest else first


def _listen(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server(("", port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise TrainwizError(say("cannot listen on port {port}: {error}", port=port, error=error)) from None
        raise TrainwizError(
            say("port {port} is in use on this machine, but the other machines expect machine 0 there", port=port),
            say(
                "stop the program that uses the port (`ss -ltnp`), or change machine.main_process_port in the plan "
                "on every machine"
            ),
        ) from None


def _hold(server: socket.socket, me: Machine, wait: float, agreed: Mapping[str, Any]) -> Roll:
    until = time.monotonic() + wait
    heard: dict[str, Machine] = {me.key: me}
    lines: list[socket.socket] = []
    with server:
        while True:
            roll = Roll(machines=me.machines, plan=me.plan, present=tuple(heard.values()), agreed=agreed)
            if roll.problems():
                until = min(until, time.monotonic() + _SETTLE_SECONDS)
            if (not roll.missing and not roll.problems()) or time.monotonic() >= until:
                break
            server.settimeout(min(0.2, max(0.01, until - time.monotonic())))
            if arrived := _arrival(server):
                machine, line = arrived
                heard[machine.key] = machine
                lines.append(line)
        for line in lines:
            with contextlib.suppress(OSError), line:
                _send(line, {"key": me.key, "roll": asdict(roll)})
                line.recv(1)  # let the other side close first: the port is needed again at once
    return roll


def _arrival(server: socket.socket) -> tuple[Machine, socket.socket] | None:
    try:
        line, _ = server.accept()
    except OSError:
        return None
    try:
        line.settimeout(_HELLO_SECONDS)
        return _machine(_receive(line)["machine"]), line
    except (OSError, ValueError, TypeError, KeyError):
        # A port scanner, a health check: no machine.
        line.close()
        return None


def _attend(
    me: Machine,
    address: str,
    port: int,
    wait: float,
    *,
    only_if_not: str = "",
    needed: Callable[[], bool] = lambda: True,
) -> Roll | None:
    until = time.monotonic() + wait
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(0.1, until - time.monotonic())) as line:
                # Our own server answers at the end only; a word from it now is not needed.
                left = max(0.1, until - time.monotonic()) + _ANSWER_SECONDS
                line.settimeout(_SETTLE_SECONDS + 2 if only_if_not else left)
                _send(line, {"machine": asdict(me)})
                answer = _receive(line)
        except TimeoutError:
            if only_if_not:
                return None
            raise
        except (OSError, ValueError):
            if time.monotonic() + _RETRY_SECONDS >= until or not needed():
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        return None if answer["key"] == only_if_not else _roll(answer["roll"])


def _machine(value: Mapping[str, Any]) -> Machine:
    machine = Machine(**value)
    if not isinstance(machine.rank, int) or not all(isinstance(v, str) for v in (machine.hostname, machine.plan)):
        raise ValueError(value)
    return machine


def _roll(value: Mapping[str, Any]) -> Roll:
    present = tuple(_machine(machine) for machine in value["present"])
    return Roll(machines=value["machines"], plan=value["plan"], present=present, agreed=value["agreed"])


def _send(line: socket.socket, value: Mapping[str, Any]) -> None:
    line.sendall(json.dumps(value).encode() + b"\n")


def _receive(line: socket.socket) -> dict[str, Any]:
    with line.makefile("rb") as lines:
        data = lines.readline(_LONGEST_LINE)
    if not data.endswith(b"\n"):
        raise ConnectionError(t("another program answers there, not trainwiz"))
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(value)
    return value
