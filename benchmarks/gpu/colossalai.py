"""What only a GPU can show of the engine colossalai: each plugin trains, follows TorchDDP, and resumes exactly.

    python benchmarks/gpu/colossalai.py --python .venv-colossalai/bin/python        # all GPUs of this machine
    python benchmarks/gpu/colossalai.py --python … --device cpu --kinds colossal_ddp  # the same at toy size, on 2 ranks

For each plugin and precision one project is made and trained twice, with accumulation 1 and 4 of the same real batch,
then resumed from a checkpoint in the middle. Prints a table and writes it as JSON; exit code 1 where anything is off.
No network: model and data are trainwiz's own. Gemini compiles its Adam with nvcc first. What is known is in the JSON
after each row, and what does not begin in `--seconds` is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUNS = {
    "colossal_ddp": ("no", "fp16"),
    "colossal_zero1": ("no", "bf16", "fp16"),
    "colossal_zero2": ("no", "bf16", "fp16"),
    "gemini": ("bf16", "fp16"),
    "colossal_fsdp": ("no", "bf16"),
}
TOLERANCE = {"no": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""How far a loss may lie from that of TorchDDP in fp32, as a share of it."""
UPDATES, SAVED = 24, 8
ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|Exit)\b")
"""The last line of a traceback."""


def main() -> int:
    """Run everything and print the table; 1 where a plugin failed, strayed from the curve or did not resume exactly."""
    options = read_options()
    work = Path(tempfile.mkdtemp(prefix="colossalai-"))
    rows: list[dict[str, Any]] = []
    reference: list[float] = []
    for kind in options.kinds:
        for precision in RUNS[kind]:
            if options.device == "cpu" and precision != "no":
                continue
            row: dict[str, Any] = {"plugin": kind, "precision": precision}
            try:
                row |= measure(options, work / f"{kind}-{precision}", kind, precision, reference)
            except TimeUp as error:
                row |= {"left out": str(error)}
            except subprocess.CalledProcessError as error:
                row |= {"failed": raised(error.stderr or error.stdout or "")}
            rows.append(row)
            print(json.dumps(row), flush=True)
            Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")
    shutil.rmtree(work)
    print(table(rows))
    return int(
        not all(row.get("resume is exact") and row["follows the curve"] for row in rows if "left out" not in row)
    )


def raised(said: str) -> list[str]:
    """The end of the first traceback, before what torchrun says of it; without one, the end of all."""
    lines = said.strip().splitlines()
    errors = (n for n, line in enumerate(lines, 1) if ERROR.match(line) and "ChildFailedError" not in line)
    end = next(errors, len(lines))
    return lines[max(0, end - 12) : end]


class TimeUp(Exception):
    """There are no seconds left for a command, or it took more."""


def read_options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter that has colossalai")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ranks", type=int, default=0, help="0: all GPUs, or 2 CPU ranks")
    parser.add_argument("--kinds", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--output", default="colossalai.json")
    parser.add_argument("--seconds", type=float, default=450.0, help="for everything")
    options = parser.parse_args()
    options.end = time.monotonic() + options.seconds
    options.python = str(Path(options.python).absolute())
    if not options.ranks:
        count = [options.python, "-c", "import torch; print(torch.cuda.device_count())"]
        options.ranks = 2 if options.device == "cpu" else int(said(count, options.end).strip() or 0)
    if not options.ranks:
        parser.error("torch sees no GPU: --device cpu tries the same at toy size")
    return options


def measure(
    options: argparse.Namespace, folder: Path, kind: str, precision: str, reference: list[float]
) -> dict[str, Any]:
    """Train with accumulation 1 and 4, and again from the middle; what came of it."""
    ranks, micro = options.ranks, 2 if options.device == "cpu" else 8
    real = 4 * micro * ranks
    values = {
        "machine.device": options.device,
        "machine.num_processes": ranks,
        "machine.main_process_port": 0,
        "strategy.kind": kind,
        "precision.mixed_precision": precision,
        "batch.real_batch_size": real,
        "batch.per_device_batch_size": micro,
        "batch.sequence_length": 64 if options.device == "cpu" else 512,
        "schedule.n_steps": UPDATES,
        "schedule.n_warmup_steps": 2,
        "optimizer.learning_rate": 3e-3,
        "data.eval": "",
        "tracking.logging_steps": 1,
        "checkpoint.checkpointing_steps": SAVED,
        "checkpoint.checkpoints_total_limit": 9,
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    trainwiz = [sys.executable, "-m", "trainwiz"]
    said([*trainwiz, "init", str(folder), "--defaults", "--yes", "--python", options.python, *settings], options.end)

    began = time.perf_counter()
    train(options, folder, "whole")
    seconds = time.perf_counter() - began
    train(options, folder, "split", "--per_device_batch_size", str(4 * micro), "--gradient_accumulation_steps", "1")
    whole, split = losses(folder / "whole"), losses(folder / "split")
    if not reference:
        reference.extend(whole)

    shutil.copytree(folder / "whole" / "checkpoints", folder / "again" / "checkpoints")
    for path in (folder / "again" / "checkpoints").glob("checkpoint-*"):
        if not path.name.endswith(f"{SAVED:08d}"):
            shutil.rmtree(path)
    train(options, folder, "again", "--resume", "auto")
    records = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    apart = max(abs(a - b) / b for a, b in zip(whole, reference, strict=True))
    return {
        "ranks": ranks,
        "last loss": round(whole[-1], 4),
        "furthest from TorchDDP in fp32": apart,
        "accumulation 4 against 1": max(abs(a - b) / b for a, b in zip(whole, split, strict=True)),
        "follows the curve": apart <= TOLERANCE[precision],
        "resume is exact": digest(folder / "again") == digest(folder / "whole")
        and losses(folder / "again") == whole[SAVED:],
        "tokens per second": round(max(record["tokens_per_second"] for record in records)),
        "seconds": round(seconds, 1),
    }


def train(options: argparse.Namespace, folder: Path, output: str, *arguments: str) -> None:
    """One training by torchrun, as a person would start it."""
    launcher = [options.python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}"]
    said([*launcher, "train.py", "--output_dir", output, *arguments], options.end, cwd=folder)


def said(argv: list[str], end: float, cwd: Path | None = None) -> str:
    """A command's output. Raises `CalledProcessError` and `TimeUp`."""
    if end <= time.monotonic():
        raise TimeUp("the time was up")
    try:
        left = end - time.monotonic()
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=left, check=True).stdout
    except subprocess.TimeoutExpired as error:
        raise TimeUp("the time was up before it had ended") from error


def losses(output: Path) -> list[float]:
    """The loss of each update."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


def digest(output: Path) -> str:
    """The hash of the final weights."""
    return hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    names = [name for name in max(rows, key=len) if name != "failed"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = [
            f"{row[name]:.2g}"
            if isinstance(row.get(name), float)
            else str(row.get(name, row.get("left out", "failed")))
            for name in names
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
