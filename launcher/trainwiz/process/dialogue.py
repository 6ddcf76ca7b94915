"""A program that exchanges messages: one JSON object per line in each direction."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwiz.process.guardian import tied_to_parent

_TAIL_BYTES = 1 << 14
_GRACE_SECONDS = 2.0


class Dialogue:
    """A program in a session of its own, which ends with this process. Use it as a context manager.

    Raises `OSError` where it cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, cwd: str, environ: Mapping[str, str]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            preexec_fn=tied_to_parent(),
        )

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, value: Mapping[str, Any]) -> None:
        """Send a message; if the program has ended, `receive` tells."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        """Its next message; None if it has ended. Lines that are not JSON come from libraries."""
        assert self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
        return None

    @contextlib.contextmanager
    def on_interrupt(self, value: Mapping[str, Any]) -> Iterator[None]:
        """Meanwhile, a first Ctrl-C sends this to the program, and does nothing else; it may not be listening."""

        def stop(*_: object) -> None:
            signal.signal(signal.SIGINT, before)
            self.send(value)

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @property
    def last_line(self) -> str:
        """The last line that it wrote to stderr."""
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - _TAIL_BYTES))
        lines = self._complaints.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End it: its input is closed, and it gets a moment to exit by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._complaints.close()
