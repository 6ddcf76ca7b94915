"""A real Slurm of two nodes on this machine, with what it and trainwiz say of its jobs."""

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

import projects
import psutil
import pytest
import warm
from patience import patience

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
SlurmdTimeout=10
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=4000
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=4000
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


ON_BOTH = {
    "machine.num_machines": 2,
    "cluster.kind": "slurm",
    "cluster.time_limit": "1h",
    "ignore": {"TW616": "both nodes are this machine", "TW629": "both nodes are this machine"},
}
"""Of plans whose machines are the two nodes."""


class Nodes:
    """The cluster, its nodes named one and two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with contextlib.ExitStack() as claimed:
            numbers = [claimed.enter_context(ports.claim(0)).number for _ in range(3)]
        conf = folder / "slurm.conf"
        conf.write_text(CONF.format(host=socket.gethostname(), ports=numbers, folder=folder))
        for name in ("state", "spool-one", "spool-two"):
            (folder / name).mkdir()
        # Last: another ninja than the one that compiled DeepSpeed's operators would compile them again.
        path = f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
        self.environ = {"SLURM_CONF": str(conf), "PATH": path}
        """In which Slurm's commands reach the cluster, and its jobs this trainwiz."""

    def up(self) -> None:
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
            subprocess.run(["install", "-d", "-o", "munge", "/run/munge"], check=True)
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "munged --force"], check=True)
        self._daemon("slurmctld")
        self._daemon("slurmd", "-N", "one")
        self.begin("two")

    def begin(self, node: str) -> None:
        """Start a node, and wait until both can take a job."""
        self._daemon("slurmd", "-N", node)
        eventually(lambda: self.asked("sinfo", "-h", "-N", "-t", "idle").count("\n") == 2, within=60)

    def _daemon(self, *argv: str) -> None:
        subprocess.run(argv, env={**os.environ, **self.environ}, check=True, capture_output=True)

    def down(self) -> None:
        """End the daemons, and what a failed test left of its jobs."""
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == self.environ["SLURM_CONF"]:
                    process.kill()

    def hang(self) -> list[psutil.Process]:
        """Node two answers nobody any more: its slurmd is gone, and all that runs there of a job is stopped."""
        launcher = self.launcher(1)
        step = launcher.parent()
        assert step
        psutil.Process(self._slurmd("two")).kill()
        stopped = {step, *step.children(recursive=True), *self._of_jobs_on(1)}
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        return list(stopped)

    def _of_jobs_on(self, node: int) -> Iterator[psutil.Process]:
        """Whoever's children they are: ranks may be forked."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                told = process.environ()
                if (told.get("SLURM_CONF"), told.get("SLURM_NODEID")) == (self.environ["SLURM_CONF"], str(node)):
                    yield process

    def _slurmd(self, node: str) -> int:
        return int((self.folder / f"slurmd-{node}.pid").read_text())

    def launcher(self, node: int) -> psutil.Process:
        """trainwiz on a node."""
        for process in self._of_jobs_on(node):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if parent and parent.name().startswith("slurmstepd"):
                    return process
        raise AssertionError(f"nothing of a job runs on node {node}")

    def asked(self, *argv: str) -> str:
        done = subprocess.run(
            argv,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * patience(),
        )
        return done.stdout

    def field(self, job: str, name: str) -> str:
        """What `scontrol show job` says."""
        words = self.asked("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words).get(name, "")

    def trainwiz(self, *words: str) -> projects.Done:
        """On the machine that submits."""
        return projects.trainwiz(*words, env=self.environ)

    def submit(self, project: Path, **environ: str) -> str:
        """The job's id. torchrun on the nodes forks its ranks, where their environment is that of a warm one."""
        done = projects.trainwiz("submit", str(project), env={**self.environ, **warm.torchrun(), **environ})
        assert done.code == 0, done.err
        return done.out.strip()

    def state(self, project: Path) -> dict[str, Any]:
        """The newest line of `trainwiz runs`."""
        lines = json.loads(self.trainwiz("runs", str(project), "--json").out)
        return lines[-1] if lines else {}

    def updates(self, project: Path) -> int:
        """The last update that the newest run recorded."""
        try:
            return int(projects.metrics(project)[-1]["update"])
        except (OSError, ValueError, IndexError):
            return 0


@contextlib.contextmanager
def two(folder: Path) -> Iterator[Nodes]:
    """The cluster, for as long as it is needed."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"a Slurm of two nodes needs root and {', '.join(missing or PROGRAMS)} (slurm-wlm, munge)")
    nodes = Nodes(folder)
    try:
        nodes.up()
        yield nodes
    finally:
        nodes.down()


def eventually(is_so: Callable[[], bool], within: float, says: Callable[[], object] = str) -> None:
    until = time.monotonic() + within * patience()
    while not is_so():
        assert time.monotonic() < until, says()
        time.sleep(0.25)


def own_address() -> str:
    """One that is not the loopback's, which two machines could not share."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    if not found:
        pytest.skip("this machine has no address but the loopback's")
    return found[0]


def pages(project: Path) -> str:
    """What the job's launchers wrote; one may write amid the other's character."""
    return "".join(file.read_text(errors="replace") for file in project.glob("slurm-*.log"))
