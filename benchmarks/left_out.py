"""How the forecast of speed does on sources that its constants have not seen: `python benchmarks/left_out.py`.

Each source of benchmarks/published/measurements.csv is left out in turn, the rates of estimate/speed.py are fitted on
the others, and its rows are forecast with them. The last lines fit them on all sources, and forecast the files whose
rows none of them was fitted to. It takes a minute of processor time.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "launcher")]

import forecast  # noqa: E402
from published.recipes import Recipe, Unknown, recipe  # noqa: E402

from trainwiz.estimate.speed import FITTED, Rates  # noqa: E402

PUBLISHED = ROOT / "benchmarks" / "published"
_PULL = 0.003
"""How strongly a rate is held near its value today, where the rows leave it open."""
_FIRST, _LAST = 1.3, 1.02
"""The factors by which a rate is changed, first and last."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A row with a measured speed."""

    source: str
    gpu: str
    found: Recipe
    tokens: float

    def error(self, rates: Rates) -> float:
        """Forecast over measured, less 1."""
        said = forecast.tokens_per_second(self.found, self.gpu, rates)
        assert said is not None
        return said / self.tokens - 1


def speeds(path: Path) -> list[Speed]:
    """The rows of a file that say enough."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                one = recipe(row)
            except Unknown:
                continue
            if row["tokens_per_s_per_gpu"] and forecast.tokens_per_second(one, row["gpu"]):
                source, tokens = row["source"].split(" ")[0], float(row["tokens_per_s_per_gpu"])
                found.append(Speed(source=source, gpu=row["gpu"], found=one, tokens=tokens))
    return found


def fit(rows: Sequence[Speed], start: Rates = FITTED) -> Rates:
    """The rates of the least loss, changed one at a time by ever smaller factors."""
    rates, best, factor = start, _loss(rows, start, start), _FIRST
    while factor > _LAST:
        moved = False
        for name, step in ((name, step) for name in asdict(start) for step in (factor, 1 / factor)):
            other = replace(rates, **{name: getattr(rates, name) * step})
            loss = _loss(rows, other, start)
            if loss < best - 1e-6 and other.matrices <= 1:
                rates, best, moved = other, loss, True
        if not moved:
            factor **= 0.5
    return rates


def _loss(rows: Sequence[Speed], rates: Rates, start: Rates) -> float:
    """The mean error of each source; a source counts by the root of its rows, which are alike."""
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(abs(math.log1p(row.error(rates))))
    weights = {source: math.sqrt(len(found)) for source, found in by_source.items()}
    error = sum(weights[source] * statistics.mean(found) for source, found in by_source.items())
    moved = sum(math.log(getattr(rates, name) / value) ** 2 for name, value in asdict(start).items())
    return error / sum(weights.values()) + _PULL * moved


def _line(name: str, rows: Sequence[Speed], rates: Rates) -> str:
    numbers = forecast.summary([row.error(rates) for row in rows]).split(" | ")
    return f"| {name} | {' | '.join((*numbers[:3], numbers[4]))} |"


def main() -> None:
    """Print the table of docs/forecast.md."""
    known = speeds(PUBLISHED / "measurements.csv")
    print("| source left out | rows | median | p90 | signed median |", "|---|---:|---:|---:|---:|", sep="\n")
    for source in sorted({row.source for row in known}):
        rates = fit([row for row in known if row.source != source])
        print(_line(f"speed: {source}", [row for row in known if row.source == source], rates), flush=True)
    rates = fit(known)
    for name in ("siblings", "unseen", "held_out"):
        print(_line(f"speed: {name}.csv, fitted on all of the first file", speeds(PUBLISHED / f"{name}.csv"), rates))
    print("", rates, sep="\n")


if __name__ == "__main__":
    main()
