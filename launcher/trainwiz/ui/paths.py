"""Paths as a person sees them."""

from __future__ import annotations

from pathlib import Path


def near(path: Path) -> Path:
    """The path as seen from the working directory, where that is shorter."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
