"""A command whose ranks, or some of them, wait for a debugger, while timeouts elsewhere are raised.

debugpy's command line: https://github.com/microsoft/debugpy/wiki/Command-Line-Reference
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trainwiz.command.types import Command

FIRST_PORT = 5678
"""Rank r is debugged on this port + r where that is free: debugpy's own default, which editors propose."""
HOST = "127.0.0.1"
"""Anyone who reaches the port can run code as this user, so only this machine may."""
PATIENCE_SECONDS = 7 * 24 * 3600

_PATIENT = {
    # Read by the hook that runs first in each rank: process groups, stores and collectives wait as long as this.
    "TRAINWIZ_PATIENCE": str(PATIENCE_SECONDS),
    # In minutes: deepspeed/constants.py
    "DEEPSPEED_TIMEOUT": str(PATIENCE_SECONDS // 60),
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: the watchdog's own watchdog, which ends the process.
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(PATIENCE_SECONDS),
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # pydevd warns once for each frozen module, but works without them.
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}


def port_of(rank: int) -> int:
    """The port that a rank is debugged on, where it is free."""
    return FIRST_PORT + rank


def debugged(command: Command, ports: Mapping[int, int]) -> Command:
    """The command with these ranks waiting for a debugger, each on its port."""
    python, *rest = command.argv
    script = rest[1:] if rest[:1] == ["-u"] else rest
    ranks = [
        dataclasses.replace(rank, argv=(python, *_listening(ports[rank.rank]), *script)) if rank.rank in ports else rank
        for rank in command.ranks
    ]
    return dataclasses.replace(command, ranks=tuple(ranks), environ={**command.environ, **_PATIENT})


def _listening(port: int) -> tuple[str, ...]:
    # Python's own modules would otherwise be compiled in, and cannot be stopped in (3.11).
    return ("-u", "-X", "frozen_modules=off", "-m", "debugpy", "--listen", f"{HOST}:{port}", "--wait-for-client")
