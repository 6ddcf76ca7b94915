"""A run's metrics while they grow, all of them at hand."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class Growing:
    """All records of a metrics.jsonl. A restart cuts the file back to its checkpoint; then it is read anew."""

    def __init__(self, path: Path) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = path
        self._position = 0
        self._last_line = b""

    def refresh(self) -> bool:
        """Read what is new; whether anything was. A line without its end is left for the next time."""
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except OSError:
            return False

    def _read(self, file: Any) -> bool:
        file.seek(max(0, self._position - len(self._last_line)))
        again = file.read(len(self._last_line)) != self._last_line
        if again:
            self.records, self._position, self._last_line = [], 0, b""
            file.seek(0)
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        for line in lines:
            self._position += len(line)
            self._last_line = line
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    self.records.append(value)
        return again or bool(lines)
