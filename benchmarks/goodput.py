"""How much of the time is training, while ranks are killed at random: `trainwiz launch --max-restarts`.

`python benchmarks/goodput.py` runs 5 seeds, 2 of them at a time, for 10 minutes each, 2 CPU ranks, DDP. A random rank
gets SIGKILL after exponentially distributed waits with a mean of 60 s. An update mostly waits, as for a device, so that
seeds do not slow each other down. Goodput is the number of updates reached, times the seconds per update of a run
without kills and without checkpoints, over the seconds since the launch, all start-ups included. Then an uninterrupted
run, without the waiting, must show the same losses. `--write` puts the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TRAINWIZ = str(Path(sys.executable).with_name("trainwiz"))
PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- goodput: written by benchmarks/goodput.py -->", "<!-- goodput: end -->"
RANKS = 2
REFERENCE_UPDATES = 150
WAITING = 1000
"""The oom_score_adj of a spare that waits: it is no rank yet."""


@dataclass
class Seen:
    """One seed. Seconds; `died` holds when each kill came, `back` how long it then took to train again."""

    seed: int
    wall: float = 0.0
    updates: int = 0
    died: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    code: int | None = None
    losses: dict[int, float] = field(default_factory=dict)
    lost: int = 0


def make(folder: Path, *, every: int, kind: str = "ddp", background: bool = False) -> None:
    """A project of the custom task whose update waits, with a checkpoint every so many updates."""
    values = [
        "task=custom",
        "machine.device=cpu",
        f"machine.num_processes={RANKS}",
        "batch.real_batch_size=8",
        "batch.per_device_batch_size=4",
        "schedule.n_steps=100000",
        "schedule.lr_scheduler_type=constant",
        "tracking.logging_steps=1",
        f"checkpoint.checkpointing_steps={every}",
        "data.eval=",
        f"checkpoint.background={json.dumps(background)}",
        f"strategy.kind={kind}",
        *(["strategy.zero_stage=2"] if kind == "deepspeed" else []),
    ]
    settings = [word for value in values for word in ("--set", value)]
    command = [TRAINWIZ, "init", str(folder), "--defaults", "--yes", *settings]
    subprocess.run(command, check=True, capture_output=True, env=environ(0))
    task = folder / "task.py"
    head, mark, body = task.read_text().partition("    errors = model(inputs)")
    wait = '    __import__("time").sleep(float(__import__("os").environ["GOODPUT_SECONDS"]))\n'
    assert mark
    task.write_text(head + wait + mark + body)


def environ(update_seconds: float) -> dict[str, str]:
    """The environment of a launch."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRAINWIZ_LANG": "en",
        "HF_HUB_OFFLINE": "1",
        "GOODPUT_SECONDS": str(update_seconds),
    }


def launch(folder: Path, update_seconds: float, *words: str) -> subprocess.Popen[bytes]:
    """Launch it; what it says is kept in the folder."""
    with (folder / "said.txt").open("ab") as said:
        command = [TRAINWIZ, "launch", "--new", *words]
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environ(update_seconds),
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def losses(folder: Path) -> dict[int, float]:
    """By update, as far as the newest run has come."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError):
                record = json.loads(line)
                found[record["update"]] = record["loss"]
    return found


def attempts(folder: Path) -> int:
    """How many have ended: their logs are put aside."""
    return len(list((folder / "runs" / "latest" / "logs").glob("rank-0.attempt-*.log")))


def reach(folder: Path, update: int, process: subprocess.Popen[bytes]) -> float:
    """When it was reached."""
    while process.poll() is None:
        if max(losses(folder), default=0) >= update:
            return time.monotonic()
        time.sleep(0.05)
    raise RuntimeError((folder / "said.txt").read_text(errors="replace")[-3000:])


def stop(process: subprocess.Popen[bytes]) -> int:
    """End it in order."""
    process.terminate()
    return process.wait(60)


def seconds_per_update(folder: Path, update_seconds: float) -> float:
    """Of a run without kills and checkpoints."""
    process = launch(folder, update_seconds, "--", "--checkpointing_steps", "0")
    try:
        began = reach(folder, 10, process)
        first = max(losses(folder))
        ended = reach(folder, first + REFERENCE_UPDATES, process)
        return (ended - began) / (max(losses(folder)) - first)
    finally:
        stop(process)


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes that are ranks now; spares that wait are left out."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and int((folder / "oom_score_adj").read_text()) < WAITING:
                variables = (folder / "environ").read_bytes().split(b"\0")
                rank = next((v for v in variables if v.startswith(b"RANK=")), None)
                if rank:
                    found[int(rank[5:])] = int(folder.name)
    return found


def run(folder: Path, seed: int, options: argparse.Namespace) -> Seen:
    """One seed: kill, until the time is up."""
    chance, seen = random.Random(seed), Seen(seed)
    spares = ["--spares"] if options.spares else []
    process = launch(folder, options.update_seconds, "--max-restarts", "999", "--restarts-per-hour", "999", *spares)
    began = time.monotonic()
    due, until = began + chance.expovariate(1 / options.mean), began + options.seconds
    killed: tuple[float, int, int] | None = None  # when, after which update, how many attempts had ended
    again: int | None = None
    while (now := time.monotonic()) < until and process.poll() is None:
        current = max(losses(folder), default=0)
        if killed and current and attempts(folder) > killed[2]:
            # The file is cut back to the checkpoint; what comes after that was trained by the new ranks.
            again = current if again is None else min(again, current)
            if current > again:
                seen.back.append(now - killed[0])
                seen.lost += killed[1] - again
                killed = again = None
        if now >= due:
            ranks = ranks_of(process.pid)
            victim = ranks.get(chance.randrange(RANKS))
            if victim:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                seen.died.append(now - began)
                killed, again = (*(killed or (now, current))[:2], attempts(folder)), None
                due = now + chance.expovariate(1 / options.mean)
        time.sleep(0.05)
    seen.wall, seen.updates = time.monotonic() - began, max(losses(folder), default=0)
    seen.code = process.poll() if process.poll() is not None else stop(process)
    seen.losses = losses(folder)
    return seen


def uninterrupted(folder: Path, updates: int) -> dict[int, float]:
    """The losses of a run that nobody disturbs, without the waiting."""
    process = launch(folder, 0.0, "--", "--checkpointing_steps", "0")
    try:
        reach(folder, updates, process)
    finally:
        stop(process)
    return losses(folder)


def difference(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """The greatest relative difference of a loss; infinite where one is missing."""
    if any(update not in theirs for update in ours) or sorted(ours) != list(range(1, len(ours) + 1)):
        return math.inf
    apart = [abs(loss - theirs[update]) / max(abs(theirs[update]), 1e-12) for update, loss in ours.items()]
    return max(apart, default=0.0)


def side_by_side(tasks: list[Callable[[], Seen]], together: int) -> list[Seen]:
    """So many at a time."""
    results: list[Seen] = []
    for i in range(0, len(tasks), together):
        threads = [
            threading.Thread(target=lambda task=task: results.append(task())) for task in tasks[i : i + together]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seen in results[i:]:
            print(
                f"seed {seen.seed}: kills {len(seen.died)}, updates {seen.updates}, back {seen.back}", file=sys.stderr
            )
    return sorted(results, key=lambda seen: seen.seed)


def table(results: list[Seen], per_update: float, whole: dict[int, float], options: argparse.Namespace) -> str:
    """What came out, a line for each seed."""
    goodputs = [seen.updates * per_update / seen.wall for seen in results]
    load = os.getloadavg()[2] / (os.cpu_count() or 1)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    said = (
        f"{len(results)} runs, {options.together} at a time, {results[0].wall:.0f} s each, {RANKS} CPU ranks, "
        f"{options.kind}; SIGKILL to a random rank, mean {options.mean:g} s; an update takes {1000 * per_update:.0f} ms"
        f" (undisturbed, without checkpoints); a checkpoint every {options.every} updates"
        f"{', written beside the training' if options.background else ''}; "
        f"{'with' if options.spares else 'without'} `--spares`. Load average per core {load:.1f}, nice {priority}. "
        f"Command: `python benchmarks/goodput.py {' '.join(word for word in sys.argv[1:] if word != '--write')}`."
    )
    lines = [
        said,
        "",
        "| seed | kills | updates | done again | back after a kill, median s (worst) | goodput | losses differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for seen, goodput in zip(results, goodputs, strict=True):
        back = f"{statistics.median(seen.back):.1f} ({max(seen.back):.1f})" if seen.back else "–"
        lines.append(
            f"| {seen.seed} | {len(seen.died)} | {seen.updates} | {seen.lost} | {back} | {goodput:.1%} "
            f"| {difference(seen.losses, whole):.1e} |"
        )
    lines.append(f"| mean | | | | | **{statistics.mean(goodputs):.1%}** | |")
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> tuple[list[Seen], float, dict[int, float]]:
    """All seeds, the seconds per update, and the losses that they must have."""
    place = Path(tempfile.mkdtemp(prefix="goodput-"))
    try:
        project = place / "project"
        make(project, every=options.every, kind=options.kind, background=options.background)
        per_update = seconds_per_update(project, options.update_seconds)
        shutil.rmtree(project / "runs")
        folders = [place / f"seed-{seed}" for seed in options.seeds]
        for folder in folders:
            shutil.copytree(project, folder)
        results = side_by_side(
            [
                lambda folder=folder, seed=seed: run(folder, seed, options)
                for folder, seed in zip(folders, options.seeds, strict=True)
            ],
            options.together,
        )
        for seen, folder in zip(results, folders, strict=True):
            if seen.code != 0:
                print((folder / "said.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
        return results, per_update, uninterrupted(project, max(seen.updates for seen in results) + 5)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--together", type=int, default=2, help="seeds at a time")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--mean", type=float, default=60.0, help="seconds between kills")
    parser.add_argument("--update-seconds", type=float, default=0.1, help="what an update waits")
    parser.add_argument("--every", type=int, default=40, help="updates between checkpoints")
    parser.add_argument("--kind", default="ddp", choices=["ddp", "deepspeed"])
    parser.add_argument("--background", action="store_true", help="save beside the training")
    parser.add_argument("--spares", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    """Measure and print; with --write, into docs/reliability.md."""
    options = arguments()
    results, per_update, whole = measure(options)
    text = table(results, per_update, whole, options)
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
