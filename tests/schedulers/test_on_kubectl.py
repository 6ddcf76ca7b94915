"""Jobs that `trainwiz submit` hands to the real kubectl: an API server on the loopback runs their pods here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kube_api
import projects
import pytest
import warm
from patience import patience
from projects import REGRESSION

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[kube_api.Server]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    server = kube_api.Server(tmp_path / "server", projects.environment({"PATH": path, **warm.torchrun()}))
    yield server
    server.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project here, and its copy on the volume that only the pods mount."""
    volume = tmp_path / "volume" / "p"
    values = {
        **REGRESSION,
        "schedule.n_steps": 100_000,
        "checkpoint.checkpointing_steps": 0,
        "cluster.kind": "kubernetes",
        "cluster.workload": "job",
        "cluster.image": "example.com/train:1",
        "cluster.volume": "claim",
        "cluster.folder": str(volume),
    }
    folder = projects.paced(projects.make(tmp_path / "p", values))
    shutil.copytree(folder, volume)
    return folder


def eventually(is_so: Callable[[], bool], within: float, says: Callable[[], object]) -> None:
    until = time.monotonic() + within * patience()
    while not is_so():
        assert time.monotonic() < until, says()
        time.sleep(0.5)


def logs(server: kube_api.Server) -> str:
    return "".join(file.read_text(errors="replace") for file in server.cluster.folder.glob("*.log"))


def test_a_job_is_followed_and_stopped_by_kubectl(server: kube_api.Server, project: Path) -> None:
    environ = {"KUBECONFIG": str(server.config)}

    def trainwiz(*words: str) -> projects.Done:
        return projects.trainwiz(*words, env=environ)

    submitted = trainwiz("submit", str(project))
    assert submitted.code == 0, submitted.err
    [(name, _)] = server.cluster.jobs.items()
    assert submitted.out.strip() == f"job.batch/{name}"
    eventually(lambda: '"update": ' in logs(server), within=120, says=lambda: logs(server))
    assert "running" in trainwiz("runs", str(project)).out
    assert "trainwiz metrics" in trainwiz("logs", str(project)).out
    assert re.search(r"update \d+/100000", trainwiz("watch", str(project)).out)

    reported = trainwiz("report", str(project))
    assert reported.code == 0, reported.err
    assert Path(reported.out.strip()).is_file()

    assert trainwiz("stop", str(project)).code == 0
    eventually(lambda: "newest checkpoint" in logs(server), within=120, says=lambda: logs(server))
    [pod] = server.cluster.pods.values()
    assert pod.process.wait(60) == 75, logs(server)
    assert list((project.parent / "volume" / "p").glob("runs/2*/checkpoints/checkpoint-*"))
    assert "stopped" in (gone := trainwiz("runs", str(project)).out)
    assert "deleted from the cluster" in gone
    assert not server.cluster.unknown, "kubectl asked for what this server does not have"


def test_a_stopped_pod_goes_on_and_a_failed_one_says_why(server: kube_api.Server, project: Path) -> None:
    """The node of a pod is drained: it ends with 75, and the next one goes on. Then a rank dies."""
    environ = {"KUBECONFIG": str(server.config)}
    assert projects.trainwiz("submit", str(project), env=environ).code == 0
    eventually(lambda: '"update": ' in logs(server), within=120, says=lambda: logs(server))
    [first] = server.cluster.pods.values()
    first.end()
    assert first.process.returncode == 75

    def state() -> str:
        return projects.trainwiz("runs", str(project), env=environ).out

    assert re.search("running|requeued", state())
    _, second = server.cluster.pods.values()
    eventually(lambda: '"update": ' in second.log.read_text(), within=120, says=second.log.read_text)
    assert "continuing" in second.log.read_text()
    follower = subprocess.Popen(
        [sys.executable, "-m", "trainwiz", "logs", str(project), "-f"],
        env=projects.environment(environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: second.log.read_text().count('"update": ') > 1, within=120, says=second.log.read_text)

    task = project.parent / "volume" / "p" / "task.py"
    task.write_text("raise RuntimeError('no data on this volume')\n")
    second.end()
    eventually(lambda: "failed" in state(), within=120, says=state)
    diagnosed = projects.trainwiz("diagnose", str(project), env=environ)
    assert "no data on this volume" in diagnosed.out + diagnosed.err
    # Followed or not: what the pods wrote, in the order of time, each line once.
    printed, _ = follower.communicate(timeout=60 * patience())
    assert printed == projects.trainwiz("logs", str(project), env=environ).out
    assert printed.index("no data on this volume") > printed.index("continuing") > printed.index('"update": ')


@pytest.mark.parametrize("workload", ["trainjob", "jobset"])
def test_custom_resources_are_created_and_deleted_by_kubectl(
    workload: str, server: kube_api.Server, tmp_path: Path
) -> None:
    """Twice from the same folder, in a namespace of its own; a runtime that differs is applied again."""
    environ = {"KUBECONFIG": str(server.config)}
    values = {
        **REGRESSION,
        "machine.num_machines": 2,
        "cluster.kind": "kubernetes",
        "cluster.workload": workload,
        "cluster.namespace": "team-a",
        "cluster.image": "example.com/train:1",
        "cluster.volume": "claim",
    }
    folder = str(projects.make(tmp_path / "p", values))
    first = projects.trainwiz("submit", folder, env=environ)
    assert first.code == 0, first.err
    assert projects.trainwiz("update", folder, "--set", "cluster.memory=8Gi", env=environ).code == 0
    second = projects.trainwiz("submit", folder, env=environ)
    assert second.code == 0, second.err
    jobs = [path for path in server.cluster.custom if f"/team-a/{workload}s/" in path]
    assert [done.out.strip().rpartition("/")[2] for done in (first, second)] == [path.split("/")[-1] for path in jobs]
    runtimes = [path for path in server.cluster.custom if "/trainingruntimes/" in path]
    assert server.cluster.patched == runtimes
    assert len(runtimes) == (workload == "trainjob")

    listed = projects.trainwiz("runs", folder, env=environ).out
    assert listed.count("queued") == 2, listed
    assert projects.trainwiz("stop", folder, env=environ).code == 0
    assert projects.trainwiz("stop", folder, "--run", first.out.strip(), env=environ).code == 0
    assert [path for path in server.cluster.custom if path not in runtimes] == []
