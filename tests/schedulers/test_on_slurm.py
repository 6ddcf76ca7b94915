"""A job that `trainwiz submit` hands to a real Slurm: it trains on two nodes, saves and stops."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from projects import REGRESSION, trainwiz

from trainwiz.network import ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
CONF = """\
ClusterName=trainwiz
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=4000
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=4000
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a cluster of two nodes."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"a Slurm of two nodes needs root and {', '.join(missing or PROGRAMS)} (slurm-wlm, munge)")
    folder = tmp_path_factory.mktemp("slurm")
    with contextlib.ExitStack() as claimed:
        numbers = [claimed.enter_context(ports.claim(0)).number for _ in range(3)]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname(), ports=numbers, folder=folder))
    for name in ("state", "spool-one", "spool-two"):
        (folder / name).mkdir()
    environ = {"SLURM_CONF": str(conf), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        subprocess.run(["install", "-d", "-o", "munge", "/run/munge"], check=True)
        subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "munged --force"], check=True)
    try:
        for argv in (["slurmctld"], ["slurmd", "-N", "one"], ["slurmd", "-N", "two"]):
            subprocess.run(argv, env={**os.environ, **environ}, check=True, capture_output=True)
        eventually(lambda: asked(environ, "sinfo", "-h", "-N", "-t", "idle").count("\n") == 2, within=60)
        yield environ
    finally:
        for file in folder.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)


def eventually(is_so: Callable[[], bool], within: float) -> None:
    until = time.monotonic() + within * patience()
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.5)


def asked(environ: dict[str, str], *argv: str) -> str:
    return subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, check=False).stdout


def state(environ: dict[str, str], project: Path) -> dict[str, Any]:
    """The newest line of `trainwiz runs`."""
    done = trainwiz("runs", str(project), "--json", env=environ)
    lines = json.loads(done.out)
    return lines[-1] if lines else {}


def own_address() -> str:
    """One that is not the loopback's, which two machines could not share."""
    found = asked({}, "hostname", "-I").split()
    if not found:
        pytest.skip("this machine has no address but the loopback's")
    return found[0]


def test_a_submitted_job_trains_on_two_nodes_and_saves_when_it_is_stopped(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    project = tmp_path / "p"
    values = {
        **REGRESSION,
        "schedule.n_steps": 100_000,
        "checkpoint.checkpointing_steps": 0,
        "machine.num_machines": 2,
        "machine.main_process_ip": own_address(),
        "cluster.kind": "slurm",
        "cluster.time_limit": "1h",
        "ignore.TW616": "both nodes are this machine",
        "ignore.TW629": "both nodes are this machine",
    }
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    made = trainwiz("init", str(project), "--defaults", "--yes", *options, env=slurm)
    assert made.code == 0, made.err
    refused = trainwiz("submit", str(project), env={**slurm, "SBATCH_PARTITION": "none-such"})
    assert refused.code == 1
    assert "invalid partition" in refused.err.lower()

    done = trainwiz("submit", str(project), env=slurm)
    assert done.code == 0, done.err
    job = done.out.strip()
    eventually(lambda: (state(slurm, project).get("updates") or 0) > 0, within=180)
    running = state(slurm, project)
    assert (running["state"], running["job"]) == ("running", job)
    again = trainwiz("submit", str(project), env=slurm)
    assert state(slurm, project)["state"] == "queued"
    assert trainwiz("stop", str(project), "--run", again.out.strip(), env=slurm).code == 0

    assert trainwiz("stop", str(project), "--run", job, env=slurm).code == 0
    eventually(lambda: "ExitCode=75:0" in asked(slurm, "scontrol", "show", "job", job), within=120)
    (run,) = (project / "runs").glob("2*")
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) == 1
    assert {file.name for file in (run / "logs").glob("rank-?.log")} == {"rank-0.log", "rank-1.log"}
    # It was asked to stop, and must not begin again.
    time.sleep(1)
    assert "Requeue=0" in asked(slurm, "scontrol", "show", "job", job)
    assert "JobState=FAILED" in asked(slurm, "scontrol", "show", "job", job)
