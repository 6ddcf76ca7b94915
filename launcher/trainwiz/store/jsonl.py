"""Reading JSON-lines files while another process writes them: metrics.jsonl and memory.jsonl of a run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, BinaryIO

from trainwiz import files
from trainwiz.record.shapes import counted

_LONG_NUMBER = re.compile(rb"\d{19}")


class JsonLines:
    """A growing file of JSON objects, one per line. Other lines, and a last line without its end, are left out.

    Only a position and the last line are kept, so that hours of records cost no memory here.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.rewritten = False
        """Whether the last call of `new` began anew, because a restart had cut the file back to its checkpoint."""
        self._path = path
        self._position = start
        self._last_line = b""

    def new(self) -> list[dict[str, Any]]:
        """The records since the last call; all of them if the file was rewritten, none while it does not exist."""
        self.rewritten = False
        with contextlib.suppress(OSError), files.opened(self._path) as file:
            return self._read(file)
        return []

    def _read(self, file: BinaryIO) -> list[dict[str, Any]]:
        file.seek(self._position - len(self._last_line))
        # A rewritten file has another line there, or none, even if it is as long as before.
        if file.read(len(self._last_line)) != self._last_line:
            self.rewritten, self._position, self._last_line = True, 0, b""
            file.seek(0)
        found = []
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._position += len(line)
            self._last_line = line
            if (record := _record(line)) is not None:
                found.append(record)
        return found


def newest(path: Path, size_bytes: int) -> list[dict[str, Any]]:
    """The records in the last bytes of a file; enough for a summary, however long the file is."""
    start = max(0, path.stat().st_size - size_bytes) if path.is_file() else 0
    return JsonLines(path, start=start).new()


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = files.parsed_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return dict(counted(value)) if _LONG_NUMBER.search(line) else value
