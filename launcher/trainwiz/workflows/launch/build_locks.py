"""Build locks that no process holds: waiting for one never ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainwiz.message import Message, say
from trainwiz.probe import locks

_EVERY_SECONDS = 10.0
_SETTLED_SECONDS = 0.2
"""A live builder gives its lock up by closing it first: in between it looks left behind."""


_LONG_SECONDS = 900.0
"""No build takes as long."""


class Watch:
    """Looks for locks that no process holds while a launch starts, which would otherwise wait in silence."""

    def __init__(
        self,
        added: Mapping[str, str],
        tell: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._added, self._tell, self._clock = added, tell, clock
        self._due = 0.0
        self._told: set[str] = set()

    def look(self) -> None:
        """Remove such locks, at most once in `_EVERY_SECONDS`; each sentence is said once."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + _EVERY_SECONDS
        remove_stale_locks(self._added, 0.0, self._say)

    def _say(self, message: Message) -> None:
        if str(message) not in self._told:
            self._told.add(str(message))
            self._tell(message)


def remove_stale_locks(added: Mapping[str, str], began: float, tell: Callable[[Message], None]) -> None:
    """Remove the locks whose makers died here since `began` (seconds of the clock); name the others.

    `added` is what the ranks have in their environment beside ours: it may move the folder of the builds.
    """
    environ = {**os.environ, **added}
    if not locks.stale_since(began, environ):
        return
    time.sleep(_SETTLED_SECONDS)
    for lock in locks.stale_since(began, environ):
        if lock.shared:
            if not began and _is_young(lock.path):
                continue  # most likely another machine's build that goes on
            tell(
                say(
                    "a build lock is left on a disk that other machines or containers may share: {lock}; if none "
                    "of them is building, delete it, or the next attempt will wait forever",
                    lock=lock.path,
                )
            )
            continue
        with contextlib.suppress(OSError):
            if lock.path.stat().st_ino == lock.inode:
                lock.path.unlink()
                tell(say("removed a build lock that no process owns: {lock}", lock=lock.path))


def _is_young(lock: Path) -> bool:
    try:
        return time.time() - lock.stat().st_mtime < _LONG_SECONDS
    except OSError:
        return True
