"""Jobs that `trainwiz submit` hands to a real Slurm: they train on two nodes, save and stop."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
import slurm_nodes
import warm
from engine_children import claimed
from patience import patience
from projects import REGRESSION
from slurm_nodes import ON_BOTH, Nodes, eventually, pages

pytestmark = pytest.mark.train

ON_STANDIN = {"ACCELERATE_TORCH_DEVICE": "cpu", "PYTHONPATH": projects.python_path(projects.STANDIN)}
FOUR: dict[str, object] = {"machine.num_processes": 4, "tracking.logging_steps": 1}
STRATEGIES: dict[str, dict[str, object]] = {
    "ddp": FOUR,
    "zero2": {"strategy.kind": "deepspeed", "strategy.zero_stage": 2},
    "fsdp": {"strategy.kind": "fsdp"},
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with slurm_nodes.two(tmp_path_factory.mktemp("slurm")) as nodes:
        yield nodes


def planned(folder: Path, values: dict[str, object]) -> Path:
    ignored = {"TW616": "both nodes are this machine", "TW629": "they are", "TW305": "the stand-in shards on CPU ranks"}
    on_both = {
        **ON_BOTH,
        "machine.main_process_ip": slurm_nodes.own_address(),
        "machine.main_process_port": claimed.port(),
        "ignore": ignored,
    }
    return projects.make(folder, {**REGRESSION, **on_both, **values})


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one rank that takes the whole real batch."""
    single = {**REGRESSION, "strategy.kind": "single", "machine.num_processes": 1}
    folder = projects.make(tmp_path_factory.mktemp("single") / "p", single)
    done = warm.launch(folder)
    assert done.code == 0, done.err
    return projects.losses(folder)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_submitted_plan_follows_the_curve_of_one_machine(
    strategy: str, slurm: Nodes, one_machine: list[float], tmp_path: Path
) -> None:
    folder = planned(tmp_path / "p", STRATEGIES[strategy])
    job = slurm.submit(folder, **(ON_STANDIN if strategy == "fsdp" else {}))
    followed = None
    if strategy == "ddp":
        eventually(lambda: bool(list(folder.glob("runs/2*"))), within=120, says=lambda: pages(folder))
        argv = [sys.executable, "-m", "trainwiz", "logs", str(folder), "--rank", "3", "-f"]
        followed = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=projects.environment())
    over = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
    eventually(lambda: slurm.field(job, "JobState") in over, within=180, says=lambda: pages(folder))
    assert slurm.field(job, "JobState") == "COMPLETED", pages(folder)
    assert projects.losses(folder) == pytest.approx(one_machine, rel=1e-5)
    line = slurm.state(folder)
    assert (line["state"], line["updates"], line["job"]) == ("done", 8, job)
    if followed:
        said, problem = followed.communicate(timeout=60 * patience())
        log = folder / "runs" / "latest" / "logs" / "rank-3.log"
        nothing = f"rank 3 of run {log.parents[1].resolve().name} has no output yet\n"
        assert (followed.returncode, said) == (0, log.read_bytes())
        assert problem.decode() == ("" if said else nothing)
        seen_from_the_submitting_side(slurm, folder)


def seen_from_the_submitting_side(slurm: Nodes, folder: Path) -> None:
    watched = slurm.trainwiz("watch", str(folder))
    assert "update 8/8" in watched.out, watched
    reported = slurm.trainwiz("report", str(folder))
    assert reported.code == 0, reported.err
    page = Path(reported.out.strip()).read_text()
    assert f"{projects.losses(folder)[-1]:.4f}" in page


def test_a_submitted_job_saves_when_it_is_stopped(slurm: Nodes, tmp_path: Path) -> None:
    endless = {"schedule.n_steps": 100_000, "checkpoint.checkpointing_steps": 0}
    project = projects.paced(planned(tmp_path / "p", endless))
    refused = projects.trainwiz("submit", str(project), env={**slurm.environ, "SBATCH_PARTITION": "none-such"})
    assert refused.code == 1
    assert "invalid partition" in refused.err.lower()

    job = slurm.submit(project)
    eventually(lambda: slurm.updates(project) > 0, within=180, says=lambda: pages(project))
    running = slurm.state(project)
    assert (running["state"], running["job"]) == ("running", job)
    again = slurm.submit(project)
    assert slurm.state(project)["state"] == "queued"

    assert slurm.trainwiz("stop", str(project), "--run", job).code == 0
    eventually(lambda: slurm.field(job, "ExitCode") == "75:0", within=120, says=lambda: pages(project))
    (run,) = (project / "runs").glob("2*")
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) == 1
    assert {file.name for file in (run / "logs").glob("rank-?.log")} == {"rank-0.log", "rank-1.log"}
    # It was asked to stop, and must not begin again.
    time.sleep(1)
    assert (slurm.field(job, "Requeue"), slurm.field(job, "JobState")) == ("0", "FAILED")

    # The other one begins now. What somebody sends to all of it ends the batch script, and Slurm then ends the steps by
    # SIGTERM: whichever signal they hear first, they save.
    trained = slurm.updates(project)
    eventually(lambda: slurm.updates(project) > trained, within=180, says=lambda: pages(project))
    slurm.asked("scancel", "--signal=USR1", "--full", again)
    eventually(lambda: slurm.field(again, "JobState") == "FAILED", within=120, says=lambda: pages(project))
    newest = sorted(project.glob("runs/latest/checkpoints/checkpoint-*"))[-1]
    assert newest.name == f"checkpoint-{slurm.updates(project):08}"
    assert re.search("stopped by SIG(USR1|TERM)", pages(project))
