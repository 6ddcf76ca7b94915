"""Failures of real ranks, and what trainwiz says of them: who was first, and what lay around."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projects import Done, environment

from trainwiz.outcome import signal_name

CONFIG = """
distributed_type: MULTI_CPU
use_cpu: true
num_machines: 1
num_processes: 2
mixed_precision: 'no'
"""
HEAD = "import os, time\nprint('step 1', flush=True)\nif os.environ['RANK'] == '0':\n    time.sleep(60)\n"
EXHAUST = "held = []\nwhile True:\n    held.append(b'x' * 2**24)\n"
OVERFILL = (
    "import mmap\nf = open('/dev/shm/x', 'w+b')\nf.truncate(2**24)\nmmap.mmap(f.fileno(), 2**24)[:] = b'x' * 2**24\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(CONFIG)
    return tmp_path


def launched(place: Path, program: str, *before: str, head: str = HEAD) -> tuple[Done, dict[str, Any]]:
    """Launch a script whose rank 1 runs the program, behind the words `before`; how it ended and its record."""
    (place / "fails.py").write_text(head + program)
    done = subprocess.run(
        [*before, sys.executable, "-m", "trainwiz", "launch", "--config", "a.yaml", "fails.py"],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    record = place / "runs/latest/outcome.json"
    return Done(done.returncode, done.stdout, done.stderr), json.loads(record.read_text()) if record.is_file() else {}


@pytest.mark.parametrize(
    ("program", "code", "name", "cause"),
    [
        ("raise OSError(28, 'No space left on device')", 1, "disk_full", "the disk is full, or your quota is used up"),
        ("raise SystemExit(42)", 42, "exit_code", "the script exited with this code without raising an exception"),
        ("import ctypes; ctypes.string_at(0)", 139, "segfault", "the rank crashed in native code"),
        ("os.kill(os.getpid(), 9)", 137, "killed", "the rank was killed from outside"),
    ],
)
def test_the_rank_that_failed_first_is_explained(place: Path, program: str, code: int, name: str, cause: str) -> None:
    done, record = launched(place, program)
    assert done.code == code
    how = f", ended by {signal_name(code - 128)}" if code > 128 else f" with exit code {code}"
    assert f"rank 1 failed first{how}\n" in done.err
    assert "ranks that ended as a result: 0" in done.err
    assert cause in done.err
    assert (record["diagnosis"]["name"], record["diagnosis"]["followed_ranks"]) == (name, [0])
    assert {"shm_free_bytes", "disk_free_bytes"} <= record["observed"].keys()


def test_who_only_lost_the_other_is_not_called_the_first(place: Path) -> None:
    """Rank 1 has failed, and ends after rank 0, which has lost the connection to it."""
    lost = "RuntimeError('[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6027')"
    (place / "lost.py").write_text(
        f"import os, time\nwhile not os.path.exists('failed'): time.sleep(0.02)\nraise {lost}\n"
    )
    program = (
        "import signal, pathlib\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('failed').touch()\n"
        "time.sleep(0.3)\nos._exit(42)"
    )
    done, record = launched(place, program, head="import os, time\nif os.environ['RANK'] == '0': import lost\n")
    assert (done.code, record["first_failed_rank"], record["ranks"]) == (42, 1, {"0": 1, "1": 42})
    assert "rank 1 failed first with exit code 42" in done.err
    assert "ranks that ended as a result: 0" in done.err


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup that may use 400 MB; removed afterwards."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2) for line in lines if "memory" in line), None)
    if own is None or os.getuid() != 0:
        pytest.skip("needs root and a memory cgroup of version 1")
    folder = Path("/sys/fs/cgroup/memory") / own[2].strip("/") / f"trainwiz-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(400 * 2**20))
    except OSError as error:
        pytest.skip(f"no cgroup may be made here: {error}")
    yield folder
    folder.rmdir()


def test_a_kill_by_the_memory_limit_is_told_from_other_kills(place: Path, limited: Path) -> None:
    done, record = launched(place, EXHAUST, "sh", "-c", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "sh")
    assert done.code == 137
    assert record["observed"]["oom_kills"] == 1
    assert record["diagnosis"]["name"] == "cgroup_memory"
    assert record["diagnosis"]["passing"] is False
    assert "out-of-memory kills counted by the cgroup during the run: 1" in done.err


def test_a_full_dev_shm_is_seen(place: Path) -> None:
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root to mount a small /dev/shm")
    mounted = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    done, record = launched(place, OVERFILL, "unshare", "-m", "sh", "-c", mounted, "sh")
    if "mount" in done.err:
        pytest.skip("nothing may be mounted here")
    assert done.code == 135
    assert record["diagnosis"]["name"] == "bus_error"
    assert "/dev/shm was almost full: 0 MiB of 1 MiB free" in done.err
