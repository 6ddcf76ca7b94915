"""What a run's records say of where it came from, and what they must never say."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plans import completed

from trainwiz.probe import code
from trainwiz.store import liveness, plans, runs
from trainwiz.workflows import bug_report
from trainwiz.workflows.launch import metrics

TRAINWIZ = [sys.executable, "-m", "trainwiz"]
PLAN = """\
machine: {num_processes: 1}  # yours: your answer
batch:
  real_batch_size: 8  # yours: <b>bold</b>
  per_device_batch_size: 8
  gradient_accumulation_steps: 1
data:
  train: https://anna:CANARY-url@example.org/data.jsonl  # default: CANARY-wandb is no reason
"""
CANARIES = {
    "HF_TOKEN": "CANARY-hf-token",
    "WANDB_API_KEY": "CANARY-wandb",
    "AWS_ACCESS_KEY_ID": "CANARY-aws-id",
    "AWS_SECRET_ACCESS_KEY": "CANARY-aws-secret",
    "AWS_SESSION_TOKEN": "CANARY-aws-session",
    "SLURM_JWT": "CANARY-slurm",
    "NCCL_PASSWORD": "CANARY-nccl",
    "MY_DATABASE": "postgres://anna:CANARY-database@host/db",
    "PRIVATE_NOTE": "CANARY-unlisted",
    "LD_LIBRARY_PATH": "/opt/hf_CANARYshape123",
    **{
        name: f"CANARY-{name.lower()}"
        for name in (
            *(
                "HF_BEARER",
                "NCCL_AUTH_STRING",
                "NCCL_FUTURE",
                "ACCELERATE_KEY",
                "CUDA_PASS",
                "TORCH_PWD",
                "TRITON_SECRET",
            ),
            *("SLURM_MY_KEY", "SKYPILOT_API_KEY", "UCX_SESSION", "XLA_DSN", "HF_PASSPHRASE", "OMP_COOKIE", "DS_SAS"),
            *(
                "OPENAI_API_KEY",
                "ANTHROPIC_AUTH",
                "GITHUB_TOKEN",
                "DB_PASSWORD",
                "AZURE_STORAGE_KEY",
                "MLFLOW_PASSWORD",
            ),
        )
    },
}
SECRET_ARGUMENTS = ["--token=CANARY-option", "--api-key", "CANARY-next", "--hub", "hf_CANARYvalue456", "--lr", "1e-4"]
SECRET_ARGUMENTS += ["--db_password", "CANARY-db", "--wandb-key=CANARY-wandbkey", "--hub_bearer", "CANARY-hubbearer"]
SAID = (
    "hf_CANARYsaid12345",
    "sk-CANARYsaid12345",
    "sk-proj-CANARY_said-12345",
    "ghp_CANARYsaid12345678",
    "github_pat_CANARYsaid123",
    "glpat-CANARYsaid1234",
    "xoxb-1234-CANARYsaid",
    "npm_CANARYsaid1234",
    "nvapi-CANARYsaid1234",
    "gsk_CANARYsaid1234",
    "wandb_v1_CANARYsaid1234",
    "AKIACANARYSAID123456",
    "ASIACANARYSAID123456",
    "ya29.CANARYsaid12345678",
    "AIzaCANARY" + "a" * 29,
    "eyJCANARYsaid.eyJzdWIiOiIx.c2ln",
    "Authorization: Bearer CANARY.said.123456",
    "Authorization: Basic CANARYsaid",
    "https://anna:CANARY-pass@example.org/x",
    "redis://:CANARY-redis@cache:6379/0",
    "https://example.org/x?sig=CANARYsaid&sv=1",
    "https://example.org/x?access_token=CANARYsaid",
    "https://bucket/x?X-Amz-Signature=CANARYsaid",
    "password=CANARYsaid",
    '{"api_key": "CANARYsaid"}',
    "AWS_SECRET_ACCESS_KEY=CANARYsaid",
    "hub_token: CANARYsaid",
    "-----BEGIN PRIVATE KEY-----\nCANARYsaid\n-----END PRIVATE KEY-----",
)
"""What a script, or a library that it uses, prints."""


def project(folder: Path, script: str) -> Path:
    folder.mkdir()
    (folder / "trainwiz.yaml").write_text(completed(PLAN))
    (folder / "train.py").write_text(script)
    return folder


def run(folder: Path, *words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    state = {"XDG_STATE_HOME": str(folder.parent / "state"), "XDG_CACHE_HOME": str(folder.parent / "cache")}
    return subprocess.run(
        [*TRAINWIZ, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TRAINWIZ_LANG": "en", **state, **(environ or {})},
    )


def record(folder: Path, name: str) -> dict[str, Any]:
    value = json.loads((folder / "runs" / "latest" / f"{name}.json").read_text())
    assert isinstance(value, dict)
    return value


def git(folder: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with canaries everywhere, whose script dies with its secrets on the tongue."""
    folder = project(
        tmp_path_factory.mktemp("canaries") / "p",
        "import os, sys\n"
        "assert os.environ['PRIVATE_NOTE'] and '--token=CANARY-option' in sys.argv, 'they reach the script'\n"
        "print('x' * 10)\n"
        f"print(*{SAID!r}, sep='\\nERROR ')\n"
        f"for name in {[*CANARIES][:7]!r}: print('warning:', os.environ[name])\n"
        "raise ValueError(sys.argv[3:], os.environ['HF_TOKEN'])\n",
    )
    git(folder, "init", "-q", "-b", "trunk")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    done = run(folder, "launch", "--ignore", "TW", "--", *SECRET_ARGUMENTS, environ=CANARIES)
    assert done.returncode == 1, done.stderr
    # No terminal shows it: it may be the log of a job, which stays.
    assert "CANARY" not in done.stdout + done.stderr
    log = (folder / "runs" / "latest" / "logs" / "rank-0.log").read_text()
    assert log.count("***") > len(SAID), "it was said, and hidden"
    return folder, done.stderr


def test_no_canary_is_in_anything_that_was_written(failed: tuple[Path, str]) -> None:
    folder, _ = failed
    assert len(CANARIES) + len(SAID) + sum("CANARY" in word for word in SECRET_ARGUMENTS) >= 60
    run(folder, "report", "--output", "report.html", environ=CANARIES)
    commands = (
        ["logs"],
        ["diagnose"],
        ["diagnose", "--json"],
        ["runs", "--json"],
        ["watch"],
        ["diff", "latest", max(each.name for each in (folder / "runs").glob("2*"))],
    )
    for words in commands:
        done = run(folder, *words)
        assert done.returncode in (0, 1), done.stderr
        assert "CANARY" not in done.stdout + done.stderr, words
    ours = {folder / "trainwiz.yaml", folder / "train.py"}
    looked_at = set()
    for file in (f for f in folder.parent.rglob("*") if f.is_file() and ".git" not in f.parts):
        if file not in ours:
            assert b"CANARY" not in file.read_bytes(), file
            looked_at.add(file.name)
    assert {"command.json", "outcome.json", "plan.yaml", "rank-0.log", "report.html"} <= looked_at


def test_a_run_is_for_its_user_only_unless_its_folder_is_marked_for_a_group(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "")
    for mode, expected in ((0o755, 0o700), (0o2775, 0o755)):
        (folder / "runs").mkdir(exist_ok=True)
        (folder / "runs").chmod(mode)
        made = runs.create(folder)
        assert stat.S_IMODE(made.folder.stat().st_mode) & 0o777 == expected & ~umask()


def umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before


def test_the_record_says_where_the_run_came_from(failed: tuple[Path, str]) -> None:
    folder, _ = failed
    command = record(folder, "command")
    assert command["plan"]["batch"]["real_batch_size"] == 8
    assert command["plan"]["data"]["train"] == "https://***@example.org/data.jsonl"
    assert command["plan_hash"] == plans.read(folder / "trainwiz.yaml").digest()
    given = command["argv"].index("--token=***")
    assert command["argv"][given : given + 7] == ["--token=***", "--api-key", "***", "--hub", "***", "--lr", "1e-4"]
    assert command["machine"]["usable_cores"] >= 1
    assert command["machine"]["memory_bytes"] > 1 << 28
    assert command["inherited"]["HF_TOKEN"] == command["inherited"]["NCCL_PASSWORD"] == "***"
    assert "PRIVATE_NOTE" not in command["inherited"]
    assert (command["git"]["branch"], len(command["git"]["commit"])) == ("trunk", 40)
    assert "trainwiz.yaml" in command["git"]["changed"]
    assert "runs/" not in command["git"]["changed"]
    assert isinstance(command["pid_birth"], int)
    assert "# yours: <b>bold</b>" in (folder / "runs" / "latest" / "plan.yaml").read_text()


def test_the_outcome_keeps_the_diagnosis(failed: tuple[Path, str]) -> None:
    folder, shown = failed
    outcome = record(folder, "outcome")
    diagnosis = outcome["diagnosis"]
    assert diagnosis["how"]["text"] == "rank 0 failed first with exit code 1"
    assert diagnosis["how"]["values"] == {"rank": 0, "code": 1}
    assert diagnosis["how"]["text"] in shown
    assert diagnosis["exception"].startswith("ValueError")
    assert "***" in diagnosis["exception"]
    assert any("ValueError" in line and "***" in line for line in diagnosis["last_lines"])
    assert outcome["peak_rank_bytes"] is None or outcome["peak_rank_bytes"] > 5e6
    assert outcome["ended"] >= record(folder, "command")["started"]


def test_a_bug_report_holds_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trainwiz", "launch", "--", "--token=CANARY-option"])
    monkeypatch.setenv("HF_TOKEN", "CANARY-hf-token")
    try:
        raise KeyError("CANARY-hf-token", "CANARY-option", "https://anna:CANARY-url@host/x")
    except KeyError as error:
        file = Path(bug_report.write(error))
    try:
        text = file.read_text()
    finally:
        file.unlink()
    assert "KeyError" in text
    assert "--token=***" in text
    assert "CANARY" not in text
    assert "CANARY" not in capsys.readouterr().err


def test_git_is_asked_in_every_state(tmp_path: Path) -> None:
    assert "not a git repository" in str(code.state(str(tmp_path)).problem)
    assert "nothing-here" in str(code.state(str(tmp_path), git="nothing-here").problem)
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "训练 1.py").write_text("1")
    fresh = code.state(str(tmp_path))
    assert (fresh.commit, fresh.branch, fresh.dirty, fresh.changed) == (None, "trunk", 1, ("训练 1.py",))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = code.state(str(tmp_path))
    assert (len(clean.commit or ""), clean.dirty, clean.problem) == (40, 0, None)
    # What trainwiz itself writes beside a script makes nobody's code differ.
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "command.json").write_text("{}")
    assert code.state(str(tmp_path)).changed == ("runs/",)
    assert (code.state(str(tmp_path), without="runs").dirty, code.state(str(tmp_path / "runs")).dirty) == (0, 1)
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "训练 1.py").write_text("2")
    git(tmp_path, "checkout", "-q", "--detach")
    changed = code.state(str(tmp_path))
    assert (changed.branch, changed.changed) == (None, ("训练 1.py",))


def test_git_that_does_not_answer_is_left_alone(tmp_path: Path) -> None:
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    assert code.state(str(tmp_path), git=str(slow), timeout=0.3).problem == "no answer within 0.3 s"


def test_reasons_are_the_comments_behind_the_values() -> None:
    reasons = plans.reasons(PLAN)
    assert reasons["batch.real_batch_size"] == "yours: <b>bold</b>"
    assert "batch.per_device_batch_size" not in reasons
    assert plans.reasons("{torn") == plans.reasons("- a") == plans.reasons("") == {}
    assert plans.reasons("a:\n  b: 'x # y'  # why\nc: [1,\n  2] # no\n") == {"a.b": "why"}


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = {"pid": os.getpid(), "hostname": os.uname().nodename, "pid_birth": liveness.start_ticks(os.getpid())}
    assert liveness.is_running(me) is True
    assert liveness.is_running({**me, "pid_birth": 1}) is False
    assert liveness.is_running({**me, "hostname": "elsewhere"}) is None
    assert liveness.is_running({}) is False
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        while liveness.start_ticks(ended.pid) is not None:
            pass  # it becomes a zombie, which nobody has waited for
        assert liveness.is_running({**me, "pid": ended.pid}) is False


def test_the_peak_is_that_of_the_children_since() -> None:
    program = "x = b'1' * 400_000_000"
    peak = metrics.Peak()
    subprocess.run([sys.executable, "-c", program], check=True)
    held = peak.bytes()
    assert held is None or 400e6 < held < 600e6
    assert metrics.Peak().bytes() is None
