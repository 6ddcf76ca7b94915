"""Forecasts of the speed of networks for pictures against published measurements: `python benchmarks/pictures.py`.

published/pictures.csv has the rows of timm's table of trainings (AMP, channels first) whose networks trainwiz knows.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "launcher")]

from trainwiz.estimate.device import Work  # noqa: E402
from trainwiz.estimate.gpus import gpu_model  # noqa: E402
from trainwiz.estimate.speed import pace  # noqa: E402
from trainwiz.models.pictures import network_of_timm, parameters_of_timm  # noqa: E402
from trainwiz.strategies import labeled  # noqa: E402

FILE = ROOT / "benchmarks" / "published" / "pictures.csv"


def errors() -> dict[str, float]:
    """Forecast over measured, less 1, by network."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return {row["network"]: _forecast(row) / float(row["pictures_per_s"]) - 1 for row in csv.DictReader(file)}


def _forecast(row: dict[str, str]) -> float:
    name, gpu = f"timm/{row['network']}", gpu_model(row["gpu"])
    network, parameters = network_of_timm(name), parameters_of_timm(name)
    assert gpu
    assert network
    assert parameters
    work = Work(
        parameters=parameters,
        transformer=None,
        network=network,
        picture_size=int(row["picture_size"]),
        precision=row["precision"],
        samples=int(row["micro_batch"]),
        generates=False,
    )
    found = pace(labeled("single"), work, gpu)
    assert found
    return found.tokens_per_second


def main() -> None:
    """Print the errors, the largest last."""
    found = errors()
    for name, error in sorted(found.items(), key=lambda item: abs(item[1])):
        print(f"{name:32} {error:+.1%}")
    sizes = sorted(map(abs, found.values()))
    ninth = sizes[int(0.9 * len(sizes))]
    print(f"{len(sizes)} networks: median {statistics.median(sizes):.1%}, p90 {ninth:.1%}")


if __name__ == "__main__":
    main()
