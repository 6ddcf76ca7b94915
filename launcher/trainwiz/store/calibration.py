"""How wrong forecasts were on a machine: the ratios of its last runs, in the user's cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from trainwiz.machine import Machine
from trainwiz.record.forecast import Correction
from trainwiz.record.metrics import number
from trainwiz.store import cache

_FILE = "calibration"
_LINKS = "links"
_KEPT = 20
"""Runs of a machine."""
_NEWEST = 8
"""Runs that a correction is made from."""
_LEAST, _MOST = 0.5, 2.0
"""A ratio beyond these is not a correction: the forecast was about something else."""


def key(machine: Machine) -> str:
    """The machine, by its name and its GPUs."""
    names = [gpu.name for gpu in machine.gpus]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "CPU"
    return f"{machine.hostname or '?'}: {gpus}"


def add(machine: Machine, *, run: str, strategy: str, at: str, **ratios: float) -> None:
    """Remember a run's ratios of measured and forecast, by the name of what was measured."""
    runs = [entry for entry in _runs(cache.recall(_FILE, key(machine))) if entry.get("run") != run]
    entry = {"run": run, "strategy": strategy, "at": at, "ratios": ratios}
    cache.remember(_FILE, key(machine), [*runs[1 - _KEPT :], entry])


def corrections(machine: Machine) -> dict[str, Correction]:
    """The correction of each quantity that was measured here."""
    return made_of(_runs(cache.recall(_FILE, key(machine))))


def every() -> dict[str, list[dict[str, Any]]]:
    """The runs that are remembered, by machine."""
    return {name: runs for name, value in cache.every(_FILE).items() if (runs := _runs(value))}


def made_of(runs: list[dict[str, Any]]) -> dict[str, Correction]:
    """The median ratio of the newest runs, by quantity."""
    found: dict[str, list[float]] = {}
    for entry in runs:
        for name, ratio in _usable(entry):
            found.setdefault(name, []).append(ratio)
    newest = {name: ratios[-_NEWEST:] for name, ratios in found.items()}
    return {name: Correction(factor=round(median(ratios), 4), runs=len(ratios)) for name, ratios in newest.items()}


def measured(machine: Machine, bus_bandwidth: float) -> None:
    """Remember the bandwidth of an all-reduce between all of a machine's GPUs, in bytes per second."""
    cache.remember(_LINKS, key(machine), bus_bandwidth)


def bus_bandwidth(machine: Machine) -> float | None:
    """What was measured between a machine's GPUs last; None: nothing."""
    found = number(cache.recall(_LINKS, key(machine))) if len(machine.gpus) > 1 else None
    return found if found and found > 0 else None


def links() -> dict[str, float]:
    """What was measured, by machine."""
    return {name: found for name, value in cache.every(_LINKS).items() if (found := number(value))}


def forget() -> bool:
    """Delete all that is remembered; whether there was anything."""
    deleted = False
    for name in (_FILE, _LINKS):
        with contextlib.suppress(OSError):
            (cache.folder() / f"{name}.json").unlink()
            deleted = True
    return deleted


def _usable(entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in entry["ratios"].items():
        ratio = number(value)
        if ratio is not None and _LEAST <= ratio <= _MOST:
            yield str(name), ratio


def _runs(value: object) -> list[dict[str, Any]]:
    """The entries that are as `add` writes them; the cache may hold anything."""
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("ratios"), dict)]
