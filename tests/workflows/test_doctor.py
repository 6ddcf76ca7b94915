"""`trainwiz doctor` as a person starts it: table, JSON, exit codes, options that do not go together."""

import dataclasses
import json
import os
import re
import sys
import time
import venv
from pathlib import Path
from typing import Any

import forked
import pexpect
import pytest
import warm
import yaml
from patience import patience
from plans import completed

from trainwiz.checkup import Line
from trainwiz.finding import Level
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.process.capture import Captured, capture
from trainwiz.store import calibration, machines
from trainwiz.surroundings import Comm
from trainwiz.ui import doctor as checklist
from trainwiz.workflows import doctor as command

FIXTURES = Path(__file__).parents[1] / "machines"
TRAINWIZ = [sys.executable, "-m", "trainwiz"]


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRAINWIZ_LANG", "en")


def doctor(*arguments: str, cwd: Path | None = None, **environ: str) -> Captured:
    done = forked.run(["doctor", *arguments], timeout=120, cwd=cwd, env={**os.environ, **environ})
    return Captured(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment without torch: quick to look at, and nothing trains there."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    return str(folder / "bin/python")


def lines(ended: Captured) -> dict[str, dict[str, Any]]:
    return {line["subject"]: line for line in json.loads(ended.stdout)["lines"]}


def test_this_environment_can_train_and_its_ranks_can_talk(tmp_path: Path) -> None:
    ended = doctor("--json", "--comm", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert values["errors"] == 0
    found = lines(ended)
    for subject in (
        "python",
        "torch",
        "accelerate",
        "deepspeed",
        "transformers",
        "gpus",
        "collectives",
        "memory",
        "shm",
        "open_files",
        "memlock",
        "disk",
        "compiler",
        "nvcc",
        "ninja",
        "ops",
        "port",
        "hub",
        "hf_home",
        "torch_extensions_dir",
        "interfaces",
        "comm",
    ):
        assert subject in found, subject
    assert "bus bandwidth" in found["comm"]["found"]
    assert "HF_HUB_OFFLINE is set" in found["hub"]["found"]
    # What it prints is a machine for any other command.
    (tmp_path / "box.json").write_text(ended.stdout)
    machine = machines.read(tmp_path / "box.json")
    assert machine.interpreter
    assert machine.interpreter.version("torch") in found["torch"]["found"]


@pytest.mark.parametrize(
    ("name", "code"), [("8xh100", 0), ("4xa100-40g", 0), ("2xrtx4090", 0), ("1xt4", 0), ("8xv100", 0), ("cpu", 0)]
)
def test_a_machine_from_a_file_is_judged_without_looking_at_this_one(name: str, code: int) -> None:
    ended = doctor("--machine", str(FIXTURES / f"{name}.json"), "--json")
    assert ended.code == code
    assert not {"port", "hub", "ops", "comm", "hf_home"} & set(lines(ended))


def test_a_machine_that_is_only_named_gets_no_verdict() -> None:
    ended = doctor("--machine", "8xH100")
    assert ended.code == 0
    assert "8 × H100 (80.0 GiB, compute capability 9.0)" in ended.stdout
    rows = ended.stdout.splitlines()
    assert rows[-1] == "no verdict: only the GPUs of that machine are known"
    assert not re.search(r"memory +|compiler|training can run|ninja", ended.stdout)
    values = json.loads(doctor("--machine", "8xH100", "--json").stdout)
    assert [line["subject"] for line in values["lines"]] == ["gpus", "unknown"]
    assert len(values["machine"]["gpus"]) == 8
    assert "these are 2 machines" in doctor("--machine", "16xH100").stderr
    assert "not a known GPU" in doctor("--machine", "8xNONE").stderr


def test_an_environment_without_torch_stops_a_training_and_says_what_to_type(bare: str, tmp_path: Path) -> None:
    ended = doctor("--python", bare, cwd=tmp_path)
    assert ended.code == 1
    rows = ended.stdout.splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("✗  torch"))
    assert "torch is not installed" in rows[at]
    assert "TW102" in rows[at]
    assert "pip install" in " ".join(rows[at + 1 : at + 3])
    assert rows[-1].startswith("errors: ")
    assert sum("torch is not installed" in row for row in rows) == 1, "nothing is said twice"
    assert all(row == row.rstrip() and "\x1b" not in row for row in rows)


@pytest.mark.parametrize("python", ["/no/such/python", "/etc/passwd", "/bin/true"])
def test_a_python_that_is_none_is_a_finding(python: str, tmp_path: Path) -> None:
    ended = doctor("--python", python, "--json", cwd=tmp_path)
    assert ended.code == 1
    assert lines(ended)["python"]["level"] == "error"
    assert python in lines(ended)["python"]["found"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--machine", "/no/such.json"], "No such file"),
        (["--machine", str(FIXTURES / "cpu.json"), "--comm"], "--comm checks this machine"),
        (["--machine", str(FIXTURES / "cpu.json"), "--python", "x"], "--python checks this machine"),
        (["/no/such/folder"], "folder /no/such/folder does not exist"),
        ([__file__], "test_doctor.py is a file"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_use_is_exit_2_in_one_message(arguments: list[str], words: str) -> None:
    ended = doctor(*arguments)
    assert ended.code == 2
    assert words in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


def plan(folder: Path, **sections: Any) -> None:
    (folder / "trainwiz.yaml").write_text(completed(yaml.safe_dump(sections)))


@pytest.mark.parametrize(("ranks", "kept"), [(8, 200e9 * 7 / 4), (4, None)])
def test_what_all_gpus_reach_is_kept_for_forecasts(
    ranks: int,
    kept: float | None,
    bare: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = dataclasses.replace(machines.read(FIXTURES / "8xh100.json"), bus_bandwidth=None, probed=True)
    measured = Comm(world=ranks, backend="nccl", size_bytes=2 * 10**9, seconds=0.01, correct=True)
    monkeypatch.setattr(command, "_all_reduce", lambda *_: measured)
    monkeypatch.setattr(command.facts, "machine", lambda **_: here)
    command.examine(str(tmp_path), machine_file=None, python=bare, with_all_reduce=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["machine"]["bus_bandwidth"] == kept
    assert calibration.bus_bandwidth(here) == kept


def test_comm_runs_the_planned_ranks(bare: str, tmp_path: Path) -> None:
    plan(tmp_path, machine={"device": "cuda", "num_processes": 8, "main_process_port": 29876})
    found = lines(doctor("--comm", "--json", "--python", warm.python(), cwd=tmp_path))
    assert found["comm"]["level"] == "error"
    assert "GPUs planned on this machine: 8, found: 0" in found["comm"]["found"]
    assert found["port"]["title"] == "port 29876"
    without = lines(doctor("--comm", "--json", "--python", bare, cwd=tmp_path))
    assert "the interpreter has no working torch" in without["comm"]["found"]


def test_a_broken_plan_stops_only_what_needs_it(bare: str, tmp_path: Path) -> None:
    plan(tmp_path, machine={"num_processes": 2})
    file = tmp_path / "trainwiz.yaml"
    file.write_text(file.read_text().replace("num_processes: 2", "num_processes: many"))
    assert lines(doctor("--json", "--python", bare, cwd=tmp_path))["port"]["title"] == "port 29500"
    ended = doctor("--json", "--python", bare, "--comm", cwd=tmp_path)
    assert (ended.code, "machine.num_processes" in ended.stderr) == (2, True)


def test_a_stale_build_lock_stops_a_training(bare: str, tmp_path: Path) -> None:
    lock = tmp_path / "ext" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    os.utime(lock, (1, 1))
    found = lines(doctor("--json", "--python", bare, cwd=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext")))
    assert (found["lock"]["level"], found["lock"]["fix"]) == ("error", f"rm {lock}")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_a_real_terminal(columns: int, bare: str, tmp_path: Path) -> None:
    child = pexpect.spawn(
        TRAINWIZ[0],
        [*TRAINWIZ[1:], "doctor", "--python", bare],
        dimensions=(60, columns),
        encoding="utf-8",
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": ""},
        timeout=180,
        cwd=str(tmp_path),
    )
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 1
    assert "\x1b[" in child.before, "color on a terminal"
    rows = re.sub(r"\x1b\[[0-9;]*m", "", child.before).splitlines()
    assert any(row.startswith("✗  torch") for row in rows)
    # A path stays in one piece, so that it can be copied.
    paths = [row for row in rows if any(len(word) > 40 for word in row.split())]
    assert max(len(row) for row in rows if row not in paths and not row.startswith("checking")) <= columns


def test_a_reader_that_leaves_is_no_bug(bare: str, tmp_path: Path) -> None:
    ended = capture(
        ["sh", "-c", f"{' '.join(TRAINWIZ)} doctor --python {bare} | head -1"], timeout=180, cwd=str(tmp_path)
    )
    assert "bug" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_ctrl_c_ends_it_and_all_it_started(tmp_path: Path) -> None:
    child = pexpect.spawn(
        TRAINWIZ[0],
        [*TRAINWIZ[1:], "doctor"],
        dimensions=(60, 100),
        encoding="utf-8",
        timeout=180,
        cwd=str(tmp_path),
        env={**os.environ, "TRAINWIZ_TEST_MARK": str(tmp_path)},
    )
    child.expect("checking this machine")
    time.sleep(0.4)
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 130, child.before
    deadline = time.monotonic() + 60 * patience()
    while left(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(str(tmp_path)) == []


def left(mark: str) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TRAINWIZ_TEST_MARK={mark}".encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def test_lines_as_json() -> None:
    good = Line(subject="a", title="A", found=say("{n} things", n=3))
    bad = Line(subject="b", title=say("B"), found="data", level=Level.WARNING, fix=say("do"), rule="TW101")
    assert checklist.to_dict(good) == {
        "subject": "a",
        "title": "A",
        "found": "3 things",
        "level": "good",
        "fix": None,
        "rule": None,
    }
    assert (checklist.to_dict(bad)["level"], checklist.to_dict(bad)["rule"]) == ("warning", "TW101")
    assert checklist.count([good, bad, bad]) == (0, 2)


def test_brackets_in_findings_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    checklist.show([Line(subject="a", title="A", found="[red]not markup[/red] [Errno 2]")])
    assert "[red]not markup[/red] [Errno 2]" in capsys.readouterr().out


def test_an_empty_machine_is_judged(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(machines.to_dict(Machine())))
    assert doctor("--machine", str(tmp_path / "m.json")).code in (0, 1)
