"""Names of files and folders as words of a command that people type."""

from __future__ import annotations

import os
import shlex


def operand(path: str | os.PathLike[str]) -> str:
    """A path that no program takes for an option: `-x` is `./-x`. `pathlib` drops the `./` that somebody typed."""
    word = os.fspath(path)
    return f"./{word}" if word.startswith("-") else word


def quoted(path: str | os.PathLike[str]) -> str:
    """The same as one word for a shell."""
    return shlex.quote(operand(path))
