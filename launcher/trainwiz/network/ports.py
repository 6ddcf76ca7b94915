"""Ports and interfaces of this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO


class Port:
    """A port that this launch has to itself among trainwiz's launches here, until `release`.

    The ranks bind it only once torch is imported; until then a second launch would find it free, too.
    """

    def __init__(self, number: int, lock: IO[str] | socket.socket | None, *, wanted: int) -> None:
        self.number = number
        self.wanted = wanted
        self._lock = lock

    def release(self) -> None:
        """Release the port."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(wanted: int) -> Port:
    """The wanted port if it is free (0: any), else another that is."""
    if wanted and is_free(wanted) and (lock := _lock(wanted)):
        return Port(wanted, lock, wanted=wanted)
    for _ in range(64):
        number = _any()
        if lock := _lock(number):
            return Port(number, lock, wanted=wanted)
    return Port(_any(), None, wanted=wanted)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port, on every interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def answers(address: str, port: int, *, within: float = 2.0) -> bool:
    """Whether a server listens there."""
    try:
        socket.create_connection((address, port), within).close()
    except OSError:
        return False
    return True


def interface_towards(address: str, port: int) -> str | None:
    """The name of the interface whose address packets to `address` leave from; None where there is no route."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port or 1))  # sends nothing: only asks the kernel for the route
            local = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == local for a in addresses):
            return name
    return None


def outside(addresses: Sequence[str]) -> str | None:
    """The first address that is not this machine's loopback."""
    return next((address for address in addresses if not address.startswith(("127.", "::1", "::ffff:127."))), None)


def _any() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


# docs/decisions/launching.md: Ports are reserved by abstract sockets
def _lock(port: int) -> IO[str] | socket.socket | None:
    """What keeps other launches from the port while it is open; None where one of them has it."""
    if sys.platform == "linux":
        # An abstract name (unix(7)) belongs to the network namespace, as ports do: whatever each one's TMPDIR is.
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            name.bind(f"\0trainwiz-port-{port}")
            return name
        name.close()
        return None
    folder = Path(tempfile.gettempdir()) / f"trainwiz-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        file = (folder / str(port)).open("w")
    except OSError:
        # Nowhere to write: go on without the protection.
        return open(os.devnull, "w")
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    file.close()
    return None
