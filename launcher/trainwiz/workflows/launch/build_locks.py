"""Before another attempt: the build locks that the killed one left, for which it would wait for ever."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.process.ranks import Audience
    from trainwiz.workflows.launch.supervise import Launch

_SETTLED_SECONDS = 0.2
"""A living builder gives its lock up by closing it first: in between it looks left behind."""


def remove_left_locks(launch: Launch, began: float, audience: Audience) -> None:
    """Remove those whose makers died here since `began`; say of the others."""
    from trainwiz.probe import locks

    environ = {**os.environ, **launch.command.environ}
    if not locks.left_since(began, environ):
        return
    time.sleep(_SETTLED_SECONDS)
    for lock in locks.left_since(began, environ):
        if lock.shared:
            audience.say(
                say(
                    "a build lock is left on a disk that other machines may share: {lock}; where none of them builds, "
                    "remove it, or the next attempt waits for ever",
                    lock=lock.path,
                )
            )
            continue
        with contextlib.suppress(OSError):
            if lock.path.stat().st_ino == lock.inode:
                lock.path.unlink()
                audience.say(say("removed the build lock that the killed attempt left: {lock}", lock=lock.path))
