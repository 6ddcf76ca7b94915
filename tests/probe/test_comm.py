"""A real all-reduce over real processes, and every way it may fail."""

import os
import sys
import time
from pathlib import Path

import pytest
import warm
from engine_children.claimed import port
from patience import patience

from trainwiz.probe import comm
from trainwiz.process.capture import Running


def left(mark: Path) -> list[int]:
    """Processes that are still there of those that were started with this folder on their path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PYTHONPATH={mark}\0".encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def rank_program(folder: Path, source: str) -> str:
    """A Python whose torch is this module."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(source)
    return sys.executable


def test_two_ranks_add_up() -> None:
    found = comm.all_reduce(sys.executable, world=2, device="cpu", port=port())
    assert found.error == ""
    assert found.correct
    assert (found.world, found.backend, found.size_bytes) == (2, "gloo", comm.SIZE_BYTES["cpu"])
    assert found.seconds > 0
    assert found.bus_bandwidth == pytest.approx(found.size_bytes / found.seconds)


def test_a_failing_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    source = "import os, time\nif os.environ['RANK'] == '1': raise RuntimeError('no such device')\ntime.sleep(600)\n"
    python = rank_program(tmp_path, source)
    begin = time.monotonic()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = comm.all_reduce(python, world=3, device="cuda", port=port(), environ=environ)
    assert (found.error, found.backend) == ("rank 1: RuntimeError: no such device", "nccl")
    assert time.monotonic() - begin < 120 * patience()
    assert left(tmp_path) == []


def test_a_rank_that_lives_is_seen_by_this_test(tmp_path: Path) -> None:
    running = Running([sys.executable, "-c", "import time; time.sleep(60)"], env={"PYTHONPATH": str(tmp_path)})
    end = time.monotonic() + 90 * patience()
    while not left(tmp_path):  # a fork shows its parent's environment until it has become the program
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(left(tmp_path)) == 1
    running.cancel()
    assert left(tmp_path) == []


def test_ranks_that_hang_are_given_up(tmp_path: Path) -> None:
    python = rank_program(tmp_path, "import time; time.sleep(600)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = comm.all_reduce(python, world=2, device="cpu", port=port(), seconds=1, environ=environ)
    assert found.error == "no answer within 1 s"
    assert left(tmp_path) == []


def test_ranks_that_say_nothing(tmp_path: Path) -> None:
    python = rank_program(tmp_path, "import os; os._exit(0)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = comm.all_reduce(python, world=2, device="cpu", port=port(), environ=environ)
    assert found.error == "rank 0: exit code 0"


def test_no_python() -> None:
    found = comm.all_reduce("/no/such/python", world=2, device="cpu", port=port())
    assert found.error.startswith("rank 0: [Errno 2]")


WRONG = """
import os
exec(open({real!r}).read().replace("numbers.fill_(rank + 1)", "numbers.fill_(rank + 2)"))
"""


def test_a_wrong_sum_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "all_reduce.py"
    program.write_text(WRONG.format(real=str(comm._ALL_REDUCE)))
    monkeypatch.setattr(comm, "_ALL_REDUCE", program)
    found = comm.all_reduce(warm.python(), world=2, device="cpu", port=port())
    assert (found.correct, found.error) == (False, "")
