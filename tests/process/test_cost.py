"""What supervision costs, and that a flood of lines gets through: measured as the benchmark does, on a small scale."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import supervision


@pytest.fixture(autouse=True)
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_launcher_itself_needs_next_to_nothing() -> None:
    cost = supervision.cost(6)
    assert 10e6 < cost.resident_bytes < 65e6
    # The promise is 1 %, and 0.2 % is usual. Processor time, so that a busy machine does not count.
    assert cost.share < 0.02


@pytest.mark.parametrize("terminal", [False, True])
def test_no_line_of_a_flood_is_lost(terminal: bool) -> None:
    flood = supervision.flood(50_000, 1.5, terminal=terminal)
    assert flood.lines == 150_000
    assert flood.in_logs == flood.lines
    assert flood.shown == flood.lines / 2
