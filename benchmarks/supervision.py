"""What it costs to be supervised: the launcher's memory and processor time, and whether a flood of lines gets through.

`python benchmarks/supervision.py` measures `trainwiz launch` on 2 ranks: while they train as a small model does (an
update every 0.1 s, with its line in metrics.jsonl and in the output), and while each prints numbered lines as fast as
asked. `--write` puts the table into docs/reliability.md. What a launch adds to `python train.py` is measured by
benchmarks/startup.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRAINWIZ = str(Path(sys.executable).with_name("trainwiz"))
PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- supervision: written by benchmarks/supervision.py -->", "<!-- supervision: end -->"
RANKS = 2
PLAN = """
engine: accelerate
model: {from_scratch: true, activation_checkpointing: none, lora_alpha: 32}
data: {eval: embedded, num_workers: 0, packing: true}
machine: {device: cpu, num_processes: 2, main_process_port: 0}
strategy:
  kind: ddp
  zero_stage: null
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init: false
  zero3_save_16bit_model: false
precision: {mixed_precision: "no"}
batch: {real_batch_size: 32, per_device_batch_size: 8, gradient_accumulation_steps: 2, sequence_length: 256}
schedule: {train_strategy: steps, n_epochs: null, n_steps: 100, n_warmup_steps: 0}
optimizer: {learning_rate: 3.0e-4, weight_decay: 0.1}
checkpoint: {checkpointing_steps: 100}
tracking: {logging_steps: 10}
"""
TRAINS = """
import json, os, sys, time
out = sys.argv[sys.argv.index("--output_dir") + 1]
until = time.monotonic() + float(os.environ["SECONDS"])
update = 0
while time.monotonic() < until:
    update += 1
    if os.environ["RANK"] == "0":
        with open(out + "/metrics.jsonl", "a") as file:
            file.write(json.dumps({"update": update, "loss": 1 / update, "tokens_per_second": 1000.0}) + "\\n")
    print(f"update {update}", flush=True)
    time.sleep(0.1)
"""
FLOODS = """
import os, sys, time
rank, rate, seconds = os.environ["RANK"], int(os.environ["RATE"]), float(os.environ["SECONDS"])
began, n, total = time.monotonic(), 0, int(rate * seconds)
while n < total:
    # In bursts, as a program's buffer empties.
    due = min(total, int((time.monotonic() - began) * rate) + 1)
    if due > n:
        sys.stdout.write("".join(f"rank {rank} says line {i:09d} of many\\n" for i in range(n, due)))
        n = due
    time.sleep(0.002)
sys.stdout.flush()
print(f"took {time.monotonic() - began:.2f}", file=open(f"took-{rank}", "w"))
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of the launcher's own process. `share` is processor seconds per second."""

    resident_bytes: int
    share: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A flood of lines. `late` is how long after the ranks' end the launcher had shown everything and ended."""

    lines: int
    in_logs: int
    shown: int
    per_second: float
    late: float


@contextlib.contextmanager
def project(script: str) -> Iterator[Path]:
    """A folder with a plan and this script."""
    folder = Path(tempfile.mkdtemp(prefix="supervision-"))
    try:
        (folder / "trainwiz.yaml").write_text(PLAN)
        (folder / "train.py").write_text(script)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environ(**values: object) -> dict[str, str]:
    """The environment of a launch."""
    return {**os.environ, "TRAINWIZ_LANG": "en", **{name: str(value) for name, value in values.items()}}


def cost(seconds: float) -> Cost:
    """While the ranks train: from 2 s after their first numbers."""
    with project(TRAINS) as folder:
        process = subprocess.Popen(
            [TRAINWIZ, "launch"],
            cwd=folder,
            env=environ(SECONDS=seconds + 5),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not list(folder.glob("runs/latest/metrics.jsonl")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(2)
        began, before = time.monotonic(), processor_seconds(process.pid)
        resident = 0
        while time.monotonic() - began < seconds and process.poll() is None:
            resident = max(resident, resident_bytes(process.pid))
            time.sleep(0.5)
        spent, passed = processor_seconds(process.pid) - before, time.monotonic() - began
        process.wait(60)
    return Cost(resident_bytes=resident, share=spent / passed, seconds=passed)


def processor_seconds(pid: int) -> float:
    """User and system time: proc(5), fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """VmRSS."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def flood(per_rank: int, seconds: float, *, terminal: bool) -> Flood:
    """So many lines per second from each rank; shown in a pipe, or on a terminal."""
    with project(FLOODS) as folder:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            modes = termios.tcgetattr(theirs)
            modes[1] &= ~termios.OPOST  # lines as they are
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.extend(read(ours)))
        reader.start()
        process = subprocess.Popen(
            [TRAINWIZ, "launch"],
            cwd=folder,
            env=environ(RATE=per_rank, SECONDS=seconds),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        while not all((folder / f"took-{rank}").exists() for rank in range(RANKS)) and process.poll() is None:
            time.sleep(0.01)
        ended = time.monotonic()
        process.wait(300)
        late = time.monotonic() - ended
        reader.join()
        os.close(ours)
        wanted = [
            [f"rank {rank} says line {i:09d} of many" for i in range(int(per_rank * seconds))] for rank in range(RANKS)
        ]
        logs = folder / "runs" / "latest" / "logs"
        found = [(logs / f"rank-{rank}.log").read_text().splitlines() for rank in range(RANKS)]
        shown = [line for line in b"".join(said).decode().splitlines() if line.startswith("rank ")]
        took = max(float((folder / f"took-{rank}").read_text().split()[1]) for rank in range(RANKS))
    return Flood(
        lines=sum(map(len, wanted)),
        in_logs=sum(len(lines) for lines, right in zip(found, wanted, strict=True) if lines == right),
        shown=len(shown) if shown == wanted[0] else -1,
        per_second=sum(map(len, wanted)) / took,
        late=late,
    )


def read(descriptor: int) -> Iterator[bytes]:
    """All of it; a terminal whose other side is closed is an error to read from."""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 1 << 16):
            yield data


def main() -> None:
    """Measure and print; with --write, into docs/reliability.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--per-rank", type=int, default=50_000, help="lines per second")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    spent = cost(options.seconds)
    print(spent, file=sys.stderr)
    floods = {}
    for name, terminal in (("a pipe", False), ("a terminal", True)):
        floods[name] = flood(options.per_rank, options.seconds / 3, terminal=terminal)
        print(name, floods[name], file=sys.stderr)
    said = (
        f"1 trial each, load average per core {os.getloadavg()[1] / (os.cpu_count() or 1):.1f}. Command: "
        "`python benchmarks/supervision.py`."
    )
    lines = [
        said,
        "",
        "| promise | measured |",
        "|---|---|",
        f"| the launcher's memory < 50 MB | {spent.resident_bytes / 1e6:.0f} MB resident |",
        f"| the launcher's time < 1 % of a core | {spent.share:.2%} over {spent.seconds:.0f} s, 10 updates a second |",
    ]
    for name, seen in floods.items():
        shown = f"all {seen.shown:,} of rank 0 shown" if seen.shown >= 0 else "**not all shown**"
        lines.append(
            f"| no line lost at 50,000 lines/s, into {name} | {seen.per_second:,.0f} lines/s: {seen.in_logs:,} of "
            f"{seen.lines:,} in the logs, {shown}, ended {seen.late:.2f} s after the ranks |"
        )
    text = "\n".join(lines)
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
