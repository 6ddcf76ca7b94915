"""Reading metrics.jsonl while it grows."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


class Metrics:
    """A run's metrics; each call of `new` gives what came since the last. Lines that are no object are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def new(self) -> list[dict[str, Any]]:
        """The complete lines since the last call; none while the file does not exist."""
        found: list[dict[str, Any]] = []
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
            self._position += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict):
                        found.append(value)
        return found
