"""`launch --hosts` by a real ssh and a real sshd on this machine, with keys and configurations of their own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import projects
import pytest
from engine_children import claimed
from patience import patience
from test_hosts import launch, project
from test_ranks import wait_for

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/me.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Banner {folder}/banner
SetEnv HOME={folder} TRAINWIZ_LANG=en GLOO_SOCKET_IFNAME=lo PYTHONPATH={path} XDG_CACHE_HOME={folder}
"""
CLIENT = """\
Host *
  HostName 127.0.0.1
  Port {port}
  IdentitiesOnly yes
  IdentityAgent none
Host one two unnamed
  UserKnownHostsFile {folder}/known
  IdentityFile {folder}/me
Host stranger
  UserKnownHostsFile /dev/null
  IdentityFile {folder}/me
Host locked
  UserKnownHostsFile {folder}/known
  IdentityFile {folder}/host
"""


@dataclass
class Sshd:
    """The server, and the environment in which `ssh` reaches it."""

    folder: Path
    environ: dict[str, str]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    ssh = shutil.which("ssh")
    if not (SSHD and ssh) or os.geteuid():
        pytest.skip("ssh to this machine needs root, ssh and sshd (openssh-server)")
    folder, port = tmp_path_factory.mktemp("sshd"), claimed.port()
    for name in ("host", "me"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "banner").write_text("All activity is monitored.\n")
    (folder / ".bashrc").write_text("echo welcome to the cluster; echo 'no quota left' >&2\n")
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    values = {"port": port, "folder": folder, "path": projects.environment().get("PYTHONPATH", "")}
    (folder / "server").write_text(SERVER.format(**values))
    (folder / "client").write_text(CLIENT.format(**values))
    (folder / "bin").mkdir()
    # The user's own configuration is not read, and not needed.
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {folder}/client "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # where it separates its privileges
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "server")], stderr=log)
    environ = projects.environment({"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
    try:
        until = time.monotonic() + 30 * patience()
        while subprocess.run(["ssh", "one", "true"], env=environ, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        yield Sshd(folder, environ)
    finally:
        server.terminate()
        server.wait()


def test_ctrl_c_by_ssh_saves_on_all_hosts_behind_a_banner_and_a_profile_that_prints(sshd: Sshd, tmp_path: Path) -> None:
    """The address of machine 0 is that of its name in ssh's configuration; a shell must not see the folder's name."""
    folder = project(tmp_path / "it's $(touch evil) & more")
    argv = [sys.executable, "-m", "trainwiz", "launch", str(folder), "--hosts", "one,root@two:1", "--wait", "90"]
    with subprocess.Popen(
        [*argv, "--", "wait", "a; b"], env=sshd.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for rank in (0, 1):
            wait_for(folder / f"ready-{rank}")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=180)
    assert process.returncode == 75, out + said
    for host in ("one", "root@two"):
        assert f"[{host}] welcome to the cluster" in out
        assert f"[{host}] All activity is monitored." in said
        assert f"[{host}] Ctrl-C: asked the ranks to save and exit" in said
    assert "at 127.0.0.1:" in said
    assert "'wait', 'a; b']" in out
    assert "[one] saved 0" in out
    assert not list(tmp_path.rglob("evil"))
    assert "saved 1" in (folder / "runs" / "latest" / "logs" / "rank-1.log").read_text()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("stranger", "Host key verification failed."),
        ("locked", "Permission denied (publickey"),
        ("nobody@unnamed", "Permission denied (publickey"),
    ],
)
def test_a_host_that_lets_nobody_in_is_named_with_sshs_own_words(
    host: str, why: str, sshd: Sshd, tmp_path: Path
) -> None:
    done = launch(project(tmp_path / "p"), sshd.environ, "--hosts", f"one,{host}", "--wait", "90")
    said = " ".join(done.stderr.split())
    assert done.returncode == 75, said
    assert f"{host}: not started, or its connection was lost (exit code 255)" in said
    assert why in said
    assert "[one] stopped by SIGTERM before the ranks were started" in said
