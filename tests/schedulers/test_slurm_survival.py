"""One job of a real Slurm that loses a rank, its place, its time and a node, and trains as if nothing had happened."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import projects
import psutil
import pytest
import slurm_nodes
import warm
from engine_children import claimed
from projects import REGRESSION
from slurm_nodes import ON_BOTH, Nodes, eventually, pages

pytestmark = pytest.mark.train

TRAINING = {**REGRESSION, "data.eval": "", "schedule.n_steps": 120, "checkpoint.checkpointing_steps": 2}
GRACE = 75
"""Seconds; Slurm asks for the end 15 earlier, and counts in minutes: of the first two, after half a minute."""
PACE = "import os, time; time.sleep(0.5 * os.path.exists('slow'))"
"""A second for each update of two micro-batches, so that what a minute of Slurm takes never is the whole training."""


def slowed(folder: Path) -> Path:
    (folder / "slow").touch()
    return projects.begins_with(folder, "loss_sum", PACE)


def digest(folder: Path) -> str:
    """Of the weights after the last update."""
    (weights,) = (folder / "runs" / "latest" / "checkpoints" / "checkpoint-00000120").glob("model*.safetensors")
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def rank_of(launcher: psutil.Process) -> psutil.Process:
    tree = launcher.children(recursive=True)
    [rank] = [p for p in tree if "train.py" in p.cmdline() and "torch.distributed.run" not in p.cmdline()]
    return rank


class Job:
    """A job that goes through all of it."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes, self.folder, self.id = nodes, folder, nodes.submit(folder)

    def trains(self, more: int = 3) -> None:
        """Wait until it has trained so many more updates."""
        before = self.nodes.updates(self.folder)
        self.until(lambda: self.nodes.updates(self.folder) >= before + more)

    def has_little_time(self) -> None:
        """Let its time end so soon that Slurm says so; later than it looks for that, and than a save takes."""
        hours, minutes, seconds = map(int, self.nodes.field(self.id, "RunTime").split(":"))
        limit = -(-(hours * 3600 + minutes * 60 + seconds + GRACE + 25) // 60)
        self.nodes.asked("scontrol", "update", f"JobId={self.id}", f"TimeLimit={limit}")

    def is_queued_again(self, times: int) -> None:
        field = functools.partial(self.nodes.field, self.id)
        self.until(lambda: (field("Restarts"), field("JobState")) == (str(times), "PENDING"))
        assert self.nodes.state(self.folder)["state"] == "requeued"

    def starts(self, when: str = "now+2") -> None:
        """Soon, and not after the two minutes for which Slurm holds back what was queued again.

        A job that starts in the second in which its credential was revoked is ended at once, without a word to it.
        """
        self.nodes.asked("scontrol", "update", f"JobId={self.id}", f"StartTime={when}", "TimeLimit=60")

    def until(self, holds: Callable[[], bool]) -> None:
        eventually(holds, within=180, says=self.said)

    def said(self) -> str:
        return f"{pages(self.folder)}\n{self.nodes.asked('scontrol', 'show', 'job', self.id)}"


def test_what_a_job_survives(tmp_path: Path) -> None:
    whole = projects.make(tmp_path / "whole", TRAINING)
    assert warm.launch(whole).code == 0
    values = {
        **TRAINING,
        **ON_BOTH,
        "machine.main_process_ip": slurm_nodes.own_address(),
        "machine.main_process_port": claimed.port(),
        "supervision.max_restarts": 1,
        "cluster.grace": GRACE,
    }
    (tmp_path / "slurm").mkdir()
    with slurm_nodes.two(tmp_path / "slurm") as nodes:
        job = Job(nodes, slowed(projects.make(tmp_path / "p", values)))
        job.trains()
        rank_of(nodes.launcher(1)).kill()
        job.until(lambda: "rank 1 ran on machine 1" in pages(job.folder))
        job.trains()
        nodes.asked("scontrol", "requeue", job.id)
        job.is_queued_again(1)
        job.starts()
        job.trains()
        job.has_little_time()
        job.is_queued_again(2)
        job.starts()
        job.trains()
        frozen = nodes.hang()
        job.is_queued_again(3)
        for process in frozen:  # what wakes up there must not disturb what follows
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        nodes.begin("two")
        (job.folder / "slow").unlink()
        # Given a node within a second after it came back, Slurm 22.05 never starts a step of the job there.
        job.starts("now+5")
        job.until(lambda: nodes.field(job.id, "JobState") == "COMPLETED")
        assert nodes.state(job.folder)["state"] == "done"
    said = " ".join(pages(job.folder).split())
    assert said.count("is unfinished: continuing from checkpoint-") == 3, said
    runs = sorted(run.name for run in job.folder.glob("runs/2*"))
    trained = {record["update"]: record["loss"] for run in runs for record in projects.metrics(job.folder, run)}
    assert [*trained.values()] == projects.losses(whole)
    assert digest(job.folder) == digest(whole)
    [attempt, _] = json.loads((job.folder / "runs" / runs[0] / "outcome.json").read_text())["attempts"]
    assert (attempt["exit_code"], attempt["first_failed_rank"], attempt["machines"]) == (137, 1, [0, 1])
