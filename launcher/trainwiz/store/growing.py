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

    def refresh(self) -> list[dict[str, Any]]:
        """Read and return what is new: all of it where the file was cut. A line without its end is left for later."""
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except OSError:
            return []

    def _read(self, file: Any) -> list[dict[str, Any]]:
        file.seek(max(0, self._position - len(self._last_line)))
        if file.read(len(self._last_line)) != self._last_line:
            self.records, self._position, self._last_line = [], 0, b""
            file.seek(0)
        known = len(self.records)
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
        return self.records[known:]
