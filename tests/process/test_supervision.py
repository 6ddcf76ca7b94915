"""Histories of a world, replayed without a process and without waiting."""

import signal

import pytest

from trainwiz.message import Message
from trainwiz.process.heartbeats import Straggler
from trainwiz.process.supervision import KILL_SECONDS, SETTLE_SECONDS, Send, Supervisor, ending

INT, TERM, KILL, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP


def sends(actions: list[object]) -> list[tuple[int, tuple[int, ...]]]:
    return [(a.signal, a.ranks) for a in actions if isinstance(a, Send)]


def words(actions: list[object]) -> str:
    return " ".join(str(a) for a in actions if isinstance(a, Message))


def test_all_end_well() -> None:
    world = Supervisor([0, 1])
    assert world.stopped(1, 0, 1.0) == []
    assert not world.finished
    assert world.stopped(0, 0, 2.0) == []
    outcome = world.outcome(2.0)
    assert world.finished
    assert (outcome.exit_code, outcome.first_failed, outcome.interrupted) == (0, None, False)


def test_first_failure_ends_the_others_and_gives_the_code() -> None:
    world = Supervisor([0, 1, 2], teardown=10)
    assert world.stopped(1, 42, 5.0) == []  # the others may be about to end, each in its own way
    assert world.due(5.0 + SETTLE_SECONDS - 0.1) == []
    actions = world.due(5.0 + SETTLE_SECONDS)
    assert sends(actions) == [(TERM, (0, 2))]
    assert "rank 1 failed (exit code 42)" in words(actions)
    assert world.stopped(0, 1, 5.6) == []  # what follows is not the cause
    assert world.due(15.4) == []
    late = world.due(15.0 + SETTLE_SECONDS)
    assert sends(late) == [(KILL, (2,))]
    assert "2 did not exit within 10 s" in words(late)
    world.stopped(2, -9, 15.1)
    outcome = world.outcome(15.1)
    assert (outcome.exit_code, outcome.first_failed, outcome.killed) == (42, 1, (2,))


def test_death_by_signal_is_128_and_n() -> None:
    world = Supervisor([0])
    assert world.stopped(0, -11, 1.0) == []
    assert world.outcome(1.0).exit_code == 139


def test_ctrl_c_lets_them_save() -> None:
    world = Supervisor([0, 1], grace=30)
    actions = world.asked(INT, 1.0)
    assert sends(actions) == [(TERM, (0, 1))]
    assert "Ctrl-C" in words(actions)
    assert "30 s" in words(actions)
    world.stopped(0, 0, 3.0)
    world.stopped(1, 0, 3.0)
    outcome = world.outcome(3.0)
    assert (outcome.exit_code, outcome.signal, outcome.first_failed) == (0, INT, None)


def test_a_rank_that_was_stopped_in_order_is_no_failure() -> None:
    """Its machine need not be the one that was asked: the ranks agree to stop."""
    world = Supervisor([0, 1], stopped_code=75)
    assert world.stopped(1, 75, 1.0) == []
    assert world.deadline is None, "the other one may be saving"
    world.stopped(0, 75, 9.0)
    outcome = world.outcome(9.0)
    assert (outcome.exit_code, outcome.stopped, outcome.preempted, outcome.first_failed) == (75, True, True, None)
    failing = Supervisor([0, 1], stopped_code=75)
    failing.stopped(1, 75, 1.0)
    failing.stopped(0, 3, 1.1)
    assert (failing.outcome(2.0).exit_code, failing.outcome(2.0).stopped) == (3, False)
    foreign = Supervisor([0, 1])
    foreign.stopped(1, 75, 1.0)
    assert foreign.first_failed == 1


@pytest.mark.parametrize(("signum", "code"), [(INT, 130), (TERM, 143), (HUP, 129)])
def test_a_script_that_cannot_save_ends_with_the_signal_that_came(signum: int, code: int) -> None:
    world = Supervisor([0])
    world.asked(signum, 1.0)
    world.stopped(0, -15, 1.1)
    assert world.outcome(1.1).exit_code == code


def test_a_failing_save_after_ctrl_c_keeps_its_own_code() -> None:
    world = Supervisor([0, 1])
    world.asked(INT, 1.0)
    world.stopped(1, 7, 2.0)
    world.stopped(0, -15, 2.0)
    assert world.outcome(2.0).exit_code == 7


def test_ranks_that_fail_over_one_that_could_not_save_yet() -> None:
    world = Supervisor([0, 1])
    world.asked(TERM, 1.0)
    world.stopped(1, -15, 1.1)
    world.stopped(0, 1, 1.3)
    assert world.outcome(2.0).exit_code == 143


def test_second_ctrl_c_kills_now() -> None:
    world = Supervisor([0, 1])
    world.asked(INT, 1.0)
    assert sends(world.asked(INT, 1.5)) == [(KILL, (0, 1))]
    assert world.asked(INT, 1.6) == []
    world.stopped(0, -9, 1.7)
    world.stopped(1, -9, 1.7)
    assert world.outcome(1.7).exit_code == 130


def test_repeated_term_is_one_request() -> None:
    world = Supervisor([0])
    world.asked(TERM, 1.0)
    assert world.asked(TERM, 1.1) == []
    assert world.asked(HUP, 1.1) == []
    assert sends(world.asked(INT, 1.2)) == [(KILL, (0,))]


def test_ctrl_c_while_others_are_being_ended_after_a_failure() -> None:
    world = Supervisor([0, 1])
    world.stopped(1, 3, 1.0)
    assert sends(world.asked(INT, 1.5)) == [(KILL, (0,))]
    world.stopped(0, -9, 1.6)
    assert world.outcome(2.0).exit_code == 3


def test_grace_runs_out() -> None:
    world = Supervisor([0], grace=5)
    world.asked(TERM, 0.0)
    assert world.due(4.9) == []
    assert sends(world.due(5.0)) == [(KILL, (0,))]


def test_a_rank_that_survives_kill_is_given_up() -> None:
    world = Supervisor([0, 1], grace=5)
    world.asked(TERM, 0.0)
    world.stopped(0, 0, 1.0)
    world.due(5.0)
    last = world.due(5.0 + KILL_SECONDS)
    assert "rank 1 did not exit 10 s after SIGKILL" in words(last)
    assert world.finished
    outcome = world.outcome(15.0)
    assert outcome.codes == {0: 0, 1: None}
    assert outcome.exit_code == 143


def test_ending_names_signals() -> None:
    assert str(ending(-9)) == "signal SIGKILL"
    assert str(ending(-64)) == "signal 64"
    assert str(ending(3)) == "exit code 3"


def test_a_run_of_weeks_keeps_the_last_slow_ranks() -> None:
    world = Supervisor([0, 1])
    for seconds in range(250):
        world.late(Straggler(rank=1, share=0.5, seconds=seconds, place="train.py:3"))
    kept = [said["seconds"] for said in world.outcome(1.0).stragglers]
    assert kept == list(range(150, 250))
