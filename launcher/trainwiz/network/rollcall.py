"""The roll-call of machines: which are present, missing or duplicated, and whether they agree.

Machine 0 listens on the rendezvous port itself, so that the roll-call also proves that this port is open; the others
connect and say who they are. It takes seconds; the engines' rendezvous would wait 15 minutes and name nobody.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say
from trainwiz.network import messages
from trainwiz.network.listener import Listener
from trainwiz.network.messages import InvalidMessage, Machine, Verdict

__all__ = ["Machine", "Roll", "asked", "attend", "host", "listen", "verdict"]

_SETTLE_SECONDS = 1.5
"""After the first thing that is wrong: how long to hear the others, so that the report is complete."""
_ANSWER_SECONDS = 5.0
"""How much longer than machine 0 the others wait, for its verdict to reach them."""
_RETRY_SECONDS = 0.3
_POLL_SECONDS = 0.2
_CHALLENGE_SECONDS = 5.0
_BACKLOG = 1024
"""Machines of a job come at the same moment; the kernel allows as many as net.core.somaxconn."""
_LOOPBACK = ("127.", "::1")
_NEWS_SECONDS = 1.0
"""How much later others who came are told of, at least: a thousand machines come within a minute."""
NOTICE_SECONDS = 30.0
"""How often somebody who waits is told so."""

Notice = Callable[["Roll", float], None]
"""Hears who is present after so many seconds: when that has changed, and every half minute."""
Secret = Callable[[], str]
"""The launch's secret; empty while it is not known. It is asked again before each attempt."""


class PortInUse(TrainwizError):
    """Another program listens where the others expect machine 0."""


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What machine 0 heard."""

    machines: int
    """How many machines its plan has."""
    plan: str
    """The digest of its plan."""
    present: tuple[Machine, ...]
    """The machines that answered; a rank may be there twice."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What machine 0 says of its code, data and versions."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """What machine 0 tells the others if all is well."""
    least: int = 0
    """With how many machines it begins; 0: with all."""
    strangers: int = 0
    """Connections that did not know the secret."""
    peers: tuple[str, ...] = ()
    """On machine 0: the addresses that the machines came from."""

    @property
    def apart(self) -> tuple[int, ...]:
        """Machine ranks that do not see machine 0's folder."""
        return tuple(sorted(m.rank for m in self.present if m.apart))

    @property
    def missing(self) -> tuple[int, ...]:
        """Machine ranks that no machine claimed."""
        return tuple(sorted(set(range(self.machines)) - {m.rank for m in self.present}))

    @property
    def enough(self) -> bool:
        """Whether as many machines are present as it takes to begin."""
        return not self.missing or (self.least > 0 and self.machines - len(self.missing) >= self.least)

    @property
    def unable(self) -> tuple[Machine, ...]:
        """The machines that cannot start."""
        return tuple(m for m in self.present if m.problem)

    def problems(self) -> tuple[Message, ...]:
        """Everything that is wrong, except missing machines; what a machine is that cannot start does not matter."""
        if self.unable:
            return tuple(
                say("machine {rank} ({host}) cannot start: {problem}", rank=m.rank, host=m.hostname, problem=m.problem)
                for m in self.unable
            )
        return (*self.misnumbered(), *(p for machine in self.present for p in self._differences(machine)))

    def misnumbered(self) -> list[Message]:
        """Machine ranks that the plan does not have, or that several machines claim."""
        found = []
        hosts_of: dict[int, list[str]] = {}
        for machine in self.present:
            hosts_of.setdefault(machine.rank, []).append(machine.hostname)
        for rank, hosts in sorted(hosts_of.items()):
            if rank >= self.machines:
                told = {"host": hosts[0], "rank": rank, "last": self.machines - 1}
                found.append(say("{host} reports machine rank {rank}, but the plan has machines 0 to {last}", **told))
            if len(hosts) > 1:
                used = {"rank": rank, "n": len(hosts), "hosts": ", ".join(hosts)}
                found.append(say("machine rank {rank} is used {n} times: {hosts}", **used))
        return found

    def _differences(self, machine: Machine) -> list[Message]:
        who = {"rank": machine.rank, "host": machine.hostname}
        if machine.plan != self.plan:
            plans = {"theirs": machine.plan[:12], "ours": self.plan[:12]}
            return [say("machine {rank} ({host}) has a different plan: {theirs}; machine 0 has {ours}", **who, **plans)]
        if machine.facts == self.facts:
            return []
        return [
            say(
                "machine {rank} ({host}) has a different {what}: {theirs}; machine 0 has {ours}",
                **who,
                what=name,
                theirs=machine.facts.get(name, "-"),
                ours=self.facts.get(name, "-"),
            )
            for name in sorted({*self.facts, *machine.facts})
            if machine.facts.get(name) != self.facts.get(name)
        ]


# docs/decisions/launching.md: The roll call uses the rendezvous port itself
def host(
    me: Machine,
    *,
    address: str,
    port: int,
    wait: float,
    secret: str,
    agreed: Mapping[str, str],
    least: int = 0,
    notice: Notice = lambda _roll, _seconds: None,
    patience: float = 0.0,
) -> Roll:
    """Machine 0: hold the roll-call. Raises `TrainwizError` naming who is missing, there twice, or of another plan.

    When the time is over, `least` machines are enough to begin (0: all are needed). A port that another program uses is
    waited for during `patience` seconds.
    """
    server = listen(address, port, patience=patience)
    result: list[Roll] = []
    began = Roll(machines=me.machines, plan=me.plan, facts=me.facts, present=(me,), agreed=agreed, least=least)
    thread = threading.Thread(target=lambda: result.append(_hold(server, me, began, wait, secret, notice)), daemon=True)
    thread.start()
    # To itself, by the address that the others use: another machine 0 may be the one that answers there.
    hint: Message | None = None
    try:
        elsewhere = _attend(me, address, port, wait, lambda: secret, only_if_not=me.key, needed=thread.is_alive)
        if elsewhere is not None:
            _judge(elsewhere, wait)
    except InvalidMessage:
        hint = say(
            "another program answers at {address}:{port}, or a launch with another secret", address=address, port=port
        )
    except OSError as error:
        hint = say(
            "machine 0 cannot reach itself at {address}:{port} ({error}): is main_process_ip its own address?",
            address=address,
            port=port,
            error=error.strerror or error,
        )
    thread.join()
    return _judge(result[0], wait, hint)


# docs/decisions/launching.md: A machine that cannot start tells the others
def refuse(me: Machine, *, address: str, port: int, wait: float, secret: Secret) -> None:
    """Tell the other machines that this one cannot start, within `wait` seconds. Raises `TrainwizError` or `OSError`.

    Machine 0 stays until all others have heard it; another one until machine 0 has.
    """
    if me.rank:
        with contextlib.suppress(InvalidMessage):
            _attend(me, address, port, wait, secret)
        return
    began = Roll(machines=me.machines, plan=me.plan, present=(me,))
    _hold(listen(address, port), me, began, wait, secret(), lambda _roll, _seconds: None)


def attend(
    me: Machine,
    *,
    address: str,
    port: int,
    wait: float,
    secret: Secret,
    sees: Callable[[], bool] = lambda: True,
    waiting: Callable[[float], None] = lambda _: None,
) -> Roll:
    """Any other machine: say that it is here, and hear the verdict. Raises `TrainwizError`.

    `sees` is whether it sees what machine 0 has written in the project's folder; it is asked before each attempt.
    `waiting` is told every half minute for how long machine 0 has not been there.
    """
    try:
        roll = _attend(me, address, port, wait, secret, sees=sees, waiting=waiting)
    except InvalidMessage:
        raise TrainwizError(
            say("machine 0 at {address}:{port} does not accept the secret of this launch", address=address, port=port)
            if secret()
            else say("this launch has no secret, so machine 0 cannot recognize machine {rank}", rank=me.rank),
            say(
                "add --secret WORDS to the command, with the words that machine 0 shows; or use the same words of "
                "your choice on every machine"
            ),
        ) from None
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
    if not roll.enough:
        problems.append(
            say(
                "missing after {wait:g} s: machine rank {ranks}; present: {present}",
                wait=wait,
                ranks=", ".join(map(str, roll.missing)),
                present=", ".join(f"{m.rank} ({m.hostname})" for m in roll.present),
            )
        )
    if not roll.enough and roll.strangers:
        problems.append(say("connections without this launch's secret: {n}", n=roll.strangers))
    if hint and not roll.enough:
        problems.append(hint)
    if not problems:
        return roll
    if roll.unable:
        raise TrainwizError(
            _joined(problems), say("fix the problem that this machine reports, then launch on all machines again")
        )
    raise TrainwizError(say("cannot start on all machines: {problems}", problems=_joined(problems)), _remedy(roll))


def _remedy(roll: Roll) -> Message:
    if roll.enough and not roll.misnumbered() and not any(m.plan != roll.plan for m in roll.present):
        return say(
            "copy the project's folder and its data from machine 0 to the others, or put them on a file system that "
            "all machines mount; install the same versions everywhere"
        )
    return say(
        "run the same command with the same plan on every machine; use each --machine-rank from 0 to {last} once",
        last=roll.machines - 1,
    )


def _joined(problems: Sequence[Message]) -> Message:
    first, *rest = problems
    return say("{first}\n  {rest}", first=first, rest=_joined(rest)) if rest else first


def listen(address: str, port: int, *, patience: float = 0.0) -> socket.socket:
    """A server at the address by which the others know machine 0. Raises `TrainwizError`."""
    until = time.monotonic() + patience
    while True:
        try:
            return _server(address, port)
        except PortInUse:
            if time.monotonic() + _RETRY_SECONDS >= until:
                raise
            time.sleep(_RETRY_SECONDS)


def _server(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    own = _own(address, port, family)
    try:
        try:
            return socket.create_server((own, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            # Behind an address translation, the others' address of this machine is none of its own.
            if not own or error.errno != errno.EADDRNOTAVAIL:
                raise
            return socket.create_server(("", port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise TrainwizError(say("cannot listen on port {port}: {error}", port=port, error=error)) from None
        raise PortInUse(
            say("port {port} is in use on this machine, but the other machines expect machine 0 there", port=port),
            say(
                "stop the program that uses the port (`ss -ltnp`), or change machine.main_process_port in the plan "
                "on every machine"
            ),
        ) from None


def _own(address: str, port: int, family: int) -> str:
    """The address of the interface that the others reach this machine by; empty for all interfaces."""
    try:
        found = str(socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""
    # Debian lets a machine's own name stand for 127.0.1.1, which the others cannot reach.
    named_so = address == "localhost" or address.startswith(_LOOPBACK)
    return "" if found.startswith(_LOOPBACK) and not named_so else found


def _hold(server: socket.socket, me: Machine, began: Roll, wait: float, secret: str, notice: Notice) -> Roll:
    start = time.monotonic()
    until, told, news = start + wait, start, False
    heard: dict[str, Machine] = {me.key: me}
    roll = began
    with server:
        listener = Listener(server, secret)
        problems: tuple[Message, ...] = roll.problems()
        while True:
            if problems and not me.problem:
                until = min(until, time.monotonic() + _SETTLE_SECONDS)
            if (not roll.missing and (me.problem or not problems)) or until <= time.monotonic():
                break
            arrived = listener.arrivals(min(_POLL_SECONDS, until - time.monotonic()))
            # Where fewer machines are enough, one that cannot start is only missing; one that stays is of another run.
            fit = (g.machine for g in arrived if not (g.machine.stays or (g.machine.problem and began.least)))
            heard |= {machine.key: machine for machine in fit}
            roll = replace(roll, strangers=listener.strangers, peers=tuple(listener.addresses))
            if arrived and (present := tuple(heard.values())) != roll.present:
                roll = replace(roll, present=present)
                problems, news = roll.problems(), True
            now = time.monotonic()
            if now >= told + (_NEWS_SECONDS if news else NOTICE_SECONDS):
                notice(roll, now - start)
                told, news = now, False
        listener.close(verdict(me, roll))
    return roll


def verdict(me: Machine, roll: Roll) -> Verdict:
    """What machine 0 answers."""
    return Verdict(
        key=me.key,
        machines=me.machines,
        plan=me.plan,
        facts=me.facts,
        present=[m for m in roll.present if not _alike(m, me)],
        alike=[(m.rank, m.hostname) for m in roll.present if _alike(m, me)],
        least=roll.least or me.machines,
        agreed=dict(roll.agreed),
    )


def _alike(machine: Machine, me: Machine) -> bool:
    """Whether it says of its training what machine 0 does, and of itself nothing more."""
    own = (machine.plan, machine.machines, machine.facts)
    return own == (me.plan, me.machines, me.facts) and not machine.apart and not machine.problem


def _attend(
    me: Machine,
    address: str,
    port: int,
    wait: float,
    secret: Secret,
    *,
    only_if_not: str = "",
    needed: Callable[[], bool] = lambda: True,
    sees: Callable[[], bool] = lambda: True,
    waiting: Callable[[float], None] = lambda _: None,
) -> Roll | None:
    """The verdict of who listens there; None if that is the machine with the key `only_if_not`.

    Raises `OSError`, and `InvalidMessage` for one who does not know the secret.
    """
    began = told = time.monotonic()
    until = began + wait
    while True:
        if time.monotonic() >= told + NOTICE_SECONDS:
            told = time.monotonic()
            waiting(told - began)
        try:
            # Our own server answers at the end only; a word from it now is not needed.
            patience = _SETTLE_SECONDS + 2 if only_if_not else max(0.1, until - time.monotonic()) + _ANSWER_SECONDS
            verdict = _asked(me, address, port, secret(), until, time.monotonic() + patience, sees)
        except TimeoutError:
            if only_if_not:
                return None
            raise
        except (OSError, InvalidMessage):
            if time.monotonic() + _RETRY_SECONDS >= until or not needed():
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        return None if verdict.key == only_if_not else _roll(verdict)


def _asked(
    me: Machine, address: str, port: int, secret: str, until: float, last: float, sees: Callable[[], bool]
) -> Verdict:
    """Say who this is, and hear the verdict until `last`."""
    with socket.create_connection((address, port), timeout=max(0.1, until - time.monotonic())) as line:
        if not secret:
            raise InvalidMessage("no secret yet")
        return asked(line, me, secret, last, sees)


def asked(
    line: socket.socket, me: Machine, secret: str, last: float, sees: Callable[[], bool] | None = None
) -> Verdict:
    """The verdict of machine 0 at the other end, heard until `last`. Raises `OSError` and `InvalidMessage`."""
    try:
        theirs = messages.challenged(_line(line, min(last, time.monotonic() + _CHALLENGE_SECONDS), 256))
    except TimeoutError:  # it is no machine 0, which may still come: not the end of the wait
        raise ConnectionError("timed out") from None
    own = messages.nonce()
    if sees:  # only now: machine 0 writes before it listens
        me = me.model_copy(update={"apart": not sees()})
    line.sendall(messages.signed(me, secret=secret, own=own, theirs=theirs))
    return messages.checked(Verdict, _line(line, last, messages.LONGEST_VERDICT), secret=secret, own=own)[0]


def _line(line: socket.socket, until: float, most: int) -> bytes:
    """What arrives up to the end of a line, until that time, and at most `most` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        line.settimeout(left)
        part = line.recv(1 << 16)
        head, end, _ = part.partition(b"\n")
        parts.append(head)
        size += len(head)
        if end:
            return b"".join(parts)
        if not part or size > most:
            # Machine 0 closes the connection of one that does not know the secret.
            raise InvalidMessage("no answer")


def _roll(verdict: Verdict) -> Roll:
    alike = (
        Machine(rank=rank, hostname=host, plan=verdict.plan, machines=verdict.machines, facts=verdict.facts)
        for rank, host in verdict.alike
    )
    return Roll(
        machines=verdict.machines,
        plan=verdict.plan,
        facts=verdict.facts,
        present=(*verdict.present, *alike),
        agreed=verdict.agreed,
        least=verdict.least,
    )
