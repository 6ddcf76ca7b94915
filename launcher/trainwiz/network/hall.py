"""Machine 0's side of the roll-call: many connections at once, each of bounded size and time, and in total, too.

Whoever connects may be a port scanner, a health check, or somebody who would like the launch to fail. None of them
makes it wait longer than a machine that is missing does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field

from trainwiz.network import messages
from trainwiz.network.messages import Machine, Unacceptable, Verdict

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


class Hall:
    """The connections to machine 0."""

    def __init__(self, server: socket.socket, secret: str) -> None:
        self.strangers = 0
        """Connections that said something and did not know the secret."""
        self.peers: list[str] = []
        """The addresses that the machines came from."""
        self._server, self._secret = server, secret
        self._visitors: dict[int, _Visitor] = {}
        self._guests: list[tuple[socket.socket, str]] = []
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def arrivals(self, seconds: float) -> list[Machine]:
        """The machines that say who they are within that time; returns as soon as one does."""
        found = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._server:
                self._admit()
            elif (visitor := self._visitors.get(key.fd)) and (machine := self._hear(visitor)):
                found.append(machine)
        now = time.monotonic()
        for visitor in [v for v in self._visitors.values() if v.until <= now]:
            self._leave(visitor)
        return found

    def close(self, verdict: Verdict) -> None:
        """Tell everybody who was heard the verdict, and close all connections."""
        for visitor in [*self._visitors.values()]:
            self._leave(visitor)
        self._selector.close()
        until = time.monotonic() + _GOODBYE_SECONDS
        for line, nonce in self._guests:
            with contextlib.suppress(OSError):
                line.settimeout(max(0.05, until - time.monotonic()))
                line.sendall(messages.signed(verdict, secret=self._secret, own=messages.nonce(), theirs=nonce))
                line.shutdown(socket.SHUT_WR)
        for line, _ in self._guests:
            # Let the other side close first: the port is needed again at once.
            with contextlib.suppress(OSError), line:
                line.settimeout(max(0.05, until - time.monotonic()))
                line.recv(1)

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

    def _hear(self, visitor: _Visitor) -> Machine | None:
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

    def _judged(self, visitor: _Visitor) -> Machine | None:
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
        self._guests.append((visitor.line, nonce))
        return machine

    def _forget(self, visitor: _Visitor) -> None:
        self._visitors.pop(visitor.line.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visitor.line)

    def _leave(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.line.close()
