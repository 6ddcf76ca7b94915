"""Signals that come before the ranks are started: during the preflight, or while the machines gather."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from trainwiz.process import termination

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


_deferred: list[int] = []


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise `Ended` on these signals until `defer` is called."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, termination.raise_ended)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def defer() -> None:
    """Defer these signals from here on: a run has begun, and what follows its end must not be cut short."""
    for number in _SIGNALS:
        if signal.getsignal(number) is termination.raise_ended:
            signal.signal(number, _defer)


def deferred() -> list[int]:
    """The signals that came after `defer`; each is returned once."""
    came, _deferred[:] = _deferred[:], []
    return came


def _defer(signum: int, _frame: FrameType | None) -> None:
    _deferred.append(signum)
