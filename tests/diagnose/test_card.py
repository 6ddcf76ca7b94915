"""`trainwiz diagnose` and the crash card: what a person sees, on a terminal of 80 columns and in a pipe."""

import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path

import forked
import pytest
from projects import Done, environment, make, trainwiz

from trainwiz import columns
from trainwiz.diagnose.diagnosis import Diagnosis
from trainwiz.message import say
from trainwiz.outcome import Outcome
from trainwiz.store.runs import Run, create
from trainwiz.ui.diagnosis import card
from trainwiz.workflows import diagnose as command

LOGS = Path(__file__).parents[1] / "logs"


def on_a_terminal(*arguments: str, width: int = 80, env: Mapping[str, str] | None = None) -> list[str]:
    """The lines that a terminal of this width gets."""
    outside, inside = pty.openpty()
    ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "trainwiz", *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env={**environment(), "NO_COLOR": "1", **(env or {})},
    )
    os.close(inside)
    said = b""
    try:
        while data := os.read(outside, 65536):
            said += data
    except OSError:
        pass
    os.close(outside)
    assert process.wait(timeout=180) == 0
    return said.decode().replace("\r", "").splitlines()


def run_folder(project: Path, outcome: Outcome | None, logs: Mapping[int, str]) -> Run:
    run = create(project)
    for rank, name in logs.items():
        run.log(rank).write_text((LOGS / f"{name}.log").read_text() if name else "step 1\n")
    if outcome:
        run.record("outcome", outcome.to_dict())
    return run


def diagnosed(*arguments: str, folder: Path, text: str | None = None) -> Done:
    done = forked.run(["diagnose", *arguments], cwd=folder, env=environment(), text=text or "")
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["cuda_memory", "unused_parameters", "hub_unreachable", "unknown--torchrun"])
def test_the_card_fits_80_columns(name: str, language: str) -> None:
    lines = on_a_terminal("diagnose", str(LOGS / f"{name}.log"), env={"TRAINWIZ_LANG": language})
    assert len(lines) > 6
    assert max(columns.width(line) for line in lines) <= 80, max(lines, key=columns.width)
    chinese = any("一" <= character <= "鿿" for character in "".join(lines))
    assert chinese == (language == "zh")


def test_the_card_says_who_why_where_and_what_to_do() -> None:
    done = trainwiz("diagnose", str(LOGS / "unused_parameters.log"))
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "rank 0 failed first with exit code 1"
    assert "cause: DDP is waiting for gradients of parameters that the loss does not use" in lines
    assert re.search(r"evidence: .*unused_parameters\.log, line \d+: RuntimeError: Expected to have", done.out)
    assert any(line.startswith("→ use their output") for line in lines)


def test_a_long_exception_can_be_read_whole_in_80_columns(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    words = "RuntimeError: " + " ".join(f"word{n}" for n in range(15))
    log.write_text(f'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    go()\n{words}\n')
    lines = on_a_terminal("diagnose", str(log))
    assert max(map(len, lines)) <= 80
    start = next(n for n, line in enumerate(lines) if line.startswith("evidence: "))
    assert "word14" in " ".join(lines[start:])
    log.write_text(log.read_text().replace(words, "RuntimeError: short"))
    assert not any(line.startswith("exception: ") for line in on_a_terminal("diagnose", str(log)))


def test_json_is_for_programs() -> None:
    told = json.loads(trainwiz("diagnose", "--json", str(LOGS / "deepspeed_batch.log")).out)
    assert (told["name"], told["known"], told["passing"]) == ("deepspeed_batch", True, False)
    assert told["evidence"][0].startswith("AssertionError: Check batch related parameters")
    assert json.loads(trainwiz("diagnose", "--json", str(LOGS / "good--plain.log")).out) is None


def test_a_pipe_is_diagnosed(tmp_path: Path) -> None:
    done = diagnosed("-", folder=tmp_path, text=(LOGS / "shape.log").read_text())
    assert "cause: shape mismatch: 2x3 and 4x5" in done.out


@pytest.mark.parametrize(
    ("target", "words", "remedy"),
    [
        ("nowhere.log", "log nowhere.log does not exist", ""),
        ("some/where", "log some/where does not exist", ""),
        ("/dev/zero", "/dev/zero is not a regular file", "trainwiz diagnose -"),
        ("core", "is not a text file", "pass the log"),
        ("latest", "no runs in", ""),
        ("2020-01-01_00-00-00-1", "no runs in", ""),
    ],
)
def test_what_cannot_be_diagnosed_is_said(tmp_path: Path, target: str, words: str, remedy: str) -> None:
    (tmp_path / "core").write_bytes(os.urandom(5000))
    done = diagnosed(target, folder=tmp_path)
    assert done.code == 2
    assert words in done.err
    assert remedy in done.err
    assert "Traceback" not in done.err


def test_a_log_without_a_failure_is_said_to_have_none() -> None:
    done = trainwiz("diagnose", str(LOGS / "good--warnings.log"))
    assert (done.code, "no failure found in" in done.out) == (0, True)


# --- runs


def test_the_newest_run_is_diagnosed_by_its_records(tmp_path: Path) -> None:
    outcome = Outcome(exit_code=1, codes={0: -15, 1: 1}, first_failed=1)
    run_folder(tmp_path, outcome, {0: "connection_lost", 1: "index_range"})
    done = diagnosed(folder=tmp_path)
    assert "rank 1 failed first with exit code 1" in done.out
    assert "ranks that ended as a result: 0" in done.out
    assert "an id exceeds the embedding" in done.out
    assert "logs/rank-1.log, line " in done.out


def test_ranks_behind_a_launcher_share_one_log(tmp_path: Path) -> None:
    run_folder(tmp_path, Outcome(exit_code=1, codes={1: 1}, first_failed=1), {0: "unknown--torchrun"})
    done = diagnosed(folder=tmp_path)
    assert "rank 1 failed first with exit code 1" in done.out
    assert "ValueError: the second rank is wrong" in done.out
    assert "the code at fails.py:5 stopped with this message" in done.out


def test_a_kill_for_memory_is_told_by_the_record(tmp_path: Path) -> None:
    outcome = Outcome(exit_code=137, codes={0: -signal.SIGKILL}, first_failed=0, observed={"oom_kills": 2})
    run = run_folder(tmp_path, outcome, {0: ""})
    done = diagnosed(run.name, folder=tmp_path)
    assert "the kernel killed the rank" in done.out
    assert "out-of-memory kills counted by the cgroup during the run: 2" in done.out


def test_a_run_whose_launcher_died_is_diagnosed_by_its_logs(tmp_path: Path) -> None:
    run = run_folder(tmp_path, None, {0: "connection_lost", 1: "", 2: "disk_full"})
    found, log = command.of_run(run, None)
    assert found is not None
    assert (found.name, found.rank, found.followed) == ("disk_full", 2, (0,))
    assert log.endswith("rank-2.log")


def test_the_fix_of_the_crash_card_is_shown_again_while_it_applies(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", {"strategy.kind": "single", "machine.num_processes": 1})
    run = run_folder(folder, Outcome(exit_code=1, codes={0: 1}, first_failed=0), {0: "cuda_memory"})
    micro = int(re.search(r"per_device_batch_size: (\d+)", (folder / "trainwiz.yaml").read_text())[1])  # type: ignore[index]
    change = {"batch.per_device_batch_size": {"from": micro, "to": 77}}
    seen = {"text": "seen", "template": "forecast: {n} GB", "values": {"n": 3}}
    told = {"name": "cuda_memory", "observed": [seen]}
    why = {"text": "why", "template": "the ranks then load the data themselves", "values": {}}
    record = {**run.read("outcome"), "diagnosis": told, "fix": {"changes": change, "why": why, "saves": None}}
    run.record("outcome", record)
    done = diagnosed(folder=folder)
    assert f"  batch.per_device_batch_size: {micro} → 77\napply it: trainwiz launch --apply-fix" in done.out
    assert "evidence: forecast: 3 GB" in done.out
    assert json.loads(diagnosed("--json", folder=folder).out)["fix"]["changes"] == change
    for broken in ({}, {"changes": 3}, {"changes": {"no.key": {"from": 1, "to": 2}}, "why": why}):
        run.record("outcome", {**record, "fix": broken})
        assert "apply it" not in diagnosed(folder=folder).out
    run.record("outcome", {**record, "fix": {"changes": {key: {"from": 99, "to": 77} for key in change}, "why": why}})
    assert "apply it" not in diagnosed(folder=folder).out  # somebody has changed the plan since


def test_a_run_that_hung_says_where_its_ranks_were(tmp_path: Path) -> None:
    stall = {"seconds": 31.0, "suspects": [1], "where": ["rank 1 in load_batch, 0 in all_reduce"]}
    run_folder(tmp_path, Outcome(exit_code=124, codes={0: -15, 1: -15}, hung=True, stalls=(stall,)), {0: "", 1: ""})
    done = diagnosed(folder=tmp_path)
    assert "no activity for 31.0 s" in done.out
    assert "rank 1 in load_batch, 0 in all_reduce" in done.out
    assert json.loads(diagnosed("--json", folder=tmp_path).out)["suspects"] == [1]


def test_a_run_that_ended_well_needs_none(tmp_path: Path) -> None:
    run = run_folder(tmp_path, Outcome(exit_code=0, codes={0: 0}), {0: ""})
    assert f"run {run.name} ended normally" in diagnosed(folder=tmp_path).out
    assert diagnosed("--json", folder=tmp_path).out.strip() == "null"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"exit_code": "x"}', '{"exit_code": 1, "ranks": {"a": 1}}'])
def test_a_torn_record_is_no_traceback(tmp_path: Path, text: str) -> None:
    run = run_folder(tmp_path, None, {0: "dtype"})
    (run.folder / "outcome.json").write_text(text)
    done = diagnosed(folder=tmp_path)
    assert "Traceback (most" not in done.err
    assert done.code == 0


@pytest.mark.parametrize(
    ("project", "said"),
    [("", "run: trainwiz launch --resume"), ("my chat", "run: trainwiz launch 'my chat' --resume")],
)
def test_what_is_suggested_is_a_launch_of_the_project(project: str, said: str) -> None:
    remedy = say("to continue, run: trainwiz launch --resume; or trainwiz launch --config FILE SCRIPT")
    diagnosis = Diagnosis(name="x", rank=0, how=say("rank 0 ended"), cause=say("x"), remedy=remedy, project=project)
    shown = " ".join(card(diagnosis, log="a.log", fix=None, stream=io.StringIO()))
    assert said in shown
    assert "or trainwiz launch --config FILE SCRIPT" in shown
