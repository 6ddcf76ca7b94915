"""`trainwiz submit`, `runs` and `stop`, with programs that answer as schedulers do."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwiz.cli import run
from trainwiz.store import liveness

RUN = "2026-01-31_10-22-05-1"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project for Slurm in the current folder, and a folder of programs before all others."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "it's mine").mkdir()
    monkeypatch.chdir(tmp_path / "it's mine")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    made = ["init", ".", "--defaults", "--yes", "--set", "cluster.kind=slurm", "--set", "machine.device=cpu"]
    assert run([*made, "--set", "machine.num_processes=1", "--set", "strategy.kind=single"]) == 0
    return Path.cwd()


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def typed(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(words))
        said = capfd.readouterr()
        return code, said.out, " ".join(said.err.split())

    return typed


def program(project: Path, name: str, script: str) -> Path:
    """A program that notes its arguments and then runs these lines; the file with its calls."""
    calls = project.parent / f"{name}.calls"
    file = project.parent / "bin" / name
    file.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(calls))}\n{script}\n')
    file.chmod(0o755)
    return calls


def made_run(project: Path, command: dict[str, Any], outcome: dict[str, Any] | None = None) -> None:
    folder = project / "runs" / RUN
    folder.mkdir(parents=True)
    started = {"started": "2026-01-31T10:22:05+0000", "hostname": "node1", "pid": 1, **command}
    (folder / "command.json").write_text(json.dumps(started))
    if outcome:
        (folder / "outcome.json").write_text(json.dumps(outcome))


def test_a_job_is_submitted_listed_and_stopped(project: Path, cli: Cli) -> None:
    sbatch = program(project, "sbatch", "echo 17")
    program(project, "scontrol", 'echo "JobId=17 JobState=PENDING Reason=Resources Restarts=0"')
    scancel = program(project, "scancel", "true")
    code, out, _ = cli("submit", "--dry-run", "--json")
    shown = json.loads(out)
    assert (code, shown["commands"], shown["errors"]) == (0, [["sbatch", "--parsable", "job.sbatch"]], 0)
    assert shown["files"] == {"job.sbatch": (project / "job.sbatch").read_text()}
    assert not sbatch.exists()
    code, out, err = cli("submit", "--json")
    told = {"job": "17", "scheduler": "slurm", "commands": [["sbatch", "--parsable", "job.sbatch"]]}
    assert (code, json.loads(out)) == (0, told), err
    assert sbatch.read_text() == "--parsable job.sbatch\n"
    assert "trainwiz stop 17" in err
    code, out, _ = cli("runs", "--json")
    (line,) = json.loads(out)
    assert (line["state"], line["job"], line["why"]) == ("queued", "17", "waiting for nodes to become free")
    assert cli("runs", "--json", "--state", "running")[1].strip() == "[]"
    code, _, err = cli("stop")
    assert (code, "removed job 17 from the queue" in err) == (0, True)
    assert scancel.read_text() == "17\n"


def test_a_running_job_is_asked_to_save_and_not_queued_again(project: Path, cli: Cli) -> None:
    program(project, "sbatch", "echo 17")
    scontrol = program(project, "scontrol", 'echo "JobId=17 JobState=RUNNING Reason=None"')
    scancel = program(project, "scancel", "true")
    assert cli("submit")[0] == 0
    made_run(project, {"job": {"scheduler": "slurm", "id": "17"}})
    (line,) = json.loads(cli("runs", "--json")[1])
    # The node that it was started on is not this one; the scheduler knows.
    assert (line["run"], line["state"], line["job"]) == (RUN, "running", "17")
    for words in (["stop", "17"], ["stop", RUN[:10]], ["stop"], ["stop", str(project)]):
        assert cli(*words)[0] == 0
    assert scontrol.read_text().count("update JobId=17 Requeue=0") == 4
    assert scancel.read_text() == "--signal=TERM 17\n" * 4


@pytest.mark.parametrize(
    ("said", "outcome", "state", "why"),
    [
        ("JobState=TIMEOUT", None, "failed", "the time limit was reached (cluster.time_limit)"),
        ("JobState=NODE_FAIL", None, "failed", "a node failed"),
        ("JobState=PREEMPTED", None, "preempted", "another job took its nodes"),
        (
            "JobState=PENDING Reason=BeginTime Restarts=1",
            {"exit_code": 75, "interrupted": True},
            "requeued",
            "it may not",
        ),
        ("JobState=FAILED ExitCode=1:0", {"exit_code": 1}, "failed", "exit code 1"),
        ("JobState=COMPLETED", {"exit_code": 0}, "done", "training completed"),
    ],
)
def test_a_runs_job_says_what_its_records_cannot(
    project: Path, cli: Cli, said: str, outcome: dict[str, Any] | None, state: str, why: str
) -> None:
    program(project, "scontrol", f'echo "JobId=17 {said}"')
    made_run(project, {"job": {"scheduler": "slurm", "id": "17"}}, outcome)
    (line,) = json.loads(cli("runs", "--json")[1])
    assert line["state"] == state
    assert line["why"].startswith(why)


def test_the_schedulers_own_refusal_is_shown(project: Path, cli: Cli) -> None:
    program(project, "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    code, out, err = cli("submit")
    assert (code, out) == (1, "")
    assert "sbatch refused the job: sbatch: error: invalid partition specified: gpu" in err
    assert not (project / "runs" / "jobs.jsonl").exists()


def test_without_the_scheduler_the_line_is_shown(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project.parent / "bin"))
    code, _, err = cli("submit", str(project))
    assert code == 1
    assert "sbatch is not installed here; nothing was submitted" in err
    assert f"cd {shlex.quote(str(project))} && sbatch --parsable job.sbatch" in err
    code, out, _ = cli("submit", "--dry-run")
    assert code == 0
    assert out.splitlines()[0] == "#!/bin/bash"
    assert out.splitlines()[-1] == "sbatch --parsable job.sbatch"


def test_what_would_run_something_else_is_not_submitted(project: Path, cli: Cli) -> None:
    sbatch = program(project, "sbatch", "echo 17")
    plan = project / "trainwiz.yaml"
    plan.write_text(plan.read_text().replace("time_limit: null", "time_limit: 3h"))
    code, _, err = cli("submit")
    assert code == 1
    assert "the plan has changed since these files were generated: job.sbatch" in err
    (project / "job.sbatch").unlink()
    assert "missing" in cli("submit", "--ignore", "TW5")[2]
    assert cli("update", ".")[0] == 0
    assert not sbatch.exists()
    assert cli("submit")[0] == 0


def test_a_plan_without_a_scheduler_cannot_be_submitted(project: Path, cli: Cli) -> None:
    assert cli("update", ".", "--set", "cluster.kind=none")[0] == 0
    assert not (project / "job.sbatch").exists()
    code, _, err = cli("submit")
    assert code == 2
    assert "trainwiz update . --set cluster.kind=slurm" in err


def test_a_program_that_prints_no_id_is_not_believed(project: Path, cli: Cli) -> None:
    program(project, "sbatch", "echo hello")
    code, _, err = cli("submit")
    assert code == 1
    assert "sbatch ended well, but named no job: hello" in err


def test_a_run_on_this_machine_is_stopped_by_its_process(project: Path, cli: Cli) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        born = liveness.birth(process.pid)
        made_run(project, {"hostname": os.uname().nodename, "pid": process.pid, "pid_birth": born})
        code, _, err = cli("stop")
        assert code == 0
        assert f"asked run {RUN} to save a checkpoint and end" in err
        assert process.wait(30) == -signal.SIGTERM
        assert (project / "runs" / RUN / ".stopped").exists(), "so that its launcher knows who asked"
    finally:
        process.kill()
    code, _, err = cli("stop", RUN)
    assert code == 2
    assert "has already ended" in err


def test_a_process_that_is_not_its_launcher_s_is_not_stopped(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's record can name any process, and another user's process cannot be stopped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        born = liveness.birth(process.pid)
        made_run(project, {"hostname": os.uname().nodename, "pid": process.pid, "pid_birth": born})
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", planted_refusal)
            assert "belongs to another user" in cli("stop")[2]
        assert not (project / "runs" / RUN / ".stopped").exists(), "or its next preemption would look wanted"
        if os.geteuid() != 0:
            pytest.skip("only root gives a file away")
        os.chown(project / "runs" / RUN / "command.json", 65534, -1)
        code, _, err = cli("stop")
        assert code == 2
        assert f"process {process.pid} does not belong to whoever launched run {RUN}" in err
        assert process.poll() is None
        # A file system that keeps no owners, and a process that is a launcher of ours.
        monkeypatch.setattr(liveness, "_keeps_owners", lambda _folder: False)
        assert cli("stop")[0] == 2
        monkeypatch.setattr(liveness, "_is_trainwiz", lambda _pid: True)
        assert cli("stop")[0] == 0
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def planted_refusal(*_: object) -> None:
    raise PermissionError


def test_a_run_on_another_machine_names_it(project: Path, cli: Cli) -> None:
    made_run(project, {})
    code, _, err = cli("stop", RUN)
    assert code == 2
    assert "was started on node1" in err
    assert "kill -TERM 1" in err


def test_lines_that_nobody_wrote_are_left_out(project: Path, cli: Cli) -> None:
    scontrol = program(project, "scontrol", "exit 1")
    (project / "runs").mkdir()
    lines = [
        "{",
        '{"scheduler": "slurm", "id": "--all"}',
        '{"scheduler": 5, "id": "6"}',
        '{"scheduler": "lsf", "id": "7"}',
    ]
    (project / "runs" / "jobs.jsonl").write_text("\n".join(lines) + "\n")
    (line,) = json.loads(cli("runs", "--json")[1])
    assert (line["job"], line["state"]) == ("7", "unknown")
    assert not scontrol.exists()


FOREIGN_IDS = {
    "slurm": ("--all", "17,18", "17 Priority=9", "17_[1-9]", "٣", "17\n"),
    "kubernetes": (
        ":--all",
        "prod:--kubeconfig=evil.yaml",
        "prod:--filename=https://example.org/x.yaml",
        "namespace/prod",
        "job.batch/a/b",
        "job.batch/-a",
        "../x:job.batch/a",
    ),
    "skypilot": ("--all", "5 6", "all"),
}


@pytest.mark.parametrize("scheduler", FOREIGN_IDS)
def test_an_id_that_means_something_else_reaches_no_command(scheduler: str, project: Path, cli: Cli) -> None:
    """A kubeconfig, for example, names programs that kubectl runs."""
    calls = [program(project, name, "exit 0") for name in ("scontrol", "sacct", "scancel", "kubectl", "sky")]
    (project / "runs").mkdir()
    jobs = [{"scheduler": scheduler, "id": id, "submitted": "x"} for id in FOREIGN_IDS[scheduler]]
    (project / "runs" / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    for job in jobs:
        made_run(project, {"job": job})
        for words in (["runs"], ["runs", "--json"], ["stop"], ["stop", job["id"]]):
            assert cli(*words)[0] in (0, 1, 2)
        shutil.rmtree(project / "runs" / RUN)
    assert [each for each in calls if each.exists()] == []
