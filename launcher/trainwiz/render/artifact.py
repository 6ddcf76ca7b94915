"""What rendering makes: files, as text, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Artifact:
    """One generated file. `path` is relative to the project folder, with `/` between its parts."""

    path: str
    text: str
