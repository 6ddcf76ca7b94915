"""`trainwiz launch --debug` with a real debugger: attached by port, stopped in a rank, while the others wait."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import projects
import pytest
import warm
from debugger import Debugger
from patience import patience
from test_launch import TRAINWIZ, latest, launch, project, read
from test_ranks import gone

from trainwiz import command
from trainwiz.command.debugger import FIRST_PORT
from trainwiz.errors import UsageError
from trainwiz.workflows.launch import debugger


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        patch.delenv("SSH_CONNECTION", raising=False)
        yield


class Launched:
    """A launch that runs, with what it says."""

    def __init__(self, folder: Path, *words: str, trainwiz: Sequence[str] = (*TRAINWIZ, "launch"), **environ: str):
        self.folder = folder
        self.said = (folder / "said.txt").open("w+")
        self.process = subprocess.Popen(
            [*trainwiz, *words],
            cwd=folder,
            stdout=self.said,
            stderr=self.said,
            stdin=subprocess.DEVNULL,
            env={**projects.environment(), **environ},
        )

    def text(self) -> str:
        return (self.folder / "said.txt").read_text(errors="replace")

    def ports(self, n: int) -> dict[int, int]:
        """Where so many ranks wait, by what is said."""
        until = time.monotonic() + 150 * patience()
        while time.monotonic() < until and self.process.poll() is None:
            found = re.findall(r"rank (\d+) is waiting for a debugger on 127\.0\.0\.1:(\d+)", self.text())
            if len(found) == n:
                return {int(rank): int(port) for rank, port in found}
            time.sleep(0.05)
        raise AssertionError(self.text())

    def code(self, within: float = 150) -> int:
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.text()) from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.said.close()


@contextlib.contextmanager
def launched(folder: Path, *words: str, **options: Any) -> Iterator[Launched]:
    found = Launched(folder, *words, **options)
    try:
        yield found
    finally:
        found.close()


def line_of(file: Path, text: str) -> int:
    return 1 + next(i for i, line in enumerate(file.read_text().splitlines()) if text in line)


def test_which_ranks() -> None:
    assert debugger.ranks("all", 3) == [0, 1, 2]
    assert debugger.ranks("2,0", 3) == [0, 2]
    for words in ("3", "x", ",", "1.5"):
        with pytest.raises(UsageError):
            debugger.ranks(words, 3)


def test_only_the_chosen_ranks_wait_and_none_is_hurried() -> None:
    ranks = tuple(command.Rank(rank=r) for r in range(2))
    plain = command.Command(argv=("py", "-u", "train.py", "--lr", "1"), environ={"A": "b"}, ranks=ranks, cwd=".")
    changed = command.debugged(plain, {1: 5999})
    assert changed.ranks[0].argv is None
    argv = changed.ranks[1].argv
    assert argv
    assert argv[-5:] == ("127.0.0.1:5999", "--wait-for-client", "train.py", "--lr", "1")
    assert changed.environ["A"] == "b"
    assert int(changed.environ["TRAINWIZ_PATIENCE"]) > 86400


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--debug", "7"), "the ranks on this machine are 0 to 1"),
        (("--debug", "all", "--max-restarts", "1"), "cannot be combined with --max-restarts or --auto-batch"),
    ],
)
def test_what_cannot_be_debugged_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = launch(project(tmp_path / "p", ""), *words)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n  ", " ")
    assert not list((tmp_path / "p").glob("runs/*"))


def test_without_debugpy_it_says_what_to_type(tmp_path: Path) -> None:
    python = tmp_path / "python"
    # An interpreter that has everything but debugpy.
    python.write_text(f'#!/bin/sh\ncase "$*" in *debugpy*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = launch(project(tmp_path / "p", ""), "--debug", "--python", str(python))
    assert done.returncode == 1
    assert f"{python} -m pip install debugpy" in done.stderr


def test_a_dry_run_shows_how_ranks_would_be_started(tmp_path: Path) -> None:
    done = launch(project(tmp_path / "p", ""), "--dry-run", "--debug", "1")
    assert "-m debugpy --listen 127.0.0.1:" in done.stdout
    assert "TRAINWIZ_PATIENCE=" in done.stdout


IMPATIENT = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=1))
second = dist.new_group(timeout=timedelta(seconds=1))
rank = dist.get_rank()
number = torch.ones(1) * (rank + 1)
if rank == 0:
    number += 0  # stop here
dist.all_reduce(number, group=second)
dist.all_reduce(number)
print("sum", int(number), __name__, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.train
def test_the_others_wait_longer_than_the_script_itself_allows(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", IMPATIENT)
    script = folder / "train.py"
    with launched(folder, "--debug") as run:
        (port,) = run.ports(1).values()
        time.sleep(2)  # rank 1 waits for rank 0 in init_process_group, longer than the script says
        with Debugger(port) as debugger:
            debugger.breakpoint(script, line_of(script, "# stop here"))
            debugger.go()
            thread, file, line = debugger.stopped()
            assert (file, line) == ("train.py", line_of(script, "# stop here"))
            assert debugger.value("rank, int(number)") == "(0, 1)"
            time.sleep(2.5)  # and now in a collective
            assert run.process.poll() is None, run.text()
            debugger.resume(thread)
            assert run.code() == 0, run.text()
    log = (latest(folder) / "logs" / "rank-1.log").read_text()
    assert "sum 6 __main__" in log
    assert read(folder, "outcome")["ranks"] == {"0": 0, "1": 0}


@pytest.mark.train
def test_a_taken_port_is_replaced_and_all_ranks_can_be_held(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "x = 1\nprint('rank', os.environ['RANK'], 'passed')\n")
    script = folder / "train.py"
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", FIRST_PORT))
        taken.listen()
        with launched(folder, "--debug", "all") as run:
            ports = run.ports(2)
            assert ports[0] != FIRST_PORT
            assert f"port {FIRST_PORT}, set for this rank in .vscode/launch.json, is already in use" in run.text()
            with Debugger(ports[0]) as first, Debugger(ports[1]) as second:
                for rank, debugger in enumerate((first, second)):
                    debugger.breakpoint(script, line_of(script, "x = 1"))
                    debugger.go()
                    thread, _, _ = debugger.stopped()
                    assert debugger.value("os.environ['RANK']") == f"'{rank}'"
                    debugger.resume(thread)
                assert run.code() == 0, run.text()


def test_ctrl_c_while_nobody_attaches_ends_it(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "Path('ran').touch(); time.sleep(300)\n")
    with launched(folder, "--debug", "0") as run:
        run.ports(1)
        until = time.monotonic() + 90 * patience()
        while not (pids := debugpy_processes(folder)) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        pids = debugpy_processes(folder)
        assert pids
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.code(90) == 130
        assert time.monotonic() - began < 60 * patience()
    assert all(gone(pid) for pid in pids)


def debugpy_processes(folder: Path) -> list[int]:
    """The rank that waits, and debugpy's adapter beside it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd") == str(folder) and b"debugpy" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.train
@pytest.mark.parametrize("kind", ["ddp", "deepspeed"])
def test_a_breakpoint_in_task_py_of_a_real_training(tmp_path: Path, kind: str) -> None:
    strategy = {"strategy.kind": kind, **({"strategy.zero_stage": 2} if kind == "deepspeed" else {})}
    folder = projects.make(tmp_path / "p", {**projects.REGRESSION, **strategy, "data.eval": ""})
    task = folder / "task.py"
    line = line_of(task, "return (errors.square() * batch[")
    # Under DDP rank 1 starts from scratch, under the debugger; all others are forked.
    command = warm.command(folder / "train.py", "launch", debugged=kind != "ddp")
    with launched(folder, "--debug", "1", trainwiz=command) as run:
        (port,) = run.ports(1).values()
        assert run.ports(1).keys() == {1}
        debugger = Debugger(port)
        debugger.breakpoint(task, line)
        debugger.go()
        thread, file, at = debugger.stopped()
        assert (file, at) == ("task.py", line)
        assert debugger.value("errors.shape[0]") == "4"
        debugger.clear(task)
        debugger.resume(thread)
        debugger.leave()
        assert run.code(180) == 0, run.text()
    assert len(projects.losses(folder)) == 8
