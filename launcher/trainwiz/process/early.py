"""Signals that come before the ranks are started: during the preflight, or while the machines gather."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from trainwiz.process import endings

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


_kept: list[int] = []


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Raise `Ended` on these signals, until `over`."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, endings.end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def over() -> None:
    """From here on they are kept for `kept`: a run has begun, and what follows its end must not be cut short."""
    for number in _SIGNALS:
        if signal.getsignal(number) is endings.end:
            signal.signal(number, _keep)


def kept() -> list[int]:
    """The signals that came after `over`, once."""
    came, _kept[:] = _kept[:], []
    return came


def _keep(signum: int, _frame: FrameType | None) -> None:
    _kept.append(signum)
