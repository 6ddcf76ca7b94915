"""The whole terminal, restored however the program ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from types import FrameType

from trainwiz.ui import console
from trainwiz.ui.safe import safe

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"


def available() -> bool:
    """Whether there is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Use the alternate screen, without a cursor and with unbuffered keys; SIGTERM, SIGHUP and Ctrl-Z leave it."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keys) if keys is not None else None

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys, termios.TCSANOW)
        _write(_ENTER)

    def leave() -> None:
        if keys is not None and before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keys, termios.TCSANOW, before)
        with contextlib.suppress(OSError):  # last: whoever sees it finds the terminal as it was
            _write(_LEAVE)

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def pause(number: int, _frame: FrameType | None) -> None:
        leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # `fg` continues here.
        signal.signal(number, pause)
        enter()

    handlers = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGTSTP: pause}
    replaced = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    enter()
    try:
        yield
    finally:
        leave()
        for number, handler in replaced.items():
            signal.signal(number, handler)


def draw(lines: Sequence[str]) -> None:
    """Replace what is on the screen without flicker."""
    _write("\x1b[H" + "\r\n".join(f"{safe(line)}\x1b[K" for line in lines) + "\x1b[J")


def pressed(seconds: float) -> str:
    """The key that is pressed within so many seconds; empty if none is."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([sys.stdin.fileno()], [], [], seconds)
    if not ready:
        return ""
    read = os.read(sys.stdin.fileno(), 32)
    # The input has ended: the terminal is gone.
    return read.decode(errors="replace")[:1] if read else "q"


def _write(text: str) -> None:
    console.write(sys.stdout.fileno(), text.encode())
