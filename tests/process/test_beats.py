"""Ranks beat once a second: a slow one is named while the run goes on, and every machine watches its own ranks."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience
from test_hangs import hanging
from test_launch import latest, launch, project, read
from test_ranks import gone

from trainwiz.process.heartbeats import Heartbeats, Straggler
from trainwiz.process.stacks import Stacks
from trainwiz.process.watch import Resumed, Stall, Watch, Watching


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def history(folder: Path, *looks: tuple[tuple[int, int, int], ...], ranks: int = 2, window: float = 10) -> Heartbeats:
    """Each entry: for each rank its looks, waits and moves, ten seconds after the entry before."""
    beats = Heartbeats(folder, range(ranks), window)
    for n, entry in enumerate(looks):
        for rank, counts in enumerate(entry):
            (folder / f"rank-{rank}.beat").write_text(" ".join(map(str, counts)) + f" load, data.py:{rank}  ")
        beats.read(10.0 * n)
        if n and beats.due(10.0 * n):
            found = beats.straggler(moving=True)
            if found:
                (folder / "found").write_text(json.dumps(found.to_dict()))
    return beats


def found(folder: Path) -> dict[str, object] | None:
    file = folder / "found"
    return json.loads(file.read_text()) if file.exists() else None


EVEN = [((10 * n, 4 * n, 9 * n), (10 * n, 3 * n, 9 * n)) for n in range(5)]
SLOW = [((10 * n, 6 * n, 9 * n), (10 * n, 0, 9 * n)) for n in range(5)]


def test_ranks_that_wait_for_each_other_now_and_then_are_fine(tmp_path: Path) -> None:
    history(tmp_path, *EVEN)
    assert found(tmp_path) is None


def test_one_that_never_waits_while_the_others_do_is_named_after_two_windows(tmp_path: Path) -> None:
    history(tmp_path, *SLOW[:2])
    assert found(tmp_path) is None
    history(tmp_path, *SLOW)
    assert found(tmp_path) == {"rank": 1, "share": 0.6, "seconds": 20, "place": "load, data.py:1"}


def test_one_window_alone_is_an_evaluation(tmp_path: Path) -> None:
    history(tmp_path, *SLOW[:2], *[((10 * n, 8 * n - 2, 9 * n), (10 * n, 7 * n - 7, 9 * n)) for n in range(2, 5)])
    assert found(tmp_path) is None


def test_one_that_does_not_move_hangs_and_is_not_slow(tmp_path: Path) -> None:
    history(tmp_path, *[((10 * n, 6 * n, 9 * n), (10 * n, 0, 1)) for n in range(5)])
    assert found(tmp_path) is None


def test_nobody_is_named_where_a_rank_does_not_beat(tmp_path: Path) -> None:
    silent = [((10 * n, 6 * n, 9 * n), (2 * n, 0, n)) for n in range(5)]
    history(tmp_path, *silent)
    assert found(tmp_path) is None


def test_a_torn_beat_is_no_beat(tmp_path: Path) -> None:
    (tmp_path / "rank-0.beat").write_text("3 x")
    assert not Heartbeats(tmp_path, [0], 10).read(0.0)


@pytest.mark.waits
@pytest.mark.parametrize("slow", [True, False])
def test_a_rank_that_is_alive_but_slow_is_named_while_it_trains(tmp_path: Path, slow: bool) -> None:
    folder = hanging(tmp_path, length=220 if slow else 200)
    script = folder / "train.py"
    late = "    if rank == '1': time.sleep(0.09)\n" if slow else "    time.sleep(0.03)\n"
    script.write_text(
        script.read_text().replace("def load_batch(n):\n", "def load_batch(n):\n" + late).replace("(0.06)", "(0.01)")
    )
    done = launch(folder, "--hang-limit", "8")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "is slow" in line]
    stragglers = read(folder, "outcome")["stragglers"]
    if not slow:
        assert (told, stragglers) == ([], [])
        return
    assert len(told) == 1, done.stderr
    assert re.match(r"rank 1 is slow: over the last \d\d s", told[0])
    assert "the other ranks waited for it" in told[0]
    assert "mostly in load_batch, train.py:" in told[0]
    assert [s["rank"] for s in stragglers] == [1]  # type: ignore[union-attr]


@pytest.mark.waits
def test_a_beat_belongs_to_the_rank_and_not_to_what_it_starts(tmp_path: Path) -> None:
    script = "import subprocess; subprocess.run([sys.executable, '-c', 'import time; time.sleep(2.5)']); time.sleep(1)"
    folder = project(tmp_path / "p", script, ranks=1)
    began = time.monotonic()
    assert launch(folder).returncode == 0
    looks, waits, moves, place = (latest(folder) / "logs" / "rank-0.beat").read_text().split(" ", 3)
    assert 2 <= int(looks) <= max(4, time.monotonic() - began)  # one a second
    assert (waits, place.strip()) == ("0", "<module>, train.py:3")
    assert int(moves) >= 1


LIVE = """
import os, sys, time
sys.path.insert(0, "torch/distributed")
from collective import all_reduce
for n in range(10**6):
    if os.path.exists("hang") and os.environ["RANK"] == "3": time.sleep(600)
    all_reduce(n)
    time.sleep(0.05)
"""


@pytest.mark.waits
def test_another_machine_watches_its_own_ranks_by_their_beats(tmp_path: Path) -> None:
    """Ranks 2 and 3 as on machine 1: they write nothing and no metrics; then rank 3 hangs."""
    from test_hangs import COLLECTIVE

    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "distributed" / "collective.py").write_text(COLLECTIVE)
    (tmp_path / "live.py").write_text(LIVE)
    stacks = Stacks(tmp_path)
    ranks = [
        subprocess.Popen(
            [sys.executable, "live.py"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            env=stacks.environ({**os.environ, "RANK": str(rank), "PYTHONPATH": ""}, rank),
        )
        for rank in (2, 3)
    ]
    heard: list[Stall | Resumed | Straggler] = []
    (tmp_path / "rank-0.beat").touch()
    os.utime(tmp_path / "rank-0.beat", (0, 0))
    watching = Watching(
        files=list,
        metrics=tmp_path / "metrics.jsonl",
        stacks=tmp_path,
        ranks=(2, 3),
        floor=3.0,
        stop=True,
        machine=1,
        others={0: (0, 1), 2: (4, 5)},
    )
    watch = Watch(watching, lambda: {2: None, 3: None}, heard.append)
    try:
        time.sleep(10)  # silent, but alive: longer than three times the limit
        assert heard == []
        (tmp_path / "hang").touch()
        until = time.monotonic() + 150 * patience()
        while not heard and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(4)
    finally:
        watch.close()
        for process in ranks:
            process.kill()
            process.communicate()
    assert all(gone(process.pid) for process in ranks)
    [stall] = heard  # told once, and never ended from here: machine 0 alone sees whether the training comes on
    assert isinstance(stall, Stall)
    said = "; ".join(map(str, stall.verdict.sentences))
    assert (stall.machine, stall.stop, stall.verdict.suspects) == (1, False, (3,))
    assert "rank 2 is waiting in all_reduce, called at live.py:7" in said
    assert "rank 3 is sleeping in <module>, live.py:6" in said
    assert "the other ranks are waiting for rank 3" in said
    assert "machine 0 has shown no sign of life since " in said
    assert "machine 2" not in said, "nothing was ever seen of it: its folder may be another one"
