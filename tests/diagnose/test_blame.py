"""Who failed, where the first rank to end was only the first to notice."""

import pytest

from trainwiz.diagnose import blamed, read
from trainwiz.outcome import Outcome

LOST = """update 38
[rank0]: Traceback (most recent call last):
[rank0]:   File "/p/their.py", line 12, in <module>
[rank0]:     step(torch.randn(4, 8))
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6027.
terminate called without an active exception
"""
"""As rank 0 wrote it when rank 1 raised, with a full disk below both."""
RAISED = 'Traceback (most recent call last):\n  File "/p/their.py", line 9, in f\nValueError: the sky has fallen\n'
OUT_OF_MEMORY = RAISED.replace("ValueError: the sky has fallen", "torch.OutOfMemoryError: CUDA out of memory.")


def judged(codes: dict[int, int], logs: dict[int, str], **more: object) -> tuple[int | None, int]:
    first = 0
    outcome = Outcome(exit_code=134 if codes[0] == -6 else 1, codes=codes, first_failed=first, **more)  # type: ignore[arg-type]
    found = blamed(outcome, {rank: read(text) for rank, text in logs.items()})
    return found.first_failed, found.exit_code


@pytest.mark.parametrize("said", ["", "update 38\n", RAISED, OUT_OF_MEMORY])
def test_who_lost_a_peer_is_not_to_blame(said: str) -> None:
    assert judged({0: -6, 1: 1}, {0: LOST, 1: said}) == (1, 1)


def test_its_own_exit_code_is_the_launchers() -> None:
    assert judged({0: 1, 1: 42}, {0: LOST, 1: ""}) == (1, 42)
    assert judged({0: 1, 1: -11}, {0: LOST, 1: ""}) == (1, 139)
    assert judged({0: 1, 1: -9}, {0: LOST, 1: ""}) == (1, 137)  # by the kernel: trainwiz killed nobody


def test_who_was_taken_down_is_not_to_blame() -> None:
    assert judged({0: -6, 1: -15}, {0: LOST, 1: "update 38\n"}) == (0, 134)
    assert judged({0: -6, 1: -9}, {0: LOST, 1: "update 38\n"}, killed=(1,)) == (0, 134)
    assert judged({0: -6, 1: 0}, {0: LOST, 1: ""}) == (0, 134)


def test_who_raised_is_named_also_when_it_was_then_ended() -> None:
    assert judged({0: -6, 1: -15}, {0: LOST, 1: RAISED}) == (1, 134)


def test_where_all_lost_a_peer_the_first_to_end_stays() -> None:
    assert judged({0: -6, 1: 1}, {0: LOST, 1: LOST}) == (0, 134)


@pytest.mark.parametrize("own", [RAISED, OUT_OF_MEMORY, "", LOST + RAISED])
def test_who_failed_by_itself_first_stays(own: str) -> None:
    assert judged({0: 1, 1: 3}, {0: own, 1: RAISED}) == (0, 1)
