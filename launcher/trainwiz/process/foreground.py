"""Run a program in the foreground: it talks to the terminal itself, and gets the signals that this process gets."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from trainwiz.process.guardian import tied_to_parent

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    argv: Sequence[str],
    *,
    cwd: str,
    environ: Mapping[str, str],
    stdout: bool = False,
    each_line: Callable[[str], None] | None = None,
) -> tuple[int, int | None]:
    """Run it to its end; its output goes to stderr, unless `stdout` or `each_line` is to get it.

    Returns its exit code, and the signal that asked it to stop.

    Raises `OSError`.
    """
    asked: list[int] = []
    process: subprocess.Popen[str] | None = None

    def stop() -> None:
        if process and asked:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def pass_on(number: int, _: object) -> None:
        asked.append(number)
        stop()

    # nohup starts us with SIGHUP ignored, and means it.
    heard = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        sys.stderr.flush()
        # In a session of its own, the program gets one signal for one Ctrl-C.
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if each_line else (sys.stdout if stdout else sys.stderr).fileno(),
            stderr=sys.stderr.fileno(),
            start_new_session=True,
            text=True,
            errors="replace",
            preexec_fn=tied_to_parent(),
        )
        stop()  # if it was asked before there was a process
        if each_line and process.stdout:
            with process.stdout:
                for line in process.stdout:
                    each_line(line.rstrip("\n"))
        return process.wait(), asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
