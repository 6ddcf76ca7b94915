"""What watch tells of a running training: its pace, and the complaints in its logs."""

import pytest

from trainwiz.record.complaints import Complaint, complaints
from trainwiz.record.pace import Pace


def seen(*observations: tuple[float, float], before: float | None = None) -> Pace:
    pace = Pace(before)
    for seconds, update in observations:
        pace.saw(seconds, update)
    return pace


def test_the_pace_is_the_mean_of_what_was_seen() -> None:
    pace = seen((100, 10), (104, 12), (110, 15))
    assert pace.per_update() == 2
    assert pace.left(20, now=110) == 10
    assert pace.left(20, now=113) == 7
    assert pace.left(20, now=200) == 0


def test_an_update_that_takes_its_time_is_seen_once() -> None:
    assert seen((0, 1), (10, 1), (20, 2)).per_update() == 20


def test_a_restart_begins_anew() -> None:
    pace = seen((0, 10), (10, 20), (50, 5), (53, 6))
    assert pace.per_update() == 3


def test_before_anything_was_seen_the_earlier_pace_counts() -> None:
    assert (Pace().per_update(), Pace().left(10, 0)) == (None, None)
    assert (Pace(2.5).per_update(), Pace(2.5).left(10, 0)) == (2.5, None)
    pace = seen((0, 4), before=2.5)
    assert (pace.per_update(), pace.left(10, now=3)) == (2.5, 15)
    assert seen((0, 4)).left(10, now=3) is None


def test_the_pace_forgets_what_is_long_ago() -> None:
    pace = seen(*((second, second) for second in range(200)), *((200 + 5 * n, 200 + n) for n in range(120)))
    assert pace.per_update() == 5


def test_lines_that_differ_in_numbers_are_one_complaint() -> None:
    tails = {1: "UserWarning: 12 s\nfine\n", 0: "UserWarning: 7 s\nUserWarning: 8 s\n0 errors\n"}
    assert complaints(tails, 5) == [Complaint(text="UserWarning: 12 s", ranks=(0, 1), times=3)]


def test_the_newest_complaints_are_kept_in_order() -> None:
    tails = {0: "error: a\nerror: b\nerror: a\rerror: c"}
    assert [(c.text, c.times) for c in complaints(tails, 2)] == [("error: a", 2), ("error: c", 1)]
    assert [c.text for c in complaints(tails, 1)] == ["error: c"]
    assert complaints(tails, 0) == []


def test_a_complaint_has_no_control_characters() -> None:
    assert [c.text for c in complaints({0: "\x1b[31m  RuntimeError: x\x1b[0m\x07 "}, 3)] == ["RuntimeError: x"]


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-22 16:25:42] [WARNING] [real_accelerator.py:213] Setting accelerator to CPU. If you have GPU",
        " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
        " [WARNING]  using untested triton version (3.2.0), only 1.0.0 is known to be compatible",
    ],
)
def test_lines_that_mean_nothing_are_no_warnings(line: str) -> None:
    assert complaints({0: f"{line}\nUserWarning: odd\n"}, 5) == [Complaint(text="UserWarning: odd", ranks=(0,))]
