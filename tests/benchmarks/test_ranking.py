"""The ranking of strategies on CPU ranks: what its table says, and what the page says of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ranking


def test_the_table_has_the_least_time_first_and_the_place_that_trainwiz_gives() -> None:
    taken = {"single": [1.0, 1.2, 1.1], "ddp": [1.3, 1.1, 1.2], "zero1": [1.6, 2.4, 1.5]}
    _, _, *rows = ranking.table(taken).splitlines()
    assert rows == [
        "| single | 1 | 1.10 (1.00–1.20) | 1.00 | 1 |",
        "| ddp | 2 | 1.20 (1.10–1.30) | 1.09 | 2 |",
        "| zero1 | 2 | 1.60 (1.50–2.40) | 1.60 | 4 |",
    ]


def test_a_strategy_that_trains_something_else_is_no_contestant() -> None:
    ranking.compare({"single": {1: 2.0, 2: 1.0}, "ddp": {1: 2.0, 2: 1.00001}})
    with pytest.raises(RuntimeError, match=r"zero3 did not train the same: losses 1\.0e-02 apart"):
        ranking.compare({"single": {1: 2.0, 2: 1.0}, "zero3": {2: 1.01}})


def test_the_page_has_all_strategies() -> None:
    written = ranking.PAGE.read_text(encoding="utf-8").partition(ranking.BEGIN)[2].partition(ranking.END)[0]
    assert {row.split("|")[1].strip() for row in written.splitlines() if row.startswith("|")} > set(ranking.LABELS)


def test_the_order_that_trainwiz_gives_is_the_one_measured() -> None:
    """On the page, which has the least time first: a strategy whose place changes must be measured again."""
    written = ranking.PAGE.read_text(encoding="utf-8").partition(ranking.BEGIN)[2].partition(ranking.END)[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in written.splitlines() if row.startswith("|")]
    rows = [row for row in rows if row[0] in ranking.LABELS]
    seconds = [float(row[2].split()[0]) for row in rows]
    assert seconds == sorted(seconds)
    placed = [(row[0], int(row[4])) for row in rows if row[4].isdigit()]
    assert [place for _, place in placed] == sorted(place for _, place in placed)
    assert dict(placed) == ranking.places()
    assert len(placed) == 5
