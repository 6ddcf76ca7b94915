"""Signals that end a command: what it began is undone, and its exit code names the signal."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from trainwiz.errors import Ended

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_deferred: list[int] | None = None
"""The signals that wait; None: they are raised at once."""


def install() -> None:
    """From here on these signals raise `Ended`. nohup starts a command with SIGHUP ignored, and that stays."""
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, raise_ended)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer these signals: a process that is being started is not known yet, and could not be ended."""
    global _deferred
    if threading.current_thread() is not threading.main_thread():  # the only one that gets signals
        yield
        return
    before, _deferred = _deferred, []
    try:
        yield
    finally:
        came, _deferred = _deferred, before
    if came:
        raise_ended(came[0])


@contextlib.contextmanager
def all_deferred(ctrl_c_waits: Callable[[], bool]) -> Iterator[list[int]]:
    """Defer these signals, and Ctrl-C if `ctrl_c_waits` says so when it comes. Yields the Ctrl-C that have come."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def interrupted(signum: int, frame: FrameType | None) -> None:
        if not ctrl_c_waits():
            signal.default_int_handler(signum, frame)
        came.append(signum)

    with deferred():
        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield came
        finally:
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def restore_defaults() -> None:
    """In a forked process: these signals end it at once."""
    for number in _SIGNALS:
        if signal.getsignal(number) is raise_ended:
            signal.signal(number, signal.SIG_DFL)


def raise_ended(signum: int, _frame: FrameType | None = None) -> None:
    """The handler. Raises `Ended`."""
    if _deferred is not None:
        _deferred.append(signum)
        return
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # what follows, such as removing half a file, must not be cut short
    raise Ended(signum)
