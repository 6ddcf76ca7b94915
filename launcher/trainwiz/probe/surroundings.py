"""What only a checkup looks at: hub, caches, DeepSpeed's ops."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainwiz.checkup.surroundings import Cache, Hub, Op
from trainwiz.probe.limit import within
from trainwiz.probe.locks import extensions_folder
from trainwiz.process.capture import Running

HUB_SECONDS = 4.0
OPS_SECONDS = 90.0
"""Importing DeepSpeed takes 3–6 s, from a cold network disk a multiple."""

_OPS = Path(__file__).parent / "inside" / "ops.py"
_TRUE = {"1", "ON", "YES", "TRUE"}


class PendingOps:
    """DeepSpeed is being asked about its ops."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def cancel(self) -> None:
        """Stop asking."""
        self._running.cancel()

    def result(self) -> tuple[tuple[Op, ...] | None, str | None]:
        """The ops, or None with why DeepSpeed could not say."""
        ended = self._running.result(OPS_SECONDS)
        if ended.timed_out:
            return None, f"no answer within {OPS_SECONDS:g} s"
        try:
            found = json.loads(ended.stdout.strip().splitlines()[-1])
            return tuple(Op(name=o["name"], compatible=o["compatible"], built=o["built"]) for o in found["ops"]), None
        except (IndexError, ValueError, KeyError, TypeError):
            return None, ended.last_line or f"ended with code {ended.code}"


def ask_for_ops(python: str) -> PendingOps:
    """Start asking at once."""
    return PendingOps(Running([python, str(_OPS), str(extensions_folder())]))


def hub(environ: Mapping[str, str] = os.environ, *, seconds: float = HUB_SECONDS) -> Hub:
    """Whether the model hub answers, asked without any token."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(variable, "").upper() in _TRUE:
            return Hub(endpoint=endpoint, offline=variable)
    try:
        within(seconds, lambda: _ask(endpoint, seconds))
    except Exception as error:
        return Hub(endpoint=endpoint, reachable=False, detail=str(getattr(error, "reason", error)))
    return Hub(endpoint=endpoint, reachable=True)


def _ask(endpoint: str, seconds: float) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    if not endpoint.startswith(("http://", "https://")):
        raise ValueError("HF_ENDPOINT is not an http(s) address")
    try:
        urlopen(Request(endpoint, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()  # it speaks HTTP: reachable
        if error.code >= 500:
            raise ValueError(f"HTTP {error.code}") from None


def caches(environ: Mapping[str, str] = os.environ) -> tuple[Cache, ...]:
    """The folders that libraries write to during a training."""
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = {
        "XDG_CACHE_HOME": base,
        "HF_HOME": environ.get("HF_HOME") or os.path.join(base, "huggingface"),
        "TORCH_EXTENSIONS_DIR": str(extensions_folder(environ)),
        "TMPDIR": environ.get("TMPDIR") or tempfile.gettempdir(),
    }
    return tuple(_cache(variable, path) for variable, path in places.items())


def _cache(variable: str, path: str) -> Cache:
    place = Path(path).expanduser().absolute()
    writable, free = False, None
    with contextlib.suppress(OSError, TimeoutError):
        writable, free = within(HUB_SECONDS, lambda: _looked_at(place))
    return Cache(variable=variable, path=str(place), writable=writable, free_bytes=free)


def _looked_at(place: Path) -> tuple[bool, int]:
    if place.is_dir():
        # Only a real file tells: quotas, read-only mounts and full disks are not in the permission bits.
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
