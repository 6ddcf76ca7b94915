"""Machine 0's side of the roll-call: many connections at once, each of bounded size and time, and bounded in total.

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
from trainwiz.network.messages import Encoded, InvalidMessage, Machine, Verdict

_GREETING_SECONDS = 2.0
"""How long a connection may take to identify itself, whatever it sends meanwhile."""
_MOST_OPEN = 256
"""Connections that have not identified themselves yet; one more closes the oldest."""
_MOST_PEERS = 1 << 12
"""Machines that are accepted; more than any plan has, because a rank may connect twice."""
_CHUNK = 1 << 12
_GOODBYE_SECONDS = 2.0


@dataclass
class _Connection:
    line: socket.socket
    until: float
    nonce: str = field(default_factory=messages.nonce)
    heard: bytes = b""


@dataclass(frozen=True)
class Peer:
    """A machine that has identified itself and waits for an answer."""

    machine: Machine
    """Who it is."""
    line: socket.socket
    """The connection."""
    nonce: str
    """The nonce that the answer must be signed for."""


class Listener:
    """The connections to machine 0."""

    def __init__(self, server: socket.socket, secret: str) -> None:
        self.strangers = 0
        """Connections that sent something without knowing the secret."""
        self.addresses: list[str] = []
        """The addresses that the machines connected from."""
        self._server, self._secret = server, secret
        self._connections: dict[int, _Connection] = {}
        self._peers: list[Peer] = []
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def arrivals(self, seconds: float) -> list[Peer]:
        """The machines that identify themselves within that time; returns as soon as one does."""
        found = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._server:
                self._accept()
            elif (connection := self._connections.get(key.fd)) and (peer := self._receive(connection)):
                found.append(peer)
        now = time.monotonic()
        for connection in [c for c in self._connections.values() if c.until <= now]:
            self._drop(connection)
        return found

    def close(self, verdict: Verdict) -> None:
        """Send the verdict to every machine that still waits, and close all connections."""
        for connection in [*self._connections.values()]:
            self._drop(connection)
        self._selector.close()
        until = time.monotonic() + _GOODBYE_SECONDS
        peers, self._peers = self._peers, []
        said = messages.encoded(verdict)
        for peer in peers:
            self._tell(peer, said, until)
        for peer in peers:
            _close(peer, until)

    def answer(self, peer: Peer, verdict: Verdict) -> None:
        """Send one machine the verdict, and leave the connection open for the caller. Raises `OSError`."""
        self._peers.remove(peer)
        peer.line.settimeout(_GOODBYE_SECONDS)
        peer.line.sendall(messages.signed(verdict, secret=self._secret, own=messages.nonce(), theirs=peer.nonce))

    def _tell(self, peer: Peer, said: Encoded, until: float) -> None:
        with contextlib.suppress(OSError):
            peer.line.settimeout(max(0.05, until - time.monotonic()))
            peer.line.sendall(messages.signed(said, secret=self._secret, own=messages.nonce(), theirs=peer.nonce))
            peer.line.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._server.accept()
            line.setblocking(False)
            if len(self._connections) >= _MOST_OPEN:
                self._drop(min(self._connections.values(), key=lambda c: c.until))
            connection = _Connection(line, time.monotonic() + _GREETING_SECONDS)
            self._connections[line.fileno()] = connection
            self._selector.register(line, selectors.EVENT_READ)
            try:
                line.sendall(messages.challenge(connection.nonce))
            except OSError:
                self._drop(connection)

    def _receive(self, connection: _Connection) -> Peer | None:
        try:
            said = connection.line.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        connection.heard += said
        if said and b"\n" not in said and len(connection.heard) <= messages.LONGEST_GREETING:
            return None
        if not said:
            self._drop(connection)
            return None
        return self._authenticated(connection)

    def _authenticated(self, connection: _Connection) -> Peer | None:
        line, _, _ = connection.heard.partition(b"\n")
        try:
            if len(line) > messages.LONGEST_GREETING or len(self._peers) >= _MOST_PEERS:
                raise InvalidMessage("too much")
            machine, nonce = messages.checked(Machine, line, secret=self._secret, own=connection.nonce)
        except InvalidMessage:
            self.strangers += 1
            self._drop(connection)
            return None
        self._forget(connection)
        connection.line.setblocking(True)
        with contextlib.suppress(OSError):
            self.addresses.append(str(connection.line.getpeername()[0]))
        peer = Peer(machine, connection.line, nonce)
        self._peers.append(peer)
        return peer

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop(connection.line.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.line)

    def _drop(self, connection: _Connection) -> None:
        self._forget(connection)
        connection.line.close()


def _close(peer: Peer, until: float) -> None:
    # Let the other side close first: the port is needed again at once.
    with contextlib.suppress(OSError), peer.line:
        peer.line.settimeout(max(0.05, until - time.monotonic()))
        peer.line.recv(1)
