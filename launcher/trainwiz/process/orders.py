"""Orders on stdin, from the launch that started this one on another machine: the launch's secret, then signals.

Without a terminal, ssh passes no signal on, and what it started goes on when it ends. So the end of stdin counts as a
closed terminal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

VARIABLE = "TRAINWIZ_ORDERS"
SIGNALS = ("INT", "TERM", "HUP", "USR1")


def expected() -> bool:
    """Whether orders come on stdin; the variable is not passed on."""
    return os.environ.pop(VARIABLE, "") == "stdin"


# docs/decisions/launching.md: Signals for other hosts go through stdin
def heard() -> str:
    """The first line, which is the secret. A thread obeys the others; what is started from here on has no stdin."""
    orders = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8", errors="replace")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    secret = orders.readline().strip()
    threading.Thread(target=_obey, args=(orders,), daemon=True).start()
    return secret


def _obey(orders: object) -> None:
    for line in orders:  # type: ignore[attr-defined]
        if line.strip() in SIGNALS:
            os.kill(os.getpid(), getattr(signal, f"SIG{line.strip()}"))
    os.kill(os.getpid(), signal.SIGHUP)
