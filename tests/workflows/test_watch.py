"""`trainwiz watch`: its parts, its frame at many sizes, and the real command in a real terminal."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pexpect
import pytest
from patience import patience
from test_history import NAMES, alive, record
from wcwidth import wcswidth

from trainwiz import language
from trainwiz.cli import run as trainwiz
from trainwiz.probe import ranks
from trainwiz.record.complaints import Complaint, complaints
from trainwiz.record.pace import Pace
from trainwiz.record.run import State, Summary
from trainwiz.store import history
from trainwiz.store.jsonl import JsonLines
from trainwiz.store.runs import Run
from trainwiz.ui.live import Progress
from trainwiz.ui.watch import View, frame
from trainwiz.workflows.watch import Watched

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    language.choose([], {})
    yield
    language.choose([], {})


# parts


def test_metrics_grow_and_are_cut_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = JsonLines(file)
    assert lines.new() == []
    file.write_text('{"update": 1}\n{"update": 2}\n{"upd')
    assert lines.new() == [{"update": 1}, {"update": 2}]
    assert lines.new() == []
    with file.open("a") as more:
        more.write('ate": 3}\nnonsense\n[]\n{"update": 4}\n')
    assert lines.new() == [{"update": 3}, {"update": 4}]
    assert not lines.rewritten
    # A restart from update 2, which has come further than before by the time that anybody looks.
    file.write_text("".join(f'{{"update": {u}}}\n' for u in (1, 2, *range(30, 50))))
    assert [r["update"] for r in lines.new()] == [1, 2, *range(30, 50)]
    assert lines.rewritten
    # A restart that has written less than there was.
    file.write_text('{"update": 1}\n')
    assert lines.new() == [{"update": 1}]
    file.unlink()
    assert lines.new() == []
    assert not lines.rewritten


def test_pace_is_that_of_what_was_seen() -> None:
    pace = Pace(before=7.0)
    assert pace.left(100, 0) is None
    pace.saw(0, 10)
    assert pace.left(100, 0) == 7.0 * 90
    for second in range(1, 11):
        pace.saw(second, 10 + 2 * second)
    assert pace.left(100, 10) == 35
    assert pace.left(100, 13) == 32
    assert pace.left(100, 999) == 0
    pace.saw(20, 15)
    assert pace.left(25, 20) == 70
    assert Pace().left(5, 0) is None


def test_the_pace_forgets_the_beginning() -> None:
    pace = Pace()
    for second in range(1000):
        pace.saw(second, second if second < 500 else 500 + (second - 500) * 10)
    assert pace.left(6490, 999) == pytest.approx(100)


def test_the_first_record_tells_of_all_updates_before_it(tmp_path: Path) -> None:
    began = datetime.now(timezone.utc) - timedelta(seconds=50)
    whole = record(
        tmp_path,
        NAMES[0],
        range(5, 6),
        total_updates=100,
        **{**alive(), "started": began.isoformat(timespec="seconds")},
    )
    left = Watched(whole).view().seconds_left
    assert left == pytest.approx(95 * 50 / 5, rel=0.2), "not as if 50 s had passed for one update"


def test_complaints_are_told_once_and_without_control_characters() -> None:
    tails = {
        0: "fine\n0 errors, no warnings\n2026-01-01 10:00:01 UserWarning: old API at 0x7f1\nerrorless\n",
        1: "2026-01-01 10:00:02 UserWarning: old API at 0x7f2\n\x1b[31mloss overflow\x1b[0m at 3\r50%\rRuntimeError: x",
    }
    found = complaints(tails, 3)
    assert [(c.text, c.ranks, c.times) for c in found] == [
        ("2026-01-01 10:00:02 UserWarning: old API at 0x7f2", (0, 1), 2),
        ("loss overflow at 3", (1,), 1),
        ("RuntimeError: x", (1,), 1),
    ]
    warned = "/x/site-packages/a/b.py:33: {}: is deprecated\n  warnings.warn(\n"
    assert complaints({0: warned.format("FutureWarning")}, 3) == []
    assert [c.times for c in complaints({0: warned.format("RuntimeWarning")}, 3)] == [1]
    assert complaints(tails, 1) == found[-1:]
    assert complaints(tails, 0) == complaints({}, 3) == []


def test_memory_is_counted_by_rank_with_its_helpers() -> None:
    hold = "import os, subprocess, sys, time; x = b'1' * 60_000_000; "
    helper = f"subprocess.Popen([sys.executable, '-c', {hold + 'time.sleep(60)'!r}]); time.sleep(60)"
    code = (
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        f"    subprocess.Popen([sys.executable, '-c', {hold!r} + ({helper!r} if rank == '1' else 'time.sleep(60)')],\n"
        "                     env={**os.environ, 'RANK': rank})\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "input()\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "RANK"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env=environ, start_new_session=True
    ) as launcher:
        try:
            held: Any = {}
            for _ in range(100):
                held = ranks.memory(launcher.pid, with_gpus=False)
                if held.keys() == {0, 1} and held[0].host > 60e6 and held[1].host > 120e6:
                    break
                time.sleep(0.1)
            assert held.keys() == {0, 1}
            assert 60e6 < held[0].host < 110e6
            assert 120e6 < held[1].host < 220e6
            assert held[0].gpu is None
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert ranks.memory(launcher.pid) == {}


# the frame

RECORDS = [{"update": u, "loss": 5.0 / u, "tokens_per_second": 1234.5, "eval_loss": 1.5} for u in range(1, 200)]


def view(ranks: int = 2, **changes: Any) -> View:
    values: dict[str, Any] = {
        "name": NAMES[0],
        "state": State.RUNNING,
        "started": "",
        "updates": 199,
        "total": 400,
        "loss": 0.0251,
        "eval_loss": 1.5,
        "speed": 1.0,
        "seconds": 3700.0,
        "why": None,
        "resumed_from": None,
        **changes,
    }
    return View(
        summary=Summary(**values),
        records=RECORDS,
        lowest_loss=0.02,
        seconds_left=3700.0,
        live=True,
        memory=dict.fromkeys(range(ranks), (5 * 2**29, 40 * 2**30)),
        complaints=[Complaint(text="UserWarning: " + "long " * 40, ranks=(0, 1, 2, 3, 4), times=9)],
    )


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (200, 60), (60, 12), (40, 6)])
def test_a_frame_keeps_to_its_size(width: int, height: int, lang: str) -> None:
    language.choose(["--lang", lang], {})
    for ranks_here in (0, 2, 16):
        lines = frame(view(ranks_here), width, height)
        assert len(lines) <= height
        assert all(wcswidth(line) <= width for line in lines), lines


def test_a_frame_says_it_all() -> None:
    lines = frame(view(), 80, 24)
    assert lines[0] == f"{NAMES[0]}  running  1:01:40"
    assert re.fullmatch(r"update 199/400  #+\.+  50%|update 199/400  █+░+  50%", lines[1])
    assert lines[2] == "loss 0.0251 (lowest 0.0200) · evaluation 1.5000 · 1,234 tokens/s · 1:01:40 left"
    assert "  rank 0: 2.5 GiB, GPU 40.0 GiB   rank 1: 2.5 GiB, GPU 40.0 GiB" in lines
    assert any(line.startswith("  [0,1,2,3…] ×9 UserWarning: long") for line in lines)
    assert lines[-1] == "q quits; the training continues"
    assert len(lines) == 24


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_narrow_frame_keeps_its_numbers_whole(lang: str) -> None:
    language.choose(["--lang", lang], {})
    held = dict.fromkeys(range(2), (123 * 2**30, 140 * 2**30))
    few = dataclasses.replace(view(), memory=held, most=dict.fromkeys(held, 456 * 2**30))
    many = dataclasses.replace(view(), memory=dict.fromkeys(range(64), held[0]))
    for shown, numbers in ((few, ("123 GiB", "456 GiB", "140 GiB")), (many, ("123 GiB", "140 GiB", "7.7 TiB"))):
        lines = frame(shown, 40, 24)
        assert all(wcswidth(line) <= 40 for line in lines), lines
        joined = re.sub(r"\s+", " ", " ".join(lines))
        assert all(number in joined for number in numbers), joined
    [warning] = [line for line in lines if "UserWarning" in line]
    assert warning.endswith("…")


def test_a_frame_says_how_the_gpus_are_used() -> None:
    use = {"mfu": 0.4137, "gpu_memory_peak_bytes": 60 * 2**30, "data_wait_share": 0.25}
    records = [{"update": u, "loss": 1.0, **use} for u in range(1, 20)]
    text = " · ".join(frame(dataclasses.replace(view(), records=records), 120, 24))
    assert "MFU 41.4% · GPU memory: at most 60.0 GiB · 25% of the time waiting for data · 1:01:40 left" in text
    records = [{**record, "data_wait_share": 0.001} for record in records]
    assert "waiting" not in " ".join(frame(dataclasses.replace(view(), records=records), 120, 24))
    line = Progress(lambda: [{"update": 3, **use}], 100).line()
    assert line == "update 3/100 · MFU 41.4% · GPU memory: at most 60.0 GiB · 25% of the time waiting for data"


def test_many_ranks_are_told_together() -> None:
    lines = frame(view(64), 80, 24)
    assert "  host: 2.5 GiB to 2.5 GiB per rank, 160 GiB for all 64" in lines
    assert "  GPU: 40.0 GiB to 40.0 GiB per rank, 2.5 TiB for all 64" in lines


def test_a_frame_of_a_run_that_has_not_begun() -> None:
    lines = frame(View(summary=view(updates=None, loss=None, eval_loss=None).summary, records=[]), 60, 24)
    assert lines[1:] == ["no metrics yet", ""]


def test_a_silent_start_says_where_it_is() -> None:
    summary = view(updates=None, loss=None, eval_loss=None).summary
    lines = frame(View(summary=summary, records=[], place="build_accelerator, train.py:126"), 60, 24)
    assert lines[1] == "no metrics yet; rank 0 is in build_accelerator, train.py:126"


@pytest.mark.parametrize("width", [30, 60])
def test_the_runs_name_stays_however_small_the_screen(width: int) -> None:
    for height in (3, 5, 8):
        lines = frame(view(16), width, height)
        assert lines[0].startswith(NAMES[0])
        assert lines[1].startswith("update 199/400")
        assert len(lines) <= height


@pytest.mark.parametrize("height", range(8, 20))
def test_no_heading_stands_alone_and_the_key_is_named(height: int) -> None:
    lines = frame(view(8), 40, height)
    headings = [at for at, line in enumerate(lines) if line in ("memory", "warnings in the logs")]
    assert all(lines[at + 1].startswith("  ") for at in headings), lines
    assert lines[-1] == "q quits; the training continues"
    assert bool(headings) == (height > 8)


@pytest.mark.parametrize(
    ("task", "says"),
    [("image_classification", "1,234 pictures/s"), ("text_regression", "1,234 samples/s"), ("sft", "1,234 tokens/s")],
)
def test_speed_is_in_what_the_task_counts(task: str, says: str) -> None:
    assert says in frame(view(task=task), 80, 24)[2]


# the command


@pytest.fixture
def project(tmp_path: Path) -> Path:
    run = record(tmp_path, NAMES[0], range(1, 40), total_updates=100, **alive())
    run.log(1).write_text("UserWarning: something is odd\n")
    return tmp_path


def start(project: Path, *words: str, width: int = 60) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", "watch", str(project), *words],
        dimensions=(24, width),
        timeout=180,
        encoding="utf-8",
        env={**os.environ, "TRAINWIZ_LANG": "en", "TERM": "xterm", "NO_COLOR": "1"},
    )


def finish(child: "pexpect.spawn[str]") -> str:
    """Wait for its end; what came since. The terminal must be as it was."""
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    return str(child.before)


def test_q_leaves_the_terminal_as_it_was(project: Path) -> None:
    child = start(project)
    before = termios.tcgetattr(child.fileno())
    child.expect_exact(ENTER)
    child.expect_exact("update 39/100")
    child.expect_exact("[1] UserWarning: something is odd")
    child.expect_exact("q quits")
    assert termios.tcgetattr(child.fileno())[3] != before[3]
    with history.find("latest", project).metrics.open("a") as file:
        file.write('00}\n{"update": 40, "loss": 0.125, "tokens_per_second": 777}\n')
    child.expect_exact("update 40/100")
    child.expect_exact("loss 0.1250")
    child.send("q")
    child.expect_exact(LEAVE)
    after = termios.tcgetattr(child.fileno())
    rest = finish(child)
    assert (rest, child.exitstatus, after) == ("", 0, before)


@pytest.mark.parametrize(("stop", "code"), [("ctrl-c", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_every_other_end_leaves_it_so_too(project: Path, stop: str | int, code: int) -> None:
    child = start(project)
    before = termios.tcgetattr(child.fileno())
    child.expect_exact("q quits")
    if isinstance(stop, str):
        child.sendintr()
    else:
        child.kill(stop)
    child.expect_exact("\x1b[?25h" + LEAVE)
    assert termios.tcgetattr(child.fileno()) == before
    assert "Traceback" not in finish(child)
    assert child.exitstatus == code


def test_it_pauses_and_goes_on(project: Path) -> None:
    child = start(project)
    child.expect_exact("q quits")
    child.send("\x1a")
    child.expect_exact(LEAVE)
    time.sleep(0.2)
    child.kill(signal.SIGCONT)
    child.expect_exact(ENTER)
    child.expect_exact("q quits")
    child.send("q")
    finish(child)
    assert child.exitstatus == 0


def test_it_ends_with_the_run_and_leaves_the_last_state_behind(project: Path) -> None:
    child = start(project)
    child.expect_exact("q quits")
    history.find("latest", project).record("outcome", {"exit_code": 0, "seconds": 12.0})
    child.expect_exact(LEAVE)
    rest = finish(child)
    assert "done  0:12" in rest
    assert "training completed" in rest
    assert "q quits" not in rest
    assert child.exitstatus == 0


def test_without_a_terminal_it_is_a_snapshot(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    assert trainwiz(["watch", str(project)]) == 0
    assert time.monotonic() - began < 60 * patience()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "update 39/100" in out
    assert "q quits" not in out
    record = project / "runs" / NAMES[0] / "command.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "job": {"scheduler": "slurm", "id": "17"}}))
    assert trainwiz(["watch", str(project), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["job"], told["updates"], told["total_updates"]) == (NAMES[0], "17", 39, 100)
    assert (told["newest"]["update"], told["place"]) == (39, None)
    assert trainwiz(["watch", str(project / "runs")]) == 2
    capsys.readouterr()
    monkeypatch.chdir(project)
    assert trainwiz(["watch", NAMES[0]]) == 0
    assert "update 39/100" in capsys.readouterr().out


def test_a_dumb_terminal_gets_a_snapshot(project: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", "watch", str(project)],
        timeout=180,
        encoding="utf-8",
        env={**os.environ, "TRAINWIZ_LANG": "en", "TERM": "dumb"},
    )
    shown = finish(child)
    assert "update 39/100" in shown
    assert "\x1b" not in shown


def test_a_finished_run_is_shown_and_left(project: Path) -> None:
    Run(project / "runs" / NAMES[0]).record("outcome", {"exit_code": 3, "seconds": 12.0})
    child = start(project)
    shown = finish(child)
    assert ENTER not in shown
    assert "exit code 3" in shown
    assert "what to do: trainwiz diagnose" in shown


def test_a_resumed_run_shows_the_whole_curve(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run(project / "runs" / NAMES[0]).record("outcome", {"exit_code": 3, "seconds": 12.0})
    record(project, NAMES[1], range(30, 61), resumed_from=NAMES[0], **alive())
    assert trainwiz(["watch", str(project)]) == 0
    axis = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"\s+1\s+60", line) for line in axis)
    assert json.loads((project / "runs" / NAMES[1] / "command.json").read_text())["resumed_from"] == NAMES[0]
