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
from types import SimpleNamespace
from typing import Any

import pytest
from patience import patience

from trainwiz.cli import run
from trainwiz.record import job_output
from trainwiz.schedulers import Job, Phase
from trainwiz.schedulers.slurm import SCHEDULER as SLURM
from trainwiz.store import jobs, liveness
from trainwiz.store.jobs import Submitted
from trainwiz.store.runs import Run
from trainwiz.ui.live import Screen
from trainwiz.workflows.jobs import output, states, submit
from trainwiz.workflows.launch.job_output import JobOutput

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
    code, _, err = cli("logs")
    assert (code, "job 17: queued, waiting for nodes to become free" in err) == (0, True), err
    code, _, err = cli("stop", "99")
    assert (code, "no job 99 was submitted from here; the newest is 17" in err) == (2, True), err
    code, _, err = cli("stop")
    assert (code, "removed job 17 from the queue" in err) == (0, True)
    assert scancel.read_text() == "17\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_scheduler_is_asked_loses_no_job(project: Path, signum: signal.Signals) -> None:
    """One that has taken a job says so; a person who does not want to wait hears what is not known."""
    program(project, "sbatch", f"kill -{signum.value} $PPID; sleep 0.3; echo 17")
    command = [sys.executable, "-m", "trainwiz", "submit"]
    environ = {**os.environ, "TRAINWIZ_LANG": "en"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60 * patience(), check=False)
    assert done.returncode == 128 + signum, done.stderr
    recorded = project / "runs" / "jobs.jsonl"
    if signum is signal.SIGINT:
        assert "sbatch did not respond: check whether the job is in its list" in " ".join(done.stderr.split())
        assert not recorded.exists()
    else:
        assert json.loads(recorded.read_text())["id"] == "17"


def test_ctrl_c_after_the_answer_waits_until_the_job_is_noted(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(project, "sbatch", "echo 17")

    def noted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        jobs.add(*arguments)

    monkeypatch.setattr(submit, "jobs", SimpleNamespace(add=noted))
    before = signal.getsignal(signal.SIGINT)
    code, out, err = cli("submit")
    assert (code, out) == (130, "17\n"), err
    assert "submitted: job 17" in err
    assert json.loads((project / "runs" / "jobs.jsonl").read_text())["id"] == "17"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_job_does_not_inherit_the_one_that_it_is_submitted_in(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun would end at SLURM_MEM_PER_CPU of a salloc, where the job asks for memory per node."""
    for name, value in {"JOB_ID": "3", "MEM_PER_CPU": "100", "STEP_NODELIST": "old", "CONF": "/etc/slurm.conf"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    program(project, "sbatch", f"env > {shlex.quote(str(project.parent))}/environ; echo 17")
    assert cli("submit")[0] == 0
    seen = {line.partition("=")[0] for line in (project.parent / "environ").read_text().splitlines()}
    assert {name for name in seen if name.startswith("SLURM")} == {"SLURM_CONF"}


def test_what_slurm_says_of_other_jobs_and_in_names_is_not_believed() -> None:
    """The last job of an array has the number of the whole; scontrol then shows all of them."""
    name = "JobName=x JobState=FAILED Requeue=0 UserId=root(0)"
    own = f"JobId=4 ArrayJobId=4 ArrayTaskId=1 {name} JobState=RUNNING Requeue=1 BatchFlag=1 Comment=JobState=TIMEOUT"
    other = "JobId=5 ArrayJobId=4 ArrayTaskId=0 JobName=y UserId=root(0) JobState=COMPLETED Requeue=1 BatchFlag=1"
    job, argv = Job(scheduler="slurm", id="4"), ("scontrol", "show")
    for text in (f"{own}\n{other}\n", f"{other}\n{own}\n", own.replace(" ", "\n   ")):
        found = SLURM.seen(job, argv, text)
        assert found
        assert found.phase is Phase.RUNNING
        assert SLURM.obstacle(job, text, now=0, notice=0) is None


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


def test_variables_that_override_the_script_are_named(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    program(project, "sbatch", "echo 17")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SBATCH_NO_REQUEUE", "1")
    code, out, err = cli("submit")
    assert (code, out) == (0, "17\n")
    assert "variables that override job.sbatch: SBATCH_NO_REQUEUE, SBATCH_TIMELIMIT" in err


def test_a_scheduler_that_is_slow_is_waited_for_once(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = program(project, "scontrol", "sleep 60")
    monkeypatch.setattr(states, "_SECONDS", 0.2)
    for n in range(3):
        jobs.add(project, Submitted(job=Job(scheduler="slurm", id=str(n)), submitted=""))
    assert "no answer within" in cli("runs")[1]
    assert scontrol.read_text().count("show job") == 1


def test_one_job_of_an_array_is_stopped_or_all_of_them(project: Path, cli: Cli) -> None:
    """The number of an array is that of its last job, too, and what waits begins when the others were stopped."""
    program(project, "sbatch", "echo 17")
    program(project, "scontrol", 'echo "JobId=17 ArrayJobId=17 JobState=PENDING Reason=JobArrayTaskLimit"')
    scancel = program(project, "scancel", "true")
    assert cli("submit")[0] == 0
    made_run(project, {"job": {"scheduler": "slurm", "id": "17_0"}})
    (project / "runs" / RUN / "beat").touch()
    (line,) = json.loads(cli("runs", "--json")[1])
    assert line["job"] == "17_0"
    program(project, "scontrol", "echo JobId=18 ArrayJobId=17 JobState=RUNNING")
    assert cli("stop")[0] == 0
    program(project, "scontrol", "echo JobId=17 ArrayJobId=17 JobState=PENDING")
    assert cli("stop", "17")[0] == 0
    assert scancel.read_text().splitlines() == ["--signal=TERM 17_0", "--state=PENDING 17", "--signal=TERM 17_0"]


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
            "it cannot start yet",
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
    assert "sbatch rejected the job: sbatch: error: invalid partition specified: gpu" in err
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


def test_what_a_job_wrote_that_never_began_is_shown_and_explained(project: Path, cli: Cli) -> None:
    """Seen in Slurm 22.05 with SBATCH_EXPORT=NONE; an earlier run says nothing of it."""
    made_run(project, {}, {"exit_code": 0, "ranks": {"0": 0}})
    program(project, "sbatch", "echo 17")
    program(project, "scontrol", 'echo "JobId=17 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0"')
    assert cli("submit")[0] == 0
    text = (
        "srun: error: n1: task 0: Exited with exit code 2\n"
        "slurmstepd: error: execve(): trainwiz: No such file or directory\n"
    )
    (project / "slurm-17.log").write_text(text)
    code, out, err = cli("logs")
    assert (code, out) == (0, text)
    assert "job 17: failed, the job exited with code 2" in err
    _, out, _ = cli("diagnose", ".")
    assert "job 17: failed" in out
    assert "the job cannot find trainwiz on its nodes" in out
    assert "set cluster.setup in trainwiz.yaml" in out
    assert json.loads(cli("diagnose", ".", "--json")[1])["name"] == "trainwiz_missing"


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
    assert "sbatch succeeded, but reported no job: hello" in err


def test_a_run_on_this_machine_is_stopped_by_its_process(project: Path, cli: Cli) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        born = liveness.start_ticks(process.pid)
        made_run(project, {"hostname": os.uname().nodename, "pid": process.pid, "pid_birth": born})
        code, _, err = cli("stop")
        assert code == 0
        assert f"asked run {RUN} to save a checkpoint and stop" in err
        assert process.wait(90) == -signal.SIGTERM
        assert (project / "runs" / RUN / ".stopped").exists(), "so that its launcher knows who asked"
    finally:
        process.kill()
    code, _, err = cli("stop", RUN)
    assert code == 2
    assert "has already ended" in err
    assert err.endswith("list the runs: trainwiz runs")
    code, _, err = cli("stop", str(project / "runs" / RUN))
    assert f"list the runs: trainwiz runs {shlex.quote(str(project))}" in " ".join(err.split()), (
        "from wherever it was named"
    )


def test_a_process_that_is_not_its_launcher_s_is_not_stopped(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's record can name any process, and another user's process cannot be stopped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        born = liveness.start_ticks(process.pid)
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
        assert process.wait(90) == -signal.SIGTERM
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


KUBERNETES = "ml:trainjob.trainer.kubeflow.org/train-x7f2q"
UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."
FORBIDDEN = (
    'Error from server (Forbidden): trainjobs.trainer.kubeflow.org "train-x7f2q" is forbidden: User "me" cannot get '
    'resource "trainjobs" in API group "trainer.kubeflow.org" in the namespace "ml"'
)


def kubectl(project: Path, job: dict[str, Any], *pods: dict[str, Any], logs: str = "") -> Path:
    """A kubectl that prints a job's status, its pods' and their output; and a job that was submitted."""
    (project / "runs").mkdir(exist_ok=True)
    line = {"scheduler": "kubernetes", "id": KUBERNETES, "submitted": "2026-01-31T10:22:05+0000"}
    (project / "runs" / "jobs.jsonl").write_text(json.dumps(line) + "\n")
    for name, value in (
        ("job", {"kind": "TrainJob", "status": job}),
        ("pods", {"items": [{"status": p} for p in pods]}),
    ):
        (project.parent / name).write_text(json.dumps(value))
    (project.parent / "output").write_text(logs)
    return program(
        project,
        "kubectl",
        f"""cd {shlex.quote(str(project.parent))}
case "$1 $2" in "get pods") cat pods;; "logs "*) cat output;; *) cat job;; esac""",
    )


def test_a_job_whose_folder_is_elsewhere_is_followed_and_diagnosed(project: Path, cli: Cli) -> None:
    failed = {
        "conditions": [{"type": "Failed", "status": "True", "message": "jobset failed due to one or more job failures"}]
    }
    killed = {
        "phase": "Failed",
        "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}],
    }
    out = "update 7/300\nTraceback (most recent call last):\n  File 'train.py', line 1\nMemoryError\n"
    calls = kubectl(project, failed, killed, logs=out)
    (line,) = json.loads(cli("runs", "--json")[1])
    assert (line["state"], line["job"]) == ("failed", KUBERNETES)
    assert "OOMKilled, exit code 137" in line["why"]
    chosen = "--selector jobset.sigs.k8s.io/jobset-name=train-x7f2q,batch.kubernetes.io/job-completion-index=0"
    for words in (["logs"], ["logs", KUBERNETES], ["logs", ".", "-f"]):
        assert cli(*words)[:2] == (0, out)
    assert calls.read_text().count(f"logs --namespace ml {chosen} --container node --tail=-1") == 3
    assert "the plan has 1 rank, but no rank 1" in cli("logs", "--rank", "1")[2]
    code, said, _ = cli("diagnose")
    assert (code, "failed" in said, "OOMKilled" in said, "MemoryError" in said) == (0, True, True, True)
    # The number is of the lines as they are read, not as kubectl prints them.
    assert "--timestamps in order of time, line 4: MemoryError" in said
    known = json.loads(cli("diagnose", KUBERNETES, "--json")[1])
    assert (known["job"], known["phase"]) == (KUBERNETES, "failed")
    for words in (["watch"], ["report"]):
        code, _, err = cli(*words)
        assert (code, f"the output of job {KUBERNETES} does not mention a run yet" in err) == (2, True)
    # A run of this machine's own that began later is meant instead.
    made_run(project, {"started": "2026-02-01T00:00:00+0000"}, {"exit_code": 0})
    assert "has no logs" in cli("logs")[2]
    assert cli("logs", KUBERNETES)[1] == out


def test_watch_and_report_show_what_a_jobs_output_says_of_its_run(project: Path, cli: Cli) -> None:
    command = {"started": "2026-01-31T10:22:05+0000", "total_updates": 300, "plan": {"task": "causal_lm"}}
    output = [
        job_output.run(RUN, command),
        *(job_output.metrics({"update": update, "loss": 4.0 - update / 100}) for update in (10, 20, 30)),
        job_output.metrics({"update": 30, "eval_loss": 3.5}),
        "UserWarning: slow",
        job_output.run(f"{RUN[:-1]}2", command),  # queued again: from the checkpoint of update 20
        f"\x1b[36m(head, rank=0, pid=7)\x1b[0m {job_output.metrics({'update': 30, 'loss': 3.25})}",
        "trainwiz metrics {not JSON}",
    ]
    running = {"jobsStatus": [{"name": "node", "active": 1}]}
    kubectl(project, running, {"phase": "Running"}, logs="\n".join(output) + "\n")
    seen = json.loads(cli("watch", "--json")[1])
    assert (seen["run"], seen["state"], seen["updates"], seen["total_updates"]) == (f"{RUN[:-1]}2", "running", 30, 300)
    assert seen["loss"] == 3.25
    page = project / cli("report")[1].strip()
    assert page == project / "runs" / f"{RUN[:-1]}2.html"
    assert "3.25" in page.read_text()
    # Its own words on the end come before those of the scheduler.
    kubectl(project, {"conditions": [{"type": "Failed", "status": "True"}]}, logs="\n".join(output))
    assert json.loads(cli("watch", "--json")[1])["state"] == "failed"
    stopped = job_output.outcome({"exit_code": 75, "stopped": True, "signal": 15})
    kubectl(project, {}, logs="\n".join([*output, stopped]))
    assert json.loads(cli("watch", KUBERNETES, "--json")[1])["state"] == "stopped"


def test_a_job_says_what_its_run_records_only_where_its_output_is_fetched(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variables, tells in (({}, False), ({"SLURM_JOB_ID": "7"}, False), ({"SKYPILOT_MANAGED_JOB_ID": "5"}, True)):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            telling = JobOutput(SimpleNamespace(place=None, run=Run(tmp_path / RUN)))  # type: ignore[arg-type]
        (tmp_path / RUN).mkdir(exist_ok=True)
        (tmp_path / RUN / "outcome.json").write_text('{"exit_code": 0}')
        telling.begin(Screen(SimpleNamespace()), {})  # type: ignore[arg-type]
        telling.metrics([{"update": n, "loss": 1.0} for n in range(1, 5)])
        telling.metrics([{"update": 4, "eval_loss": 2.0}, *({"update": n, "loss": 1.0} for n in range(5, 9))])
        telling.end()
        found = job_output.read(capfd.readouterr().out)
        assert bool(found.run) == tells
        # One of ten seconds, the one that was evaluated, and the last one.
        seen = [(record["update"], "loss" in record) for record in found.records]
        assert seen == ([(1, True), (4, True), (4, False), (8, True)] if tells else [])
        assert (found.outcome.get("exit_code") == 0) == tells


@pytest.mark.parametrize(
    ("phase", "run_started", "outcome", "asked", "other"),
    [
        ("PENDING", "2026-01-30T00:00:00+0000", {"exit_code": 0}, "removed job 17", None),
        ("PENDING", "2026-02-01T00:00:00+0000", {"exit_code": 0}, "removed job 17", None),
        ("COMPLETED", "2026-01-30T00:00:00+0000", None, f"asked run {RUN}", None),
        ("PENDING", "2026-01-30T00:00:00+0000", None, "removed job 17", f"run {RUN} continues"),
        ("PENDING", "2026-02-01T00:00:00+0000", None, f"asked run {RUN}", "job 17 continues"),
    ],
)
def test_stop_takes_what_began_last_and_goes_on(
    project: Path, cli: Cli, phase: str, run_started: str, outcome: dict[str, Any] | None, asked: str, other: str | None
) -> None:
    program(project, "scontrol", f'echo "JobId=17 JobState={phase}"')
    program(project, "scancel", "true")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "trainwiz"])
    try:
        here = {"hostname": os.uname().nodename, "pid": sleeper.pid, "pid_birth": liveness.start_ticks(sleeper.pid)}
        made_run(project, {**here, "started": run_started}, outcome)
        job = {"scheduler": "slurm", "id": "17", "submitted": "2026-01-31T10:22:05+0000"}
        (project / "runs" / "jobs.jsonl").write_text(json.dumps(job) + "\n")
        code, _, err = cli("stop")
        assert (code, asked in err) == (0, True), err
        assert (f"{other}; to stop it as well: trainwiz stop " in err) if other else ("continues; to stop" not in err)
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ({"exit_code": 75, "stopped": True, "signal": 15, "ranks": {}}, "stopped by SIGTERM; it saved and exited"),
        ({"exit_code": 1, "lost_machines": {"1": "silent"}, "ranks": {"0": 1}}, "machine 1 was lost: silent"),
    ],
)
def test_a_run_whose_job_is_queued_again_is_followed_and_explained(
    project: Path, cli: Cli, outcome: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "JobId=17 JobState=PENDING Reason=BeginTime Restarts=1"
    job = {"job": {"scheduler": "slurm", "id": "17"}}
    made_run(project, job, outcome)
    next_run = project / "runs" / RUN.replace("10-22", "10-25")
    shutil.copytree(project / "runs" / RUN, next_run)
    for each in (project / "runs" / RUN, next_run):
        (each / "logs").mkdir()
        (each / "logs" / "rank-0.log").write_text(f"{each.name} writes\n")
    (next_run / "outcome.json").unlink()
    next_run.rename(hidden := project / next_run.name)
    program(project, "scontrol", f"echo {waits}")
    said = cli("diagnose", ".")[1]
    assert f"run {RUN}: {why}" in said
    assert "job 17: requeued, it cannot start yet" in said

    def begins(_seconds: float) -> None:
        if hidden.exists():
            (hidden / "outcome.json").write_text('{"exit_code": 0}')
            hidden.rename(next_run)

    monkeypatch.setattr(output, "time", SimpleNamespace(sleep=begins))
    _, written, told = cli("logs", ".", "-f")
    assert written == f"{RUN} writes\n{next_run.name} writes\n"
    assert "job 17: requeued" in told
    assert f"now run {next_run.name}:" in told


def test_a_job_that_waits_says_why_instead_of_a_log(project: Path, cli: Cli) -> None:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
    calls = kubectl(
        project, {"jobsStatus": [{"name": "node", "active": 1}]}, {"phase": "Pending", "conditions": [waits]}
    )
    code, out, err = cli("logs")
    assert (code, out) == (0, "")
    assert f"queued, no node can take a pod: {UNSCHEDULABLE}" in err
    assert "\nlogs" not in calls.read_text()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo {shlex.quote(FORBIDDEN)} >&2; exit 1", FORBIDDEN),
        ("echo 'error: You must be logged in to the server (Unauthorized)' >&2; exit 1", "must be logged in"),
        ("sleep 20", "no answer within 0.2 s"),
        (None, "kubectl is not installed here"),
    ],
)
def test_what_a_scheduler_refuses_is_shown_in_its_words(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    kubectl(project, {})
    monkeypatch.setattr("trainwiz.workflows.jobs.states._SECONDS", 0.2 if script and "sleep" in script else 20.0)
    if script:
        program(project, "kubectl", script)
    else:
        (project.parent / "bin" / "kubectl").unlink()
        monkeypatch.setenv("PATH", str(project.parent / "bin"))
    (line,) = json.loads(cli("runs", "--json")[1])
    assert line["state"] == "unknown"
    assert words in line["why"]
    for command in ("logs", "diagnose"):
        code, _, err = cli(command)
        assert (code, words in err) == (1, True)


def test_a_clouds_job_is_followed_by_its_own_command(project: Path, cli: Cli) -> None:
    (project / "runs").mkdir()
    job = {"scheduler": "skypilot", "id": "5", "submitted": "2026-01-31T10:22:05+0000"}
    (project / "runs" / "jobs.jsonl").write_text(json.dumps(job) + "\n")
    queue = '[{"job_id": 5, "status": "FAILED_NO_RESOURCE", "failure_reason": "No A100 in us-east-1\\n(spot)"}]'
    calls = program(
        project,
        "sky",
        f"""case "$2" in logs) echo '(head, rank=0, pid=7) update 1';; *) printf '%s\\n' '{queue}';; esac""",
    )
    (line,) = json.loads(cli("runs", "--json")[1])
    assert (line["state"], line["why"]) == ("failed", "FAILED_NO_RESOURCE: No A100 in us-east-1 (spot)")
    assert cli("logs", "5")[1] == "(head, rank=0, pid=7) update 1\n"
    assert "jobs logs --no-follow 5\n" in calls.read_text()


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
