"""Forecasts beside what was measured: in the list of runs, on a report's page, under the rows of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwiz.language import t, text
from trainwiz.quantities import size
from trainwiz.record.forecast import QUANTITIES, Compared
from trainwiz.record.run import Summary

_OF_MEMORY = ("reserved_bytes", "host_bytes")
"""The first that was measured is a run's memory: a GPU's, else the host's."""


def memory(summary: Summary) -> str:
    """The most memory of a rank, and in parentheses its forecast; empty where nothing was measured."""
    for name in _OF_MEMORY:
        if name in summary.measured:
            pair = next((pair for pair in summary.compared if pair.name == name), None)
            measured = size(summary.measured[name])
            return f"{measured} ({size(pair.forecast)})" if pair else measured
    return ""


def miss(pair: Compared) -> str:
    """What was missed, by how much, and the part that it likely comes from."""
    words = {
        "what": text(QUANTITIES[pair.name]),
        "measured": shown(pair.name, pair.measured),
        "forecast": shown(pair.name, pair.forecast),
        "percent": round(100 * abs(pair.error)),
        "likely": text(pair.likely) if pair.likely else "",
    }
    if pair.error > 0:
        return t("{what}: {measured}, {percent}% above the forecast of {forecast}; likely {likely}", **words)
    return t("{what}: {measured}, {percent}% below the forecast of {forecast}; likely {likely}", **words)


def rows(found: Sequence[Compared]) -> list[tuple[str, str, str, str, str]]:
    """For each quantity: its name, forecast, measured, difference, and what a miss likely comes from."""
    return [
        (
            text(QUANTITIES[pair.name]),
            shown(pair.name, pair.forecast),
            shown(pair.name, pair.measured),
            f"{100 * pair.error:+.1f}%",
            text(pair.likely) if pair.likely else "",
        )
        for pair in found
    ]


def heads() -> tuple[str, str, str, str, str]:
    """The heads of those columns."""
    return t("quantity"), t("forecast"), t("measured"), t("difference"), t("a miss likely comes from")


def to_dict(pair: Compared) -> dict[str, Any]:
    """One quantity for `--json`."""
    return {
        "quantity": pair.name,
        "forecast": pair.forecast,
        "measured": pair.measured,
        "error": round(pair.error, 4),
        "missed": pair.missed,
        "likely": text(pair.likely) if pair.likely else None,
    }


def shown(name: str, value: float) -> str:
    """A value with its unit."""
    return t("{seconds:.3g} s", seconds=value) if name.startswith("seconds") else size(value)
