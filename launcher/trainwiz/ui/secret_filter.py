"""Output that goes to a file or a pipe, such as the log of a job, which stays: its lines without secrets.

A terminal shows what a rank writes as it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from trainwiz.record import redaction
from trainwiz.record.tokens import HIDDEN

_MOST_SECONDS = 5.0
"""A line that is not finished until then is shown as it is so far."""
_MOST_BYTES = 1 << 16
_LINE = re.compile(rb"[^\r\n]*[\r\n]+|[^\r\n]+")
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN", b"-----END"


class SecretFilter:
    """Passes whole lines on, with secrets hidden."""

    def __init__(self, secrets: frozenset[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets, self._clock = secrets, clock
        self._open, self._since, self._in_key = b"", 0.0, False

    def feed(self, data: bytes) -> bytes:
        """The part of the new output, and of an unfinished line before it, to show now."""
        if not self._open:
            self._since = self._clock()
        self._open += data
        end = max(self._open.rfind(b"\n"), self._open.rfind(b"\r")) + 1
        whole, self._open = self._open[:end], self._open[end:]
        return self._hidden(whole) + self.overdue()

    def overdue(self) -> bytes:
        """An unfinished line that has waited for too long, or is too long."""
        late = self._clock() - self._since > _MOST_SECONDS or len(self._open) > _MOST_BYTES
        return self.flush() if self._open and late else b""

    def flush(self) -> bytes:
        """All that waits."""
        rest, self._open = self._open, b""
        return self._hidden(rest)

    def _hidden(self, lines: bytes) -> bytes:
        if not self._in_key and _KEY_BEGINS not in lines:
            return self._without_secrets(lines)
        return b"".join(map(self._line, _LINE.findall(lines)))

    def _line(self, line: bytes) -> bytes:
        """One line, where a private key may begin or end."""
        self._in_key |= _KEY_BEGINS in line
        shown = HIDDEN.encode() + b"\n" if self._in_key else self._without_secrets(line)
        self._in_key &= _KEY_ENDS not in line
        return shown

    def _without_secrets(self, lines: bytes) -> bytes:
        words = lines.decode("utf-8", "surrogateescape")
        return redaction.text(words, self._secrets).encode("utf-8", "surrogateescape")
