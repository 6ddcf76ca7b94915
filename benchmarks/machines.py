"""What many machines cost a launch outside the training: the roll-call, the connections, the starts, the ends.

`python benchmarks/machines.py` calls the roll of 2 to 512 machines over loopback: machine 0 in this process, whose
CPU time is measured alone, all others in a child, each with a thread. Those that go on together stay connected for some
seconds. `--launches` starts `trainwiz launch` once for each of 2, 4 and 8 machines, with light ranks behind the real
torchrun: a rank fails, all begin again, and then all are asked to stop. What it prints stands in docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwiz.network import messages, rollcall
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.network.rollcall import Machine, Roll

SECRET = "three plain words"
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
FACTS = {f"fact {n}": "0123456789abcdef" * 2 for n in range(10)}
LAUNCHES = (2, 4, 8)
RANKS = 8
CONNECTED_SECONDS = 10.0
RANK = """\
import os, signal, sys, time
me = f"{os.environ['RANK']}-{'again' if '--resume' in sys.argv else 'first'}"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open(f"started-{me}", "w").close()
while not (os.path.exists("fail") and me == os.environ["FAILS"]):
    time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
PLAN = """\
engine: accelerate
model: {from_scratch: true, activation_checkpointing: none, lora_alpha: 32}
data: {eval: embedded, num_workers: 0, packing: true}
strategy:
  kind: ddp
  zero_stage: null
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init: false
  zero3_save_16bit_model: false
precision: {mixed_precision: "no"}
schedule: {train_strategy: steps, n_epochs: null, n_steps: 100, n_warmup_steps: 0}
optimizer: {learning_rate: 3.0e-4, weight_decay: 0.1}
checkpoint: {checkpointing_steps: 100}
tracking: {logging_steps: 10}
"""


def main() -> None:
    """Measure, and print rows of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--launches", type=int, nargs="*", help="also launch on so many machines")
    parser.add_argument("--guests", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--stay", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.guests:
        attend(*asked.guests, stay=asked.stay)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the child, which is a thousand machines
    print(f"open files {soft}, load average {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores")
    for machines in asked.sizes:
        print(row(machines, *roll_called(machines), *connected(machines)), flush=True)
    for machines in LAUNCHES if asked.launches == [] else asked.launches or ():
        print(row(machines, machines * RANKS, *launched(machines)), flush=True)


def row(*cells: object) -> str:
    """Of a table in Markdown."""
    return f"| {' | '.join(f'{c:.3g}' if isinstance(c, float) else str(c) for c in cells)} |"


def machine(rank: int, machines: int) -> Machine:
    """One that is like all others."""
    return Machine(rank=rank, hostname=f"node{rank:04}.cluster", plan="p" * 64, machines=machines, facts=FACTS)


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def guests(machines: int, port: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """All machines but the first, in a process of their own."""
    argv = [sys.executable, __file__, "--guests", str(machines), str(port), *words]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    child.stdout.readline()
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def attend(machines: int, port: int, *, stay: bool) -> None:
    """Be all machines but the first; `stay` keeps them connected until stdin ends."""
    there = {"address": "127.0.0.1", "port": port}
    kept: list[Participant] = []

    def take_part(rank: int) -> None:
        me = machine(rank, machines)
        if stay:
            kept.append(Participant(me, **there, secret=SECRET))
        else:
            rollcall.attend(me, **there, wait=300, secret=lambda: SECRET)

    messages._key(SECRET)  # once, as each machine does; here all of them share the cores
    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(1, machines)]
    print("here", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("heard", flush=True)
    if stay:
        sys.stdin.read()


def roll_called(machines: int) -> tuple[int, float, float]:
    """Bytes of the verdict; seconds of machine 0's CPU, and of the clock until all others have heard it."""
    port, me = free_port(), machine(0, machines)
    messages._key(SECRET)
    with guests(machines, port) as others:
        began, used = time.monotonic(), time.process_time()
        roll = rollcall.host(me, address="127.0.0.1", port=port, wait=300, secret=SECRET, agreed={"run": "r"})
        used = time.process_time() - used
        assert others.stdout
        assert others.stdout.readline() == "heard\n", "some did not hear the verdict"
        wall = time.monotonic() - began
    verdict = messages.signed(rollcall.verdict(me, roll), secret=SECRET, own="0" * 32, theirs="0" * 32)
    return len(verdict), used, wall


def connected(machines: int) -> tuple[float, float, float]:
    """Seconds of machine 0's CPU until all are connected, then for each second; seconds until a loss is known."""
    port, me = free_port(), machine(0, machines)
    roll = Roll(machines=machines, plan=me.plan, facts=me.facts, present=(me,), agreed={})
    used = time.process_time()
    coordinator = Coordinator(me, roll, address="127.0.0.1", port=port, secret=SECRET)
    with guests(machines, port, "--stay") as others:
        assert coordinator.wait(lambda: len(coordinator.present) == machines, 300), len(coordinator.present)
        joining = time.process_time() - used
        used = time.process_time()
        time.sleep(CONNECTED_SECONDS)
        beats = (time.process_time() - used) / CONNECTED_SECONDS
        assert not coordinator.lost
        others.kill()
        began = time.monotonic()
        assert coordinator.wait(lambda: len(coordinator.lost) == machines - 1, 60)
        noticed = time.monotonic() - began
    coordinator.close()
    return joining, beats, noticed


def project(folder: Path, machines: int) -> Path:
    """A project whose ranks train nothing."""
    world, port = machines * RANKS, free_port()
    place = f"main_process_ip: 127.0.0.1, main_process_port: {port}"
    folder.joinpath("trainwiz.yaml").write_text(
        f"{PLAN}machine: {{device: cpu, num_machines: {machines}, num_processes: {world}, {place}}}\n"
        f"batch: {{real_batch_size: {world}, per_device_batch_size: 1, gradient_accumulation_steps: 1, "
        "sequence_length: 256}\n"
    )
    folder.joinpath("train.py").write_text(RANK)
    return folder


def launched(machines: int, environ: dict[str, str] | None = None) -> tuple[float, ...]:
    """Seconds from the start to the roll, to the first and the last rank; from a failure to all again; to the stop."""
    with tempfile.TemporaryDirectory() as name:
        folder = project(Path(name), machines)
        fails = f"{machines * RANKS - 1}-first"
        env = {**os.environ, "TRAINWIZ_LANG": "en", "GLOO_SOCKET_IFNAME": "lo", "FAILS": fails, **(environ or {})}
        words = ("--max-restarts", "1", "--wait", "300", "--ignore", "TW", "--hang-limit", "3000")
        argv = [sys.executable, "-m", "trainwiz", "launch", *words, "--machine-rank"]
        began = time.monotonic()
        running = []
        for n in range(machines):
            with (folder / f"said-{n}").open("wb") as said:
                running.append(subprocess.Popen([*argv, str(n)], cwd=folder, env=env, stderr=said))

        def since(holds: Callable[[], bool]) -> float:
            while not holds():
                assert time.monotonic() < began + 900, "15 minutes"
                time.sleep(0.05)
            return time.monotonic() - began

        def started(nth: str) -> int:
            return len([*folder.glob(f"started-*-{nth}")])

        try:
            rolled = since(lambda: bool([*folder.glob("runs/2*")]))
            first = since(lambda: started("first") > 0)
            last = since(lambda: started("first") == machines * RANKS)
            began = time.monotonic()
            (folder / "fail").touch()
            again = since(lambda: started("again") == machines * RANKS)
            began = time.monotonic()
            for process in running:
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(300) for process in running]
            stopped = time.monotonic() - began
        finally:
            for process in running:
                process.kill()
                process.wait()
        assert codes == [75] * machines, (folder / "said-0").read_text()
        outcome = json.loads((folder / "runs" / "latest" / "outcome.json").read_text())
        blamed = outcome["attempts"][0]["first_failed_rank"]
        assert blamed == machines * RANKS - 1, blamed
        return rolled, first, last, again, stopped


if __name__ == "__main__":
    main()
