"""Which Python runs the training."""

from __future__ import annotations

import os
import shutil
import sys


def path_of(python: str) -> str:
    """The path of the Python that was asked for, by a path or a name; ours where none was."""
    if not python:
        return sys.executable
    if os.sep not in python:
        return shutil.which(python) or python
    # Not resolved: a virtual environment's python is a link, and its place decides what it imports.
    return os.path.abspath(os.path.expanduser(python))
