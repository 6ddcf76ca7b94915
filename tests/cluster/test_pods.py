"""The commands of generated job files, run on two hosts in the environment that each system sets there; they train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import projects
import pytest
import test_several_machines
import warm
import yaml
from projects import REGRESSION
from test_several_machines import Hosts

pytestmark = pytest.mark.train

two_hosts = test_several_machines.two_hosts
JOB = "train-x7f2q"
TRAINING = {**REGRESSION, "schedule.n_steps": 4, "checkpoint.checkpointing_steps": 0}


def train_job(rank: int, _hosts: Hosts) -> dict[str, str]:
    """https://github.com/kubeflow/trainer: EnforceMLPolicy of pkg/runtime/framework/plugins/torch; JOB_… of a Job."""
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": f"{JOB}-node-0-0.{JOB}",
        "PET_MASTER_PORT": "29500",
        "JOB_COMPLETION_INDEX": str(rank),
    }


def pytorch_job(rank: int, _hosts: Hosts) -> dict[str, str]:
    """https://github.com/kubeflow/training-operator: setPodEnv of pkg/controller.v1/pytorch."""
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": f"{JOB}-master-0",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "PET_MASTER_ADDR": f"{JOB}-master-0",
        "PET_MASTER_PORT": "23456",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NODE_RANK": str(rank),
        "PET_NNODES": "2",
    }


def sky_task(rank: int, hosts: Hosts) -> dict[str, str]:
    """https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html, and sky/skylet/constants.py."""
    return {
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NODE_IPS": "\n".join(hosts.addresses),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "SKYPILOT_TASK_ID": "sky-managed-2026-01-31-10-22-05-563597_train_5-0",
        "SKYPILOT_TASK_IDS": "sky-managed-2026-01-31-10-22-05-563597_train_5-0",
        "SKYPILOT_MANAGED_JOB_ID": "5",
        "SKYPILOT_CLUSTER_INFO": '{"cluster_name": "train-5", "cloud": "AWS", "region": "us-east-1", "zone": null}',
    }


def container(folder: Path) -> list[str]:
    """What a pod of the runtime runs."""
    (runtime,) = yaml.safe_load_all((folder / "runtime.yaml").read_text())
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    [found] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert found["workingDir"] == str(folder)
    command: list[str] = found["command"]
    return command


def task(folder: Path) -> list[str]:
    """What SkyPilot gives to a shell on each node."""
    return ["bash", "-c", yaml.safe_load((folder / "sky.yaml").read_text())["run"]]


def typed(_folder: Path) -> list[str]:
    """What somebody writes into a PyTorchJob, for which there is no generated file."""
    return ["trainwiz", "launch"]


SYSTEMS: dict[str, tuple[str, Any, Any]] = {
    "TrainJob": ("kubernetes", container, train_job),
    "PyTorchJob": ("kubernetes", typed, pytorch_job),
    "SkyPilot": ("skypilot", task, sky_task),
}
OF_A_CLUSTER = {
    "kubernetes": {"cluster.image": "example.com/train:1", "cluster.volume": "claim"},
    "skypilot": {"cluster.volume": "volume"},
}


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one rank that takes the whole real batch."""
    single = {**TRAINING, "strategy.kind": "single", "machine.num_processes": 1}
    folder = projects.make(tmp_path_factory.mktemp("single") / "p", single)
    assert warm.launch(folder).code == 0
    return projects.losses(folder)


@pytest.fixture
def named(two_hosts: Hosts) -> Iterator[Hosts]:
    """The hosts, which know machine 0 by the names that Kubernetes' DNS gives it."""
    files = [Path("/etc/netns") / name / "hosts" for name in two_hosts.names]
    known = f"127.0.0.1 localhost\n{two_hosts.addresses[0]} {JOB}-node-0-0.{JOB} {JOB}-master-0\n"
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(known)
    yield two_hosts
    two_hosts.clear()
    for file in files:
        file.unlink()
        file.parent.rmdir()


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_a_system_starts_trains(system: str, named: Hosts, one_machine: list[float], tmp_path: Path) -> None:
    kind, command, environ = SYSTEMS[system]
    values = {
        **TRAINING,
        "machine.num_machines": 2,
        "cluster.kind": kind,
        "cluster.folder": str(tmp_path / "p"),
        **OF_A_CLUSTER[kind],
    }
    folder = projects.make(tmp_path / "p", values)
    path = f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    for rank, name in enumerate(named.names):
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *command(folder)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=projects.environment({**environ(rank, named), "PATH": path, **warm.torchrun()}),
        )
        named.started.append(process)
    said = [process.communicate(timeout=180)[0] for process in named.started]
    assert [process.returncode for process in named.started] == [0, 0], said
    assert projects.losses(folder) == pytest.approx(one_machine, rel=1e-5)
    assert "no earlier run to continue" in said[0]
