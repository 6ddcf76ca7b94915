"""Before another attempt: the build locks that a killed attempt left, which would make it wait for ever."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from trainwiz.message import Message, say
from trainwiz.probe import locks

_SETTLED_SECONDS = 0.2
"""A live builder gives its lock up by closing it first: in between it looks left behind."""


def remove_left_locks(added: Mapping[str, str], began: float, tell: Callable[[Message], None]) -> None:
    """Remove the locks whose makers died here since `began` (seconds of the clock); name the others.

    `added` is what the ranks have in their environment beside ours: it may move the folder of the builds.
    """
    environ = {**os.environ, **added}
    if not locks.left_since(began, environ):
        return
    time.sleep(_SETTLED_SECONDS)
    for lock in locks.left_since(began, environ):
        if lock.shared:
            tell(
                say(
                    "a build lock remains on a disk that other machines may share: {lock}; if no machine is "
                    "building, delete it, or the next attempt will wait forever",
                    lock=lock.path,
                )
            )
            continue
        with contextlib.suppress(OSError):
            if lock.path.stat().st_ino == lock.inode:
                lock.path.unlink()
                tell(say("removed the build lock left by the killed attempt: {lock}", lock=lock.path))
