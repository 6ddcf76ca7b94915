"""What a GPU costs per hour, as this user typed it, by its name: XDG_CONFIG_HOME/trainwiz/prices.json.

No price ships with trainwiz. A damaged file, and a price that is no positive number, count as none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from trainwiz import files
from trainwiz.store import atomic, cache


def file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where prices are kept."""
    return cache.folder(environ, variable="XDG_CONFIG_HOME", otherwise="~/.config") / "prices.json"


def of(gpu: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """The price of one GPU of this name for one hour, in the user's currency; None where none was typed."""
    return _all(environ).get(gpu)


def keep(gpu: str, price: float | None, environ: Mapping[str, str] = os.environ) -> None:
    """Remember a price for a GPU's name; None forgets it. Raises `TrainwizError` where that cannot be written."""
    before = _all(environ)
    prices = {name: known for name, known in before.items() if name != gpu}
    if price is not None:
        prices[gpu] = price
    if prices != before:
        atomic.write(file(environ), json.dumps(prices, indent=2, ensure_ascii=False) + "\n")


def _all(environ: Mapping[str, str]) -> dict[str, float]:
    try:
        found = files.read_json(file(environ))
    except (OSError, ValueError):
        return {}
    prices = found.items() if isinstance(found, dict) else ()
    return {name: float(price) for name, price in prices if _is_price(price)}


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300
