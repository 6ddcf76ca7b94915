"""How often the advice is right: the numbers in docs/truth.md, and the floors that they must not fall below."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]

import truth  # noqa: E402

PLANTED = list(truth.planted())


@pytest.fixture(scope="module")
def scores() -> dict[str, truth.Score]:
    return truth.counted()


def test_the_page_says_what_is_counted(scores: dict[str, truth.Score]) -> None:
    assert truth.table(scores) in truth.PAGE.read_text(), "run: python benchmarks/truth.py"


def test_everything_labeled_is_counted(scores: dict[str, truth.Score]) -> None:
    for name, score in scores.items():
        assert score.wrong >= 50, name
        # An explanation is of a failure; logs without one are among the known causes' cases.
        assert score.cases > score.wrong or name.endswith("explained"), name


def test_no_number_falls_below_what_was_once_reached(scores: dict[str, truth.Score]) -> None:
    floors = truth.floors()
    assert set(floors) == set(scores), "run: python benchmarks/truth.py"
    for name, score in scores.items():
        reached = score.numbers()
        assert {key: reached[key] for key in reached if reached[key] < floors[name][key]} == {}, name
        assert min(reached["recall"], reached["precision"]) >= 0.95, name


def test_a_worse_count_lowers_no_floor(scores: dict[str, truth.Score]) -> None:
    floors = truth.floors()
    worse = {name: truth.Score(cases=1, wrong=1, found=1, false=9) for name in scores}
    assert truth.raised(floors, worse) == floors


@pytest.mark.parametrize("case", PLANTED, ids=[f"{case.style}: {case.bug}" for case in PLANTED])
def test_a_planted_bug_is_found_and_its_remedy_ends_it(case: truth.Planted) -> None:
    assert case.finds[0] in [finding.rule for finding in truth.findings(case.broken)]
    assert [str(finding.message) for finding in truth.findings(case.fixed)] == []


def test_a_score_tells_misses_from_false_findings() -> None:
    score = truth.Score()
    score.add(wrong=True, found=True, false=0)
    score.add(wrong=True, found=False, false=1)
    score.add(wrong=False, found=False, false=0)
    assert (score.cases, score.wrong, score.found, score.false) == (3, 2, 1, 1)
    assert (score.recall, score.precision) == (0.5, 0.5)
