"""Ports that no other test has, of this run or another, for as long as this process lives.

They lie above those that the kernel gives to whoever asks for any, so nobody else comes by one while it is not bound.
"""

from __future__ import annotations

import atexit
import os
import socket

FIRST, LAST = 61000, 65500


def port() -> int:
    """A port that is free, and stays so until it is used."""
    start = FIRST + os.getpid() * 37 % (LAST - FIRST)
    for number in (*range(start, LAST), *range(FIRST, start)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0trainwiz-tests-port-{number}")
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        if _is_free(number):
            return number
    raise RuntimeError(f"no port of {FIRST} to {LAST} is free")


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True
