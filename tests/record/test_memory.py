"""What the ranks hold of memory over time: sampled by a launch, drawn in the report, told by watch."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_launch import TRAINWIZ, latest, launch, project
from test_watch import view

from trainwiz.probe import ranks
from trainwiz.process.stacks import INSIDE
from trainwiz.record import memory
from trainwiz.ui.watch import frame


@pytest.fixture(scope="module", autouse=True)
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def sample(at: float, *held: int, where: str = "host") -> dict[str, object]:
    return {"at": at, where: {str(rank): count for rank, count in enumerate(held)}}


def test_each_rank_has_a_curve_in_gib_over_the_time() -> None:
    samples = [sample(1000.0, 2**30, 2 * 2**30), sample(1060.0, 3 * 2**30), {"at": "torn"}, {"host": 3}]
    (first, one), (second, two) = memory.curves(samples, "host", 990.0)
    assert (str(first), str(second)) == ("rank 0", "rank 1")
    assert one == [(10.0, 1.0), (70.0, 3.0)]
    assert two == [(10.0, 2.0), (70.0, None)]
    assert memory.curves(samples, "gpu", None) == []
    assert memory.most(samples) == {0: 3 * 2**30, 1: 2 * 2**30}


def test_a_long_run_is_told_in_minutes_and_many_ranks_by_their_extremes() -> None:
    samples = [sample(at, *range(2**30, 9 * 2**30, 2**30), where="gpu") for at in (0.0, 600.0)]
    (most, high), (least, low) = memory.curves(samples, "gpu", None)
    assert (str(most), str(least)) == ("maximum over all ranks", "minimum over all ranks")
    assert (high, low) == ([(0.0, 8.0), (10.0, 8.0)], [(0.0, 1.0), (10.0, 1.0)])


def test_a_launch_samples_its_ranks_and_the_report_draws_them(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "held = bytearray(50_000_000)\ntime.sleep(7)\n")
    done = launch(folder)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (latest(folder) / "memory.jsonl").read_text().splitlines()]
    assert lines
    assert all(set(line["host"]) <= {"0", "1"} for line in lines)
    assert 50e6 < max(line["host"]["0"] for line in lines) < 300e6
    words = [*TRAINWIZ, "report", str(folder), "-o", str(tmp_path / "page.html")]
    subprocess.run(words, check=True, capture_output=True)
    page = (tmp_path / "page.html").read_text()
    assert "Host memory, GiB" in page
    assert "seconds since launch" in page
    assert "GPU memory" not in page


def test_watch_tells_the_most_that_was_ever_held() -> None:
    held = dataclasses.replace(view(), memory={0: (2**30, None), 1: (2 * 2**30, None)}, most={0: 3 * 2**30, 1: 2**30})
    text = "\n".join(frame(held, 100, 30))
    assert "rank 0: 1.0 GiB (peak: 3.0 GiB)" in text
    assert "rank 1: 2.0 GiB" in text
    assert "rank 1: 2.0 GiB (peak" not in text


def test_a_spare_that_waits_is_no_rank(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys
reading, writing = os.pipe()
for words in (["{INSIDE / "standby.py"}", str(reading), "train.py", "m"], ["-c", "import time; time.sleep(60)"]):
    subprocess.Popen([sys.executable, *words], env={{**os.environ, "RANK": str(len(words) % 2)}}, pass_fds=[reading],
                     stdout=open("said", "w+"))
input()
"""
    (tmp_path / "train.py").touch()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as launcher:
        try:
            time.sleep(1.5)
            seen = [set(ranks.memory(launcher.pid, with_gpus=False)) for _ in range(3)]
            assert seen[-1] == {0}, seen
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
