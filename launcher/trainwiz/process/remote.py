"""Programs on other hosts, through ssh: each host's output with its name before it, and signals for all of them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO

COULD_NOT_CONNECT = 255
"""What ssh itself ends with: https://man.openbsd.org/ssh (EXIT STATUS)."""
_ENDS = re.compile(rb"[\r\n]+")


class Remote:
    """One host's program. `tell` gets its lines (and whether they came on stderr), `ended` is called at its end."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        first: str,
        tell: Callable[[str, bool], None],
        ended: Callable[[int], None],
    ) -> None:
        """Start it and write the `first` line to it. Raises `OSError`."""
        self.last_words = ""
        """The last line on stderr."""
        self._tell, self._ended = tell, ended
        # A session of its own: Ctrl-C in the terminal is passed on as an order, and must not end ssh.
        self._process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.order(first)
        assert self._process.stdout
        assert self._process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(stream, on_stderr), daemon=True)
            for stream, on_stderr in ((self._process.stdout, False), (self._process.stderr, True))
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def order(self, line: str) -> None:
        """Write a line to it; it is not an error if it has ended."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End the connection; the program there takes that for a closed terminal."""
        self._process.kill()

    def _read(self, stream: IO[bytes], on_stderr: bool) -> None:
        rest = b""
        while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
            *lines, rest = _ENDS.split(rest + chunk)
            for line in lines:
                self._say(line, on_stderr)
        self._say(rest, on_stderr)

    def _say(self, line: bytes, on_stderr: bool) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self.last_words = text if on_stderr else self.last_words
            self._tell(text, on_stderr)

    def _wait(self) -> None:
        code = self._process.wait()
        for reader in self._readers:
            reader.join(5.0)
        self._ended(code)
