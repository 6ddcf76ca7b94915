"""Machine 0's side of the roll-call: many connections at once, each of bounded size and time, and in total, too.

A client may be a port scanner, a health check, or somebody who wants the launch to fail. None of them can delay it
longer than a missing machine does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field

from trainwiz.network import messages
from trainwiz.network.messages import Machine, Unacceptable, Verdict, Written

_GREETING_SECONDS = 2.0
"""How long a connection may take to say who it is, whatever it sends meanwhile."""
_MOST_OPEN = 256
"""Connections that have not said yet who they are; when one more comes, the oldest is closed."""
_MOST_GUESTS = 1 << 12
"""Machines that are heard; more than any plan has, a rank may come twice."""
_CHUNK = 1 << 12
_GOODBYE_SECONDS = 2.0


@dataclass
class _Visitor:
    line: socket.socket
    until: float
    nonce: str = field(default_factory=messages.nonce)
    heard: bytes = b""


@dataclass(frozen=True)
class Guest:
    """A machine that has said who it is, and waits for an answer."""

    machine: Machine
    """Who it is."""
    line: socket.socket
    """The connection."""
    nonce: str
    """What the answer must prove to have heard."""


class Hall:
    """The connections to machine 0."""

    def __init__(self, server: socket.socket, secret: str) -> None:
        self.strangers = 0
        """Connections that said something and did not know the secret."""
        self.peers: list[str] = []
        """The addresses that the machines came from."""
        self._server, self._secret = server, secret
        self._visitors: dict[int, _Visitor] = {}
        self._guests: list[Guest] = []
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def arrivals(self, seconds: float) -> list[Guest]:
        """The machines that say who they are within that time; returns as soon as one does."""
        found = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._server:
                self._admit()
            elif (visitor := self._visitors.get(key.fd)) and (guest := self._hear(visitor)):
                found.append(guest)
        now = time.monotonic()
        for visitor in [v for v in self._visitors.values() if v.until <= now]:
            self._leave(visitor)
        return found

    def close(self, verdict: Verdict) -> None:
        """Tell everybody who still waits the verdict, and close all connections."""
        for visitor in [*self._visitors.values()]:
            self._leave(visitor)
        self._selector.close()
        until = time.monotonic() + _GOODBYE_SECONDS
        guests, self._guests = self._guests, []
        said = messages.written(verdict)
        for guest in guests:
            self._tell(guest, said, until)
        for guest in guests:
            _part(guest, until)

    def answer(self, guest: Guest, verdict: Verdict) -> None:
        """Tell one machine the verdict, and leave the connection to the caller. Raises `OSError`."""
        self._guests.remove(guest)
        guest.line.settimeout(_GOODBYE_SECONDS)
        guest.line.sendall(messages.signed(verdict, secret=self._secret, own=messages.nonce(), theirs=guest.nonce))

    def _tell(self, guest: Guest, said: Written, until: float) -> None:
        with contextlib.suppress(OSError):
            guest.line.settimeout(max(0.05, until - time.monotonic()))
            guest.line.sendall(messages.signed(said, secret=self._secret, own=messages.nonce(), theirs=guest.nonce))
            guest.line.shutdown(socket.SHUT_WR)

    def _admit(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._server.accept()
            line.setblocking(False)
            if len(self._visitors) >= _MOST_OPEN:
                self._leave(min(self._visitors.values(), key=lambda v: v.until))
            visitor = _Visitor(line, time.monotonic() + _GREETING_SECONDS)
            self._visitors[line.fileno()] = visitor
            self._selector.register(line, selectors.EVENT_READ)
            try:
                line.sendall(messages.challenge(visitor.nonce))
            except OSError:
                self._leave(visitor)

    def _hear(self, visitor: _Visitor) -> Guest | None:
        try:
            said = visitor.line.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        visitor.heard += said
        if said and b"\n" not in said and len(visitor.heard) <= messages.LONGEST_GREETING:
            return None
        if not said:
            self._leave(visitor)
            return None
        return self._judged(visitor)

    def _judged(self, visitor: _Visitor) -> Guest | None:
        line, _, _ = visitor.heard.partition(b"\n")
        try:
            if len(line) > messages.LONGEST_GREETING or len(self._guests) >= _MOST_GUESTS:
                raise Unacceptable("too much")
            machine, nonce = messages.checked(Machine, line, secret=self._secret, own=visitor.nonce)
        except Unacceptable:
            self.strangers += 1
            self._leave(visitor)
            return None
        self._forget(visitor)
        visitor.line.setblocking(True)
        with contextlib.suppress(OSError):
            self.peers.append(str(visitor.line.getpeername()[0]))
        guest = Guest(machine, visitor.line, nonce)
        self._guests.append(guest)
        return guest

    def _forget(self, visitor: _Visitor) -> None:
        self._visitors.pop(visitor.line.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visitor.line)

    def _leave(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.line.close()


def _part(guest: Guest, until: float) -> None:
    # Let the other side close first: the port is needed again at once.
    with contextlib.suppress(OSError), guest.line:
        guest.line.settimeout(max(0.05, until - time.monotonic()))
        guest.line.recv(1)
