"""A run over two hosts that loses one of them, goes on, and gets it back, in all ways in which that happens.

The hosts are network namespaces, each with a launcher and a real rank. The ranks are forked: what is lost and comes
back, and what is trained, is the same.
"""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import projects
import psutil
import pytest
import test_several_machines
import warm
from patience import patience
from test_several_machines import Hosts

pytestmark = pytest.mark.train

VALUES = {
    **projects.REGRESSION,
    "data.eval": "",
    "machine.num_machines": 2,
    "machine.main_process_ip": "10.78.0.1",
    "batch.real_batch_size": 16,
    "batch.per_device_batch_size": 4,
    "schedule.n_steps": 90,
    "checkpoint.checkpointing_steps": 4,
    "machine.main_process_port": 29562,
}
PACE = "import time; time.sleep(0.06)"


class Pair:
    """Two launchers of one project, each on its host."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts = folder, hosts
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        self.said: dict[int, list[Path]] = {0: [], 1: []}

    def start(self, machine: int, *words: str) -> "subprocess.Popen[bytes]":
        own = warm.torchrun()
        typed = warm.command(self.folder / "train.py", "launch", "--machine-rank", str(machine), *words, env=own)
        argv = [*self.hosts.on(machine), *typed]
        log = self.folder.parent / f"machine-{machine}-{len(self.said[machine])}.txt"
        self.said[machine].append(log)
        environ = projects.environment(own)
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
            )
        self.launchers[machine] = process
        return process

    def text(self, machine: int, nth: int = -1) -> str:
        return self.said[machine][nth].read_text()

    def trains(self) -> None:
        """Wait until it has trained some more updates, with those who train now."""
        update = (updates(self.folder) or [0])[-1] + 3
        self.until(lambda: updates(self.folder)[-1:] >= [update])

    def said_by(self, machine: int, words: str, *, times: int = 1) -> None:
        self.until(lambda: " ".join(self.text(machine).split()).count(words) >= times)

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 180 * patience()
        while not holds():
            said = self.text(0) + self.text(1)
            assert self.launchers[0].poll() is None, said
            assert time.monotonic() < end, said
            time.sleep(0.05)

    def ended(self) -> list[int]:
        return [self.launchers[machine].wait(180) for machine in (0, 1)]

    def clear(self) -> None:
        for process in self.launchers.values():
            process.kill()
            process.wait()


def updates(folder: Path) -> list[int]:
    try:
        lines = (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
        return [record["update"] for record in map(json.loads, lines) if "loss" in record]
    except (OSError, ValueError):
        return []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same training on one machine."""
    values = {k: v for k, v in VALUES.items() if "machines" not in k and "main_process" not in k and k != "ignore"}
    folder = projects.make(tmp_path_factory.mktemp("whole") / "p", values)
    assert warm.launch(folder).code == 0
    return projects.losses(folder)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with test_several_machines.made() as hosts:
        yield from paired(tmp_path, hosts)


def paired(tmp_path: Path, hosts: Hosts) -> Iterator[Pair]:
    folder = projects.make(tmp_path / "p", VALUES)
    projects.begins_with(folder, "loss_sum", PACE)
    made = Pair(folder, hosts)
    yield made
    made.clear()


def record(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "runs" / "latest" / "outcome.json").read_text())
    return found


def frozen(pair: Pair, machine: int) -> list[psutil.Process]:
    """A launcher, its rank and all that it started, stopped at once."""
    process = psutil.Process(pair.launchers[machine].pid)
    ranks = warm.processes(pair.folder, machine)
    found = list({each.pid: each for each in (process, *process.children(recursive=True), *ranks)}.values())
    for each in found:
        each.suspend()
    return found


def thawed(processes: list[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.resume()


def test_a_host_is_lost_in_every_way_and_comes_back(pair: Pair, undisturbed: list[float]) -> None:
    options = ("--nnodes", "1:2", "--max-restarts", "1", "--rejoin", "2", "--wait", "60")
    alone, again = "continuing with 1 of 2 machines (0): 16 = 4 × 4 × 1", "continuing with 2 of 2 machines (0, 1)"
    for machine in (0, 1):
        pair.start(machine, *options, *(("--rejoin", "100") if machine else ()))

    pair.trains()
    hung = frozen(pair, 1)
    pair.said_by(0, alone)
    thawed(hung)
    pair.said_by(0, again)  # by itself: nobody typed anything

    pair.trains()
    pair.hosts.cut(1)
    pair.said_by(0, alone, times=2)
    pair.hosts.mend(1)
    pair.said_by(0, again, times=2)  # by itself, too

    pair.trains()
    pair.launchers[1].kill()
    pair.launchers[1].wait()
    pair.said_by(0, alone, times=3)
    pair.start(1, *options)
    pair.said_by(0, again, times=3)

    pair.trains()
    pair.launchers[1].send_signal(signal.SIGTERM)
    assert pair.launchers[1].wait(180) == 75, pair.text(1)
    pair.said_by(0, "machine 1 was asked to stop; the others continue")
    pair.said_by(0, alone, times=4)
    pair.start(1, *options)
    assert pair.ended() == [0, 0], pair.text(0) + pair.text(1)

    attempts = [(a["exit_code"], a["machines"]) for a in record(pair.folder)["attempts"]]  # type: ignore[attr-defined]
    assert [machines for _, machines in attempts] == [[0, 1], [0], [0, 1], [0], [0, 1], [0], [0, 1], [0], [0, 1]]
    assert [code for code, machines in attempts if machines == [0]] == [75, 75, 75, 75]
    assert updates(pair.folder) == list(range(1, 91))
    assert projects.losses(pair.folder) == pytest.approx(undisturbed, rel=1e-5)
    said = " ".join(pair.text(0).split())
    assert "machine 1 is lost" in said
    assert said.count("nothing was received from it for 20 s, since ") >= 2
    assert "its launcher ended" in said
    first = " ".join(pair.text(1, 0).split())
    assert "it received nothing from this machine for 20 s" in first
    assert "machine 0 does not respond: trying to reach it again, for at most 100 s" in first
