"""Checkpoints under kill -9, what a save costs the loop, and resuming after every update; into docs/reliability.md.

`python benchmarks/checkpoints.py --write` takes about half an hour on 2 quiet cores. `--parts kills,cost,resume`
chooses; `--kills` is how many processes are killed while saving, in all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (str(ROOT / "tests"), str(ROOT / "tests" / "train_templates"))
sys.path[:0] = TESTS

from projects import environment  # noqa: E402
from test_checkpoints import killed, write_code  # noqa: E402
from test_resume import go_back, noisy, trained  # noqa: E402
from test_training import SINGLE, STRATEGIES  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
SHARES = {(False, 1): 0.4, (False, 2): 0.3, (True, 1): 0.2, (True, 2): 0.1}
SIZE_BYTES, ROUNDS = 200_000_000, 8
WAYS = {
    "synced, hashed and renamed": False,
    "written; synced, hashed and renamed in the background": True,
    "staged in host memory; all else in the background": True,
}
"""What the loop waits for, and whether anything goes on beside it."""

COST = """
import json, os, shutil, sys, time
from pathlib import Path
import torch
from safetensors.torch import save_file, save_model
code, output, size, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
sys.path[:0] = [code, *os.environ["TESTS"].split(os.pathsep)]
from checkpoints import Checkpoints
from test_checkpoints import Config
weights = {"weight": torch.randn(size // 12)}
moments = {"first": torch.randn(size // 12), "second": torch.randn(size // 12)}
def bare(folder):
    save_file(weights, folder / "model.safetensors")
    torch.save(moments, folder / "optimizer.pt")
save, later = bare, None
if (Path(code) / "staging.py").exists() and sys.argv[5] == "staged":
    from staging import Held, Staged
    def write(folder, state):
        save_model(Held(state[0]), str(folder / "model.safetensors"))
        torch.save(state[1], folder / "optimizer.pt")
    staged = Staged(lambda: [weights, moments], write)
    save, later = staged.copy, staged.write
checkpoints = Checkpoints(Config(str(output), checkpoints_total_limit=1), "whole", save, print)
checkpoints.write_state = later
checkpoints.resume(1)
stalls, bares = [], []
def write_bare(update):
    folder = output / "bare"
    folder.mkdir()
    began = time.perf_counter()
    bare(folder)
    bares.append(time.perf_counter() - began)
    os.sync()
    shutil.rmtree(folder)
def save(update):
    began = time.perf_counter()
    checkpoints.save(update)
    stalls.append(time.perf_counter() - began)
    getattr(checkpoints, "finish", lambda: None)()
    os.sync()
for update in range(1, rounds + 1):
    for step in (write_bare, save) if update % 2 else (save, write_bare):
        step(update)
print(json.dumps([sorted(bares)[rounds // 2], sorted(stalls)[rounds // 2]]))
"""


def kills(trials: int, folder: Path) -> str:
    """A table of how many processes were killed while saving, and what was lost."""
    rows = [
        "| saving | ranks | kills | while a checkpoint was being written | lost | damaged |",
        "|---|---|---|---|---|---|",
    ]
    for (background, ranks), share in SHARES.items():
        code = write_code(folder / f"code-{background}", checkpoint__background=background)
        count = round(share * trials)
        found = killed(
            code,
            folder / f"{background}-{ranks}",
            trials=count,
            ranks=ranks,
            behind=int(background),
            seed=1,
            seconds=3600,
        )
        how = "in the background" if background else "before going on"
        torn, damaged = found["killed_while_writing"], found["skipped"] + found["complete"] - found["whole"]
        rows.append(f"| {how} | {ranks} | {count} | {torn} | 0 | {damaged} |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


def cost(folder: Path) -> str:
    """How long the loop waits for a save, beside writing the same bytes without syncing or hashing them."""
    rows = ["| | seconds, median of 8 | ratio |", "|---|---|---|"]
    for how, background in WAYS.items():
        name = re.split("[ ,;]", how)[0]
        code = write_code(folder / f"cost-{name}", checkpoint__background=background)
        command = [
            sys.executable,
            "-c",
            COST,
            str(code),
            str(folder / f"state-{name}"),
            str(SIZE_BYTES),
            str(ROUNDS),
            name,
        ]
        environ = environment({"TESTS": os.pathsep.join(TESTS), "PYTHONPATH": str(ROOT / "launcher")})
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, timeout=1200)
        bare, stall = json.loads(done.stdout.splitlines()[-1])
        rows += [
            f"| the same bytes, neither synced nor hashed | {bare:.2f} | 1 |",
            f"| {how} | {stall:.2f} | {stall / bare:.1f} |",
        ]
        shutil.rmtree(folder / f"state-{name}")
    print(*rows, sep="\n", flush=True)
    return "\n".join(rows)


def resumes(folder: Path, chosen: list[str], updates: int) -> str:
    """A table of how many updates a run was resumed after, and how often it ended with the same bytes."""
    rows = ["| strategy | ranks | resumed after | final weights with the same sha256 |", "|---|---|---|---|"]
    for name in chosen:
        values = SINGLE if name == "single" else STRATEGIES[name]
        ranks, whole = 1 if name == "single" else 2, folder / f"{name}-whole"
        project = noisy(folder / name, {**values, "schedule.n_steps": updates})
        weights, equal = trained(project, ranks, whole, seconds=900), 0
        for update in range(1, updates):
            output = folder / f"{name}-{update}"
            go_back(whole, update, output)
            equal += trained(project, ranks, output, seconds=900, resume="auto") == weights
            shutil.rmtree(output)
        rows.append(f"| {name} | {ranks} | each of updates 1 to {updates - 1} | {equal} of {updates - 1} |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> None:
    """Measure what was chosen; write it where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="kills,cost,resume")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--strategies", default="single,ddp,zero2,zero3", help="that are resumed")
    parser.add_argument("--updates", type=int, default=8, help="of a training that is resumed after each of them")
    parser.add_argument("--write", action="store_true", help="into docs/reliability.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts.split(","):
            table = {
                "kills": lambda: kills(options.kills, Path(folder)),
                "cost": lambda: cost(Path(folder)),
                "resume": lambda: resumes(Path(folder), options.strategies.split(","), options.updates),
            }[part]()
            if options.write:
                begin, end = (f"<!-- checkpoints, {part}: {word} -->" for word in ("begin", "end"))
                before, _, rest = PAGE.read_text().partition(begin)
                PAGE.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
