"""Programs in the foreground, and the signals that come meanwhile."""

import os
import signal
import sys

import pytest

from trainwiz.process import foreground

ASKED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
os.kill(os.getppid(), int(sys.argv[1]))
time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("signum", "ignored", "ends"),
    [
        (signal.SIGHUP, False, (9, signal.SIGHUP)),
        (signal.SIGTERM, False, (9, signal.SIGTERM)),
        (signal.SIGHUP, True, (0, None)),
    ],
)
def test_a_signal_is_passed_on_unless_nohup_ignores_it(
    signum: signal.Signals, ignored: bool, ends: tuple[int, int | None]
) -> None:
    before = signal.signal(signum, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        argv = [sys.executable, "-c", ASKED, str(signum.value)]
        assert foreground.run(argv, cwd=os.curdir, environ=os.environ) == ends
    finally:
        signal.signal(signum, before)
