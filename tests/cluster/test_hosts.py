"""`launch --hosts`: a program named ssh that runs what it is given in a shell here, as sshd would on another host."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
from engine_children import claimed
from plans import completed

from trainwiz.errors import UsageError
from trainwiz.workflows.launch import hosts

SSH = """#!/bin/sh
shift 7  # -o A -o B -o C --
case $1 in *refused) echo "ssh: connect to host $1 port 22: Connection refused" >&2; exit 255;; esac
host=$1; shift
exec env HOST_OF_TEST=$host sh -c "$*"
"""


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return projects.environment({"PATH": path, "GLOO_SOCKET_IFNAME": "lo", "XDG_CACHE_HOME": str(tmp_path / "cache")})


SCRIPT = """
import os, signal, sys, time
rank, stop = os.environ["RANK"], []
print("rank", rank, "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
if "wait" in sys.argv:
    open(f"ready-{rank}", "w").write("x")
    while not stop: time.sleep(0.05)
    print("saved", rank, flush=True)
"""


def project(folder: Path, script: str = SCRIPT) -> Path:
    folder.mkdir()
    machine = f"machine: {{num_machines: 2, num_processes: 2, main_process_port: {claimed.port()}}}\n"
    batch = "batch: {real_batch_size: 32, per_device_batch_size: 8, gradient_accumulation_steps: 2}\n"
    (folder / "trainwiz.yaml").write_text(completed(f"{machine}strategy: {{kind: ddp}}\n{batch}"))
    (folder / "train.py").write_text(script)
    return folder


def launch(folder: Path, environ: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "trainwiz", "launch", str(folder), *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=180, check=False)


def test_a_host_that_refuses_is_a_sentence_and_the_others_end(tmp_path: Path, environ: dict[str, str]) -> None:
    done = launch(project(tmp_path / "p"), environ, "--hosts", "127.0.0.1,refused", "--wait", "60")
    assert done.returncode == 75, done.stderr
    said = " ".join(done.stderr.split())
    assert "refused: not started, or its connection was lost (exit code 255): ssh: connect to host refused" in said
    assert "`ssh refused true` must work without a password" in said
    assert "[127.0.0.1] stopped by SIGTERM before the ranks were started" in said


def test_what_is_typed_there(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = project(tmp_path / "p")
    words = ("--hosts", "a,u@[fe80::1]", "--dry-run", "--nnodes", "1:2", "--ignore", "TW1", "--ignore", "TW2", "--new")
    done = launch(folder, environ, *words, "--", "--name", "a b")
    first, second = map(shlex.split, done.stdout.splitlines())
    assert (first[-2], second[-2]) == ("a", "u@fe80::1")
    there = shlex.split(second[-1])
    assert there[:4] == ["cd", str(folder), "&&", "exec"]
    assert "MASTER_ADDR=a" in there
    tail = there[there.index("launch") + 1 :]
    assert tail[:2] == ["--machine-rank", "1"]
    assert tail[2:] == ["--new", "--ignore", "TW1", "--ignore", "TW2", "--nnodes", "1:2", "--", "--name", "a b"]
    # Nothing was started.
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "says", "run"),
    [
        (("--hosts", "a"), "--hosts lists 1 host, but the plan has 2 machines", "--set machine.num_machines=1"),
        (("--hosts", "a:4,b"), "a has 4 ranks, but the plan has 1 on each machine", "--set machine.num_processes=8"),
        (("--hosts", "a,b", "--machine-rank", "0"), "cannot be combined with", ""),
    ],
)
def test_hosts_that_do_not_fit(
    tmp_path: Path, environ: dict[str, str], words: tuple[str, ...], says: str, run: str
) -> None:
    folder = project(tmp_path / "p")
    done = launch(folder, environ, *words)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert says in said
    assert not run or f"trainwiz update {folder} {run}" in said


def test_without_ssh_or_inside_a_job(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = project(tmp_path / "p")
    done = launch(folder, {**environ, "PATH": str(tmp_path)}, "--hosts", "a,b")
    assert (done.returncode, "apt install openssh-client" in done.stderr) == (1, True)
    done = launch(folder, {**environ, "SLURM_JOB_ID": "7"}, "--hosts", "a,b")
    assert (done.returncode, "srun --ntasks-per-node=1" in done.stderr) == (2, True)


@pytest.mark.parametrize("words", ["", "a,", "-oProxyCommand=x,b", "a,a", "a b,c", "a:x,b", "a;b,c", "a,@b", "a\nb,c"])
def test_what_is_no_host(words: str) -> None:
    with pytest.raises(UsageError):
        hosts.parsed(words)
