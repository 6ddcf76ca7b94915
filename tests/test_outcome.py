"""How a run ended, as its record holds it and as it is read back."""

from typing import Any

import pytest

from trainwiz.outcome import Outcome, Verified, shell_code, signal_name, signal_number

ENDED = Outcome(
    exit_code=137,
    codes={1: -9, 0: -15},
    first_failed=1,
    seconds=12.34567,
    signal=15,
    saving_seconds=1.23456,
    observed={"oom_kills": 1},
)


def test_a_record_holds_it() -> None:
    record = ENDED.to_dict()
    assert (record["seconds"], record["saving_seconds"]) == (12.346, 1.235)
    assert list(record["ranks"].items()) == [("0", -15), ("1", -9)]  # type: ignore[attr-defined]
    assert (record["interrupted"], record["preempted"]) == (True, True)
    assert Outcome(exit_code=0).to_dict()["saving_seconds"] is None


def test_what_was_recorded_is_read_back() -> None:
    read = Outcome.of_record(ENDED.to_dict())
    assert read == Outcome(exit_code=137, codes={0: -15, 1: -9}, first_failed=1, signal=15, observed={"oom_kills": 1})


@pytest.mark.parametrize(
    "record", [{}, {"exit_code": 1}, {"exit_code": "1", "ranks": {}}, {"exit_code": 1, "ranks": []}]
)
def test_a_torn_record_is_none(record: dict[str, Any]) -> None:
    assert Outcome.of_record(record) is None


def test_what_a_record_holds_of_a_wrong_type_is_left_out() -> None:
    torn = {"exit_code": 1, "ranks": {"0": 1, "x": 2}, "first_failed_rank": "0", "signal": "15", "observed": {"a": "b"}}
    assert Outcome.of_record(torn) == Outcome(exit_code=1, codes={0: 1})
    assert Outcome.of_record({**torn, "observed": 3}) == Outcome(exit_code=1, codes={0: 1})


@pytest.mark.parametrize(
    ("signal", "interrupted", "preempted"), [(None, False, False), (2, True, False), (10, True, True), (15, True, True)]
)
def test_a_person_interrupts_and_a_scheduler_preempts(signal: int | None, interrupted: bool, preempted: bool) -> None:
    ended = Outcome(exit_code=0, signal=signal)
    assert (ended.interrupted, ended.preempted) == (interrupted, preempted)


def test_a_checkpoint_is_whole_when_every_file_was_read_and_none_is_damaged() -> None:
    assert Verified(files=2, read=2).whole
    assert not Verified(files=2, read=1).whole
    assert not Verified(files=2, read=2, damaged=("a",)).whole
    assert Verified(files=2, read=1).to_dict() == {"whole": False, "files": 2, "read": 1, "damaged": []}


def test_signals_have_names_and_codes() -> None:
    assert (signal_name(9), signal_name(99)) == ("SIGKILL", "99")
    assert (signal_number("SIGTERM"), signal_number("SIGNOTHING")) == (15, None)
    assert [shell_code(code) for code in (0, 3, -9)] == [0, 3, 137]
