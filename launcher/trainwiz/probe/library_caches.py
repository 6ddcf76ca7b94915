"""The folders that libraries write to during a training."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainwiz.probe.cache import cache_home, hub_home
from trainwiz.probe.limit import within
from trainwiz.probe.locks import extensions_folder
from trainwiz.surroundings import Cache

SECONDS = 4.0


def caches(environ: Mapping[str, str] = os.environ) -> tuple[Cache, ...]:
    """The folders that libraries write to during a training."""
    places = {
        "XDG_CACHE_HOME": cache_home(environ),
        "HF_HOME": hub_home(environ),
        "TORCH_EXTENSIONS_DIR": extensions_folder(environ),
        "TMPDIR": Path(environ.get("TMPDIR") or tempfile.gettempdir()),
    }
    return tuple(_cache(variable, path) for variable, path in places.items())


def _cache(variable: str, path: Path) -> Cache:
    place = path.expanduser().absolute()
    writable, free = False, None
    with contextlib.suppress(OSError, TimeoutError):
        writable, free = within(SECONDS, lambda: _looked_at(place))
    return Cache(variable=variable, path=str(place), writable=writable, free_bytes=free)


def _looked_at(place: Path) -> tuple[bool, int]:
    if place.is_dir():
        # Permission bits do not show quotas, read-only mounts and full disks; writing a file does.
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"x")
            writable = True
        except OSError:
            writable = False
        return writable, shutil.disk_usage(place).free
    if place.exists():
        return False, shutil.disk_usage(place.parent).free
    parent = next(p for p in place.parents if p.exists())
    return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK), shutil.disk_usage(parent).free
