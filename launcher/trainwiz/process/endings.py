"""Signals that end a command: what it began is undone, and the exit code says which signal it was."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from trainwiz.errors import Ended

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_held: list[int] | None = None
"""Where signals wait; None: they are raised."""


def hear() -> None:
    """From here on they raise `Ended` wherever the command is. nohup starts us with SIGHUP ignored, and means it."""
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let them wait: a process that is being started is not known yet, and could not be ended."""
    global _held
    if threading.current_thread() is not threading.main_thread():  # which is the only one that hears signals
        yield
        return
    before, _held = _held, []
    try:
        yield
    finally:
        came, _held = _held, before
    if came:
        end(came[0])


@contextlib.contextmanager
def all_held(ctrl_c_waits: Callable[[], bool]) -> Iterator[list[int]]:
    """The same, and Ctrl-C waits, too, where that is so when it comes; those that came until now."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def interrupted(signum: int, frame: FrameType | None) -> None:
        if not ctrl_c_waits():
            signal.default_int_handler(signum, frame)
        came.append(signum)

    with held():
        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield came
        finally:
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def as_usual() -> None:
    """In a forked process: they end it at once."""
    for number in _ENDING:
        if signal.getsignal(number) is end:
            signal.signal(number, signal.SIG_DFL)


def end(signum: int, _frame: FrameType | None = None) -> None:
    """The handler. Raises `Ended`."""
    if _held is not None:
        _held.append(signum)
        return
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # what follows, such as removing half a file, must not be cut short
    raise Ended(signum)
