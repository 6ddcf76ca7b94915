"""Signals that come before the ranks are there: during the preflight, or while the machines gather."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


_kept: list[int] = []


class Stopped(BaseException):
    """A scheduler asked for the end before anything was started. No `Exception`: nothing on the way may keep it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Raise `Stopped` on these signals, until `over`."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def over() -> None:
    """From here on they are kept for `kept`: a run has begun, and what follows its end must not be cut short."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _stop:
            signal.signal(number, _keep)


def kept() -> list[int]:
    """The signals that came after `over`, once."""
    came, _kept[:] = _kept[:], []
    return came


def _stop(signum: int, _frame: FrameType | None) -> None:
    raise Stopped(signum)


def _keep(signum: int, _frame: FrameType | None) -> None:
    _kept.append(signum)
