"""Run a program to its end and capture its output."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainwiz.language import t
from trainwiz.process import termination

T = TypeVar("T")

COULD_NOT_START = 127
"""The code of a program that is missing or not executable, as shells have it."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """How a program ended."""

    code: int
    """Its exit code: negative for a signal, 127 where it could not be started."""
    stdout: str
    """What it wrote to stdout."""
    stderr: str
    """What it wrote to stderr."""
    timed_out: bool = False
    """Whether it was killed because it took too long."""
    seconds: float = 0.0
    """The time that it was given."""

    @property
    def last_line(self) -> str:
        """The last line of stderr that is not empty; if stderr is empty, of stdout."""
        lines = [line.strip() for line in (self.stderr if self.stderr.strip() else self.stdout).splitlines()]
        return next((line for line in reversed(lines) if line), "")

    @property
    def answer(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout; None if there is none. Other lines may come from libraries."""
        with contextlib.suppress(IndexError, ValueError):
            found = json.loads(self.stdout.strip().splitlines()[-1])
            return found if isinstance(found, dict) else None
        return None

    @property
    def problem(self) -> str:
        """Why it gave no answer."""
        if self.timed_out:
            return t("no answer within {seconds} s", seconds=f"{self.seconds:.3g}")
        return self.last_line or t("exit code {code}", code=self.code)


class Running:
    """A program that runs in the background, in its own process group."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        self._ended: Captured | None = None
        self._awaited = False
        self._process: subprocess.Popen[str] | None = None
        with termination.deferred():
            self._start(argv, env, cwd)

    def _start(self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> None:
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._ended = Captured(code=COULD_NOT_START, stdout="", stderr=str(error))
        else:
            # A child in a session of its own does not hear our terminal's Ctrl-C.
            atexit.register(self.cancel)

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        if self._ended:
            return self._ended.code
        return self._process.poll() if self._process else None

    def result(self, timeout: float, *, limit: float | None = None) -> Captured:
        """Wait for it to exit; after `timeout` seconds, kill its whole process group.

        `limit` is the time given in all, if `timeout` is what is left of it.
        """
        if self._ended or self._process is None:
            return self._ended or Captured(code=COULD_NOT_START, stdout="", stderr="")
        self._awaited = True
        try:
            stdout, stderr = self._process.communicate(timeout=timeout)
            timed_out = False
        except subprocess.TimeoutExpired:
            stdout, stderr = self._kill()
            timed_out = True
        except BaseException:
            self._kill()
            raise
        atexit.unregister(self.cancel)
        code = self._process.returncode if self._process.returncode is not None else -signal.SIGKILL
        self._ended = Captured(code=code, stdout=stdout, stderr=stderr, timed_out=timed_out, seconds=limit or timeout)
        return self._ended

    def cancel(self) -> None:
        """Kill it and everything it started, if it still runs. A thread in `result` gets the output so far."""
        if self._ended is not None or self._process is None:
            return
        self._end_group()
        if not self._awaited:
            self._kill()
            atexit.unregister(self.cancel)
            self._ended = Captured(code=-signal.SIGKILL, stdout="", stderr="")

    def _kill(self) -> tuple[str, str]:
        assert self._process is not None
        self._end_group()
        try:
            # A grandchild that left the group may still hold the pipes: its output is not worth waiting for.
            return self._process.communicate(timeout=1)
        except subprocess.TimeoutExpired as unread:
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe:
                    pipe.close()
            self._process.wait()
            # As bytes, whatever the encoding asked for: https://github.com/python/cpython/issues/87597
            return tuple(_text(part) for part in (unread.stdout, unread.stderr))  # type: ignore[return-value]

    def _end_group(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Asked(Generic[T]):
    """A program that answers a question while something else is done."""

    def __init__(self, argv: Sequence[str], understood: Callable[[Captured], T], *, seconds: float) -> None:
        self._running, self._understood, self._seconds = Running(argv), understood, seconds

    def result(self, timeout: float | None = None) -> T:
        """The meaning of its answer, after at most `timeout` seconds (default: its own limit)."""
        return self._understood(self._running.result(self._seconds if timeout is None else timeout))

    def cancel(self) -> None:
        """Kill it."""
        self._running.cancel()


def _text(said: bytes | str | None) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said or ""


def capture(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Captured:
    """Run a program for at most `timeout` seconds. `env` replaces the environment. Never raises for its failures."""
    return Running(argv, env=env, cwd=cwd).result(timeout)
