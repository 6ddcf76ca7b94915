"""The connections between the launchers of a run over several machines, for as long as the run goes on.

Machine 0 keeps the port of the roll-call and tells the others when an attempt begins and when it is over; they tell it
how their part ended. Both sides are heard every few seconds, so that a machine which died, hangs or lost its network is
known within seconds, where the ranks of the others would wait in a collective for minutes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say
from trainwiz.network import orders, rollcall
from trainwiz.network.listener import Listener, Peer
from trainwiz.network.messages import InvalidMessage, Machine, Verdict
from trainwiz.network.rollcall import Roll

BEAT_SECONDS = 2.0
LOST_SECONDS = 20.0
"""A machine that was not heard for so long is lost: a launcher writes every 2 s, whatever its ranks do."""
_CONNECT_SECONDS = 30.0
"""How long a machine tries to reach machine 0 again after the roll-call."""
_AGAIN_SECONDS = 5.0
"""The same where it was silent, and goes on: machine 0 listens all the time."""
_LONGEST = 1 << 20
"""Bytes of a line: an outcome with the codes of some thousand ranks."""
_POLL_SECONDS = 0.5

_SILENT = say("nothing was received from it for {seconds:g} s, since {clock}")
Said = dict[str, Any]
"""What one launcher tells another: plain values."""


class Line:
    """An open connection to another launcher. `hear` is called by a thread of its own, and at the end with None.

    With `begins` this side speaks first; the other one is silent until then. A launcher that is silent for too long is
    told `farewell`: it hears that when it goes on.
    """

    def __init__(
        self,
        connection: socket.socket,
        hear: Callable[[Said | None, Message], None],
        *,
        begins: bool = False,
        farewell: Said | None = None,
    ) -> None:
        self._connection, self._hear, self._farewell = connection, hear, farewell or {}
        self._writing, self._closed, self._begun = threading.Lock(), threading.Event(), begins
        connection.settimeout(LOST_SECONDS)
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def say(self, **values: Any) -> bool:
        """Send a message. Return whether that was possible."""
        try:
            with self._writing:
                self._connection.sendall(json.dumps(values).encode() + b"\n")
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the connection; the other side notices."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self) -> None:
        why = say("its launcher ended")
        heard = b""
        try:
            while chunk := self._connection.recv(1 << 16):
                self._begun = True
                *lines, heard = (heard + chunk).split(b"\n")
                for line in lines:
                    self._take(line)
                if len(heard) > _LONGEST:
                    raise ValueError("too long")
        except ConnectionError:
            pass  # killed while something was on its way to it
        except TimeoutError:
            clock = time.strftime("%H:%M:%S", time.localtime(time.time() - LOST_SECONDS))
            why = Message(_SILENT.template, {"seconds": LOST_SECONDS, "clock": clock})
            self.say(**self._farewell)
        except OSError as error:
            why = say("{error}", error=error.strerror or error)
        except (ValueError, TypeError, RecursionError):
            why = say("its message cannot be understood")
        if not self._closed.is_set():
            self.close()
            self._hear(None, why)

    def _take(self, line: bytes) -> None:
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError(said)
        if said:
            self._hear(said, say(""))

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            if self._begun:
                self.say()


@dataclass(frozen=True)
class Lost:
    """A machine that was lost."""

    machine: Machine
    """Which one."""
    why: Message
    """How the loss was noticed."""
    since: float
    """When, by the monotonic clock."""


# docs/decisions/supervision.md: The launchers of a run that may restart stay connected
class Coordinator:
    """Machine 0's side: which machines are present, their reports, and orders. Call `close` at the end of the run.

    `notice` is called, from threads, whenever somebody came, went or reported.
    """

    def __init__(self, me: Machine, roll: Roll, *, address: str, port: int, secret: str) -> None:
        self.expected = roll.present
        """The machines of the roll-call."""
        self.notice: Callable[[], None] = lambda: None
        self.lost: dict[int, Lost] = {}
        """The machines that were lost; one that is back stays here until somebody takes it out."""
        self.reports: dict[int, Said] = {}
        """What the machines said of the attempt that goes on, or has just ended."""
        self._me, self._roll = me, replace(roll, present=(me,))
        self._secret, self._changed = secret, threading.Condition()
        self._lines: dict[int, tuple[Machine, Line]] = {}
        self._ready: set[int] = set()
        self._server, self._over = rollcall.listen(address, port), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def present(self) -> dict[int, Machine]:
        """The machines that are present, by rank, including this one."""
        with self._changed:
            return {self._me.rank: self._me} | {rank: self._lines[rank][0] for rank in sorted(self._ready)}

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, at most this many seconds. Return whether it does."""
        end = time.monotonic() + seconds
        with self._changed:
            while not until():
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._changed.wait(min(left, _POLL_SECONDS))
        return True

    def tell(self, rank: int, **values: Any) -> None:
        """Give a machine an order; a lost machine is noticed elsewhere."""
        with self._changed:
            found = self._lines.get(rank)
        if found:
            found[1].say(**values)

    def dismiss(self, rank: int) -> None:
        """Let a machine leave that said it would."""
        with self._changed:
            found = self._lines.pop(rank, None)
            self._ready.discard(rank)
        if found:
            found[1].close()

    def close(self) -> None:
        """Close the connections, and free the port."""
        self._over.set()
        self._thread.join()
        for rank in [*self._lines]:
            self.dismiss(rank)

    def _serve(self) -> None:
        with self._server:
            listener = Listener(self._server, self._secret)
            while not self._over.is_set():
                for peer in listener.arrivals(_POLL_SECONDS):
                    with contextlib.suppress(OSError):
                        self._receive(listener, peer)
                self.notice()
            listener.close(self._verdict(self._me))

    def _verdict(self, machine: Machine) -> Verdict:
        others = [m for m in self.present.values() if m.key != machine.key]
        return rollcall.verdict(self._me, replace(self._roll, present=(*others, machine), least=1))

    def _receive(self, listener: Listener, peer: Peer) -> None:
        """Answer a machine of the roll-call, which hears itself whether it fits; or keep its line."""
        machine, told = peer.machine, self._verdict(peer.machine)
        listener.answer(peer, told)
        alone = replace(self._roll, present=(self._me, machine))
        is_of_another_run = machine.run not in ("", self._roll.agreed.get("run"))
        if not machine.stays or is_of_another_run or alone.problems():
            peer.line.close()
            return
        if (held := self._lines.get(machine.rank)) and held[0].key == machine.key:
            # The same launcher, which took this machine for lost before it was taken for that here.
            held[1].close()
            self._hear(
                held[0], None, say("it received nothing from this machine for {seconds:g} s", seconds=LOST_SECONDS)
            )
        elif held:
            peer.line.close()
            return
        with self._changed:
            self._lines[machine.rank] = (
                machine,
                Line(peer.line, lambda said, why: self._hear(machine, said, why), farewell={"do": "dropped"}),
            )

    def _hear(self, machine: Machine, said: Said | None, why: Message) -> None:
        with self._changed:
            if said is not None:
                self._take(machine, said)
            elif (held := self._lines.get(machine.rank)) and held[0] is machine:
                del self._lines[machine.rank]
                self._ready.discard(machine.rank)
                self.lost[machine.rank] = Lost(machine, why, time.monotonic())
            self._changed.notify_all()
        self.notice()

    def _take(self, machine: Machine, said: Said) -> None:
        told = orders.report(said)
        if told.get("ready"):
            self._ready.add(machine.rank)
        else:
            self.reports[machine.rank] = told


class Participant:
    """Any other machine's side. `close` when the run is over. `notice` is called, from a thread, with each order."""

    def __init__(self, me: Machine, *, address: str, port: int, secret: str) -> None:
        """Raises `TrainwizError` where machine 0 is not reached any more."""
        self.notice: Callable[[], None] = lambda: None
        self._orders: queue.SimpleQueue[Said | Message] = queue.SimpleQueue()
        self.dropped = False
        """Whether machine 0 goes on without this machine, of which it heard nothing."""
        self.silent = False
        """Whether nothing was heard of machine 0, which may be there: a network may come back."""
        self._rank, self._ended, self._gone = me.rank, -1, say("")
        self._connection: socket.socket | None = None
        self._hearing = threading.Lock()
        self._reached = functools.partial(_connected, me.model_copy(update={"stays": True}), address, port, secret)
        self._line = self._joined(_CONNECT_SECONDS)

    def again(self) -> None:
        """Connect to a machine 0 that may go on without this one. Raises `TrainwizError` where it is not reached."""
        self._line.close()
        with self._hearing:
            self._connection = None  # its end may be noticed only while the next one is made
            self.dropped, self.silent, self._gone = False, False, say("")
        self._line = self._joined(_AGAIN_SECONDS)

    def _joined(self, seconds: float) -> Line:
        self._connection = connection = self._reached(seconds)
        line = Line(connection, lambda said, why: self._hear(connection, said, why), begins=True)
        line.say(ready=True)
        return line

    def next(self, seconds: float) -> Said | Message | None:
        """The next order; a sentence where machine 0 is lost; None where nothing came within that time."""
        with contextlib.suppress(queue.Empty):
            return self._orders.get(timeout=seconds)
        return None

    def over(self, attempt: int) -> Message | None:
        """Why an attempt is over, if machine 0 said so or is lost."""
        if self._gone.template:
            return say("machine 0 is lost ({how}); ending this attempt", how=self._gone)
        return say("machine 0 ended this attempt") if self._ended >= attempt else None

    def report(self, **values: Any) -> None:
        """Tell machine 0 how this machine's part ended."""
        self._line.say(**values)

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def _hear(self, connection: socket.socket, said: Said | None, why: Message) -> None:
        with self._hearing:
            if connection is not self._connection:
                return  # the end of the one before
            self._heard(said, why)
        self.notice()

    def _heard(self, said: Said | None, why: Message) -> None:
        if said is None:
            self.silent = why.template == _SILENT.template
            self._lose(why)
        elif (told := orders.order(said, self._rank))["do"] == "end":
            self._ended = max(self._ended, told["attempt"])
        elif told["do"] == "dropped":
            self.dropped = True
            self._lose(say("it received nothing from this machine for {seconds:g} s", seconds=LOST_SECONDS))
        else:
            self._orders.put(told)

    def _lose(self, why: Message) -> None:
        if not self._gone.template:
            self._gone = why
            self._orders.put(why)


def _connected(me: Machine, address: str, port: int, secret: str, seconds: float) -> socket.socket:
    """A connection to machine 0 that both sides have proved to belong to this launch, within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            return _greeted(me, address, port, secret)
        except (OSError, InvalidMessage) as error:
            if time.monotonic() >= until:
                raise TrainwizError(
                    say(
                        "machine 0 at {address}:{port} no longer responds ({error}); this is machine {rank}",
                        address=address,
                        port=port,
                        error=getattr(error, "strerror", None) or error,
                        rank=me.rank,
                    )
                ) from None
            time.sleep(0.2)


def _greeted(me: Machine, address: str, port: int, secret: str) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=_POLL_SECONDS * 10)
    try:
        rollcall.asked(connection, me, secret, time.monotonic() + LOST_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection
