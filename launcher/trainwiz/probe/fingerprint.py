"""What must be the same on all machines of a launch: the code, the data, and the versions of packages."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from trainwiz import files
from trainwiz.machine import Machine

_PACKAGES = ("torch", "accelerate", "deepspeed", "colossalai", "transformers", "peft")
_DIGITS = 12
_MOST_SCRIPTS = 40
_ENDS_BYTES = 1 << 20
"""Of a data file: how much of its beginning and its end is compared, besides its size."""
_MOST_FILES = 10_000
_MOST_SOURCES = 100


def facts(folder: Path, machine: Machine, data: Mapping[str, str | None]) -> dict[str, str]:
    """Digests and versions by name.

    `data` holds what the plan says of the data, by key: files and folders with commas between them; patterns and names
    on the hub say nothing.
    """
    found = {name: _digest(files.read_bytes(folder / name)) for name in _scripts(folder)}
    if machine.interpreter:
        python = machine.interpreter.python_version
        found["python"] = ".".join(str(python).split(".")[:2])
        found |= {name: version for name in _PACKAGES if (version := machine.interpreter.version(name))}
    return {**found, **of_plan_data(folder, data)}


def of_plan_data(folder: Path, data: Mapping[str, str | None]) -> dict[str, str]:
    """A digest of each key's files, where there are any."""
    found = {}
    for key, value in data.items():
        told = [
            of_data(folder / source.strip()) for source in (value or "").split(",")[:_MOST_SOURCES] if source.strip()
        ]
        if any(told):
            found[key] = _digest(" ".join(told).encode())
    return found


def of_data(path: Path) -> str:
    """A digest of a data file's size and ends, or of the names and sizes in a folder; empty where nothing is."""
    try:
        if path.is_dir():
            return _of_folder(path)
        with files.opened(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            ends = [stream.read(_ENDS_BYTES)]
            stream.seek(max(0, size - _ENDS_BYTES))
            ends.append(stream.read(_ENDS_BYTES))
    except OSError:
        return ""
    return _digest(b"".join([str(size).encode(), *ends]))


def _of_folder(folder: Path) -> str:
    names = ((where, name) for where, _, names in os.walk(folder) for name in names)
    sizes = []
    for where, name in itertools.islice(names, _MOST_FILES):
        path = os.path.join(where, name)
        sizes.append(f"{os.path.relpath(path, folder)} {os.stat(path).st_size}")
    return _digest("\n".join(sorted(sizes)).encode())


def _scripts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py") if path.is_file())[:_MOST_SCRIPTS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
