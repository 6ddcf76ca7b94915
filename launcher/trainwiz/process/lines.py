"""A program whose output is read line by line while it runs."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from trainwiz.process.guardian import MARK, Guardian, kill_marked, new_mark, tied_to_parent

_GRACE_SECONDS = 5.0
"""Seconds to clean up its files."""
_READ_BYTES = 1 << 16


class Lines:
    """A program in a session of its own. Use it as a context manager: at its end, the program and all that it started
    are gone, also where this process is killed. Raises `OSError` where the program cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, environ: Mapping[str, str], cwd: str | None = None) -> None:
        self._mark = new_mark()
        self._process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env={**environ, MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tied_to_parent(),
        )
        self._guardian = Guardian(self._mark)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE_SECONDS)
            # What ninja starts is in process groups of its own, which outlive it.
            kill_marked(self._mark)
            self._process.wait()
        finally:
            self._guardian.close()
            if self._process.stdout:
                self._process.stdout.close()

    def read(self, every: float) -> Iterator[str | None]:
        """Its lines until it ends, stdout's and stderr's; None after each `every` seconds without one."""
        assert self._process.stdout
        descriptor, rest = self._process.stdout.fileno(), b""
        while True:
            if not select.select([descriptor], [], [], every)[0]:
                yield None
                if self._process.poll() is not None:
                    break  # what it left behind holds the pipe
                continue
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def code(self) -> int:
        """Its exit code, once it has ended: negative for a signal."""
        return self._process.wait()
