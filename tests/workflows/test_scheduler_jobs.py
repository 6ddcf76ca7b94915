"""A launch inside a scheduler's job: what it continues, and how the job is queued again when it was stopped."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plans
import pytest
from engine_children import claimed
from plans import completed
from test_launch import TRAINWIZ, latest, launch, project, read
from test_preemption import SAVING, stopped_by
from test_ranks import wait_for

from trainwiz.cluster import Place
from trainwiz.outcome import Outcome
from trainwiz.store import runs
from trainwiz.store.runs import Run
from trainwiz.workflows.launch import conclusion, lost_machines, requeue

JOB = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
STATE = "JobId=7 JobName=a=b JobState=RUNNING Requeue=1 Restarts=0 BatchFlag=1"


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def slurm(folder: Path, state: str = STATE, **more: str) -> dict[str, str]:
    """The variables of a job whose scontrol says `state` and notes what it is asked for in `asked`."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    answers = f"#!/bin/sh\necho $* >> {folder}/asked\n[ $1 = --oneliner ] && echo '{state}'\nexit 0\n"
    (tools / "scontrol").write_text(answers)
    (tools / "scontrol").chmod(0o755)
    return {**JOB, "PATH": f"{tools}:{os.environ['PATH']}", **more}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []


METRICS = """
(Path(sys.argv[sys.argv.index("--output_dir") + 1]) / "metrics.jsonl").write_text('{"update": 7, "loss": 1.0}\\n')
"""


def test_a_stopped_job_is_queued_again_and_goes_on_by_itself(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", METRICS + SAVING.replace("sys.exit(0)\nsignal", "sys.exit(3)\nsignal"))
    code, said = stopped_by(folder, signal.SIGUSR1, **slurm(folder))
    assert code == 75
    assert "no earlier run to continue: starting at update 0" in said
    assert asked(folder) == ["--oneliner show job 7", "write batch_script 7 -", "requeue 7"]
    assert "Slurm restarts job 7" in said
    outcome, first = read(folder, "outcome"), latest(folder).name
    assert (outcome["stopped"], outcome["preempted"]) == (True, True)
    runs.create(folder, continues=Run(folder / "runs" / first))  # was stopped before its ranks were started
    other = runs.create(folder)  # of a job that was submitted by mistake, and trained meanwhile
    other.record("command", {"inherited": {**JOB, "SLURM_JOB_ID": "8"}})
    other.record("outcome", {"exit_code": 0})
    again = launch(folder, **slurm(folder, SLURM_RESTART_COUNT="1"))
    assert f"run {first} is unfinished: continuing from checkpoint-00000007" in again.stderr
    assert again.returncode == 3, "the script has failed"
    failed = latest(folder).name
    third = launch(folder, "--resume", "auto")  # outside of a job, where somebody asks for it
    assert f"run {failed} is unfinished: continuing from checkpoint-00000007" in third.stderr
    fourth = launch(folder, "--new", "--dry-run", "--json", **slurm(folder))
    assert "--resume" not in json.loads(fourth.stdout)["argv"]
    changed = launch(folder, "--dry-run", "--json", "--", "--lr", "1", **slurm(folder))
    assert "--resume" not in json.loads(changed.stdout)["argv"]
    assert f"the plan or the arguments changed since run {latest(folder).name}: starting at update 0" in changed.stderr


def test_a_job_of_the_plans_scheduler_is_continued_by_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lines are read, nothing of `launch --resume` would be right: that machine only submits."""
    prepared: Any = SimpleNamespace(
        plan=plans.make(cluster__kind="slurm"), place=None, request=SimpleNamespace(folder="my project", arguments=())
    )
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert conclusion._resume_line(prepared) == "trainwiz launch 'my project' --resume"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert conclusion._resume_line(prepared) == "trainwiz submit 'my project'"
    prepared.request.arguments = ("--seed", "7")
    assert conclusion._resume_line(prepared) == "trainwiz launch 'my project' --resume -- --seed 7"


def test_a_plan_for_one_machine_is_not_trained_by_each_of_several(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "")
    two_nodes = launch(folder, **slurm(folder, SLURM_JOB_NUM_NODES="2"))
    assert "nodes of the Slurm step: 2, but machines of the plan: 1" in two_nodes.stderr
    two_tasks = launch(folder, **slurm(folder, SLURM_LOCALID="1"))
    assert "Slurm started several trainwiz processes on this node" in two_tasks.stderr
    assert (two_nodes.returncode, two_tasks.returncode) == (1, 1)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (STATE.replace("RUNNING", "CANCELLED"), "JobState=CANCELLED"),  # scancel
        (STATE.replace("Requeue=1", "Requeue=0"), "Requeue=0"),
        (STATE.replace("BatchFlag=1", "BatchFlag=0"), "BatchFlag=0"),  # salloc
        (f"{STATE} EndTime=2999-01-01T00:00:00", "its end at 2999-01-01T00:00:00 is not near"),  # kill
    ],
)
def test_a_job_that_may_not_be_queued_again_is_left(tmp_path: Path, state: str, why: str) -> None:
    folder = project(tmp_path / "p", METRICS + SAVING)
    code, said = stopped_by(folder, signal.SIGTERM, **slurm(folder, state))
    assert code == 75
    assert why in said
    assert "Slurm restarts job 7" not in said
    assert "requeue 7" not in asked(folder)


@pytest.mark.parametrize(
    ("rank", "lost", "more", "again"),
    [
        (0, {1: "silent"}, {}, True),
        (1, {0: "silent"}, {}, True),
        (1, {2: "silent"}, {}, False),  # machine 0 asks
        (0, {1: "silent"}, {"first_failed": 0}, False),
        (0, {1: "silent"}, {"signal": signal.SIGINT}, False),
        (0, {}, {}, False),
    ],
)
def test_a_job_that_lost_a_machine_is_queued_again(
    rank: int, lost: dict[int, str], more: dict[str, Any], again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun would wait for processes that froze until the time is over, and keep all nodes."""
    for name, value in slurm(tmp_path, f"{STATE} EndTime=2999-01-01T00:00:00").items():
        monkeypatch.setenv(name, value)
    place = Place(rank=rank, machines=3, address="node1", port=29500)
    prepared: Any = SimpleNamespace(place=place, request=SimpleNamespace(grace=30))
    requeue.after(prepared, Outcome(exit_code=1, lost=lost, **more), trained=True)
    assert ("requeue 7" in asked(tmp_path)) is again
    monkeypatch.setenv("SLURM_RESTART_COUNT", "10")
    requeue.after(prepared, Outcome(exit_code=1, lost=lost, **more), trained=True)
    assert asked(tmp_path).count("requeue 7") == again


def test_a_person_who_stops_a_run_does_not_want_it_again(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", METRICS + SAVING)
    code, _ = stopped_by(folder, signal.SIGINT, "--stopped-code", "9", **slurm(folder))
    assert (code, read(folder, "outcome")["exit_code"]) == (9, 9)
    assert asked(folder) == []
    refused = launch(folder, "--stopped-code", "256")
    assert (refused.returncode, "must be from 0 to 255" in refused.stderr) == (2, True)


def test_a_signal_before_the_ranks_can_save(tmp_path: Path) -> None:
    """Nothing is trained and nothing is lost, so that the job may begin again; but not for ever."""
    script = "Path(f'ready-{os.environ[\"RANK\"]}').write_text(str(os.getpid()))\ntime.sleep(60)"
    folder = project(tmp_path / "p", script)
    code, said = stopped_by(folder, signal.SIGTERM, **slurm(folder))
    assert code == 75, said
    assert read(folder, "outcome")["stopped"] is True
    assert asked(folder)[-1] == "requeue 7"
    code, said = stopped_by(folder, signal.SIGUSR1, **slurm(folder, SLURM_RESTART_COUNT="3"))
    assert code == 75
    assert "the job is not requeued: it was started 4 times without training" in said
    assert len(asked(folder)) == 3


def test_a_signal_while_machines_gather(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "trainwiz.yaml").write_text(
        completed(
            f"machine: {{num_machines: 2, num_processes: 2, main_process_port: {claimed.port()}}}\n"
            "strategy: {kind: ddp}\n"
            "batch: {real_batch_size: 32, per_device_batch_size: 8, gradient_accumulation_steps: 2}\n"
        )
    )
    (folder / "train.py").write_text("")
    environ = {**os.environ, **slurm(folder, SLURM_JOB_NUM_NODES="2", SLURM_JOB_NODELIST="localhost")}
    with subprocess.Popen([*TRAINWIZ, "launch"], cwd=folder, stderr=subprocess.PIPE, text=True, env=environ) as process:
        wait_for(folder / "runs" / ".secret")  # its machine 0 is waiting
        process.send_signal(signal.SIGUSR1)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 75, said
    assert "up to 600 s" in said, "machines of a job may come up late"
    assert "stopped by SIGUSR1 before the ranks were started; exit code 75" in said
    assert asked(folder) == ["--oneliner show job 7", "write batch_script 7 -", "requeue 7"]


PEER = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:4711"
POD = {"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_MASTER_ADDR": "train-0"}


@pytest.mark.parametrize(
    ("wrote", "of_machine_0", "lost", "environ", "code"),
    [
        (PEER, None, {}, POD, 75),
        (PEER, {"exit_code": 1}, {}, POD, 1),
        (PEER, {"exit_code": 75}, {}, POD, 1),
        ("ValueError: the loss is not finite", None, {}, POD, 1),
        (PEER, None, {0: "its launcher ended"}, POD, 75),
        (PEER, None, {}, {}, 1),
        (PEER, None, {}, JOB, 1),
    ],
    ids=["gone", "failed by itself", "stopped", "own failure", "lost by its launcher", "by hand", "Slurm"],
)
def test_a_machine_that_only_lost_others_lets_its_pods_start_again(
    wrote: str,
    of_machine_0: dict[str, int] | None,
    lost: dict[int, str],
    environ: dict[str, str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that exits with anything else ends the whole job before Kubernetes knows that a node is gone."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lost_machines, "_SECONDS", 0)
    for machine in range(3):
        Run(tmp_path, machine).record("command", {})
    Run(tmp_path, 2).record("outcome", {"exit_code": 75})
    if of_machine_0:
        Run(tmp_path).record("outcome", of_machine_0)
    run = Run(tmp_path, 1)
    run.logs.mkdir()
    run.log(1).write_text(f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n{wrote}\n')
    prepared: Any = SimpleNamespace(
        request=SimpleNamespace(stopped_code=75),
        plan=plans.BASE,
        place=Place(rank=1, machines=3, address="train-0", port=29500),
        run=run,
        ranks=range(1, 2),
        team=bool(lost),
    )
    ended = Outcome(exit_code=1, codes={1: 1}, first_failed=1, lost=lost)
    assert lost_machines.judged(prepared, ended).exit_code == code
