"""What only a GPU can show of the engine colossalai: each plugin trains, follows TorchDDP, and resumes exactly.

    python benchmarks/gpu/colossalai.py --python .venv-colossalai/bin/python        # all GPUs of this machine
    python benchmarks/gpu/colossalai.py --python … --device cpu --kinds colossal_ddp  # the same at toy size, on 2 ranks

For each plugin and precision one project is made and trained twice, with accumulation 1 and 4 of the same real batch,
then resumed from a checkpoint in the middle. Prints a table and writes it as JSON; exit code 1 where anything is off.
No network: model and data are trainwiz's own. About 8 minutes on one GPU; Gemini compiles its Adam with nvcc first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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
            row = {"plugin": kind, "precision": precision}
            try:
                row |= measure(options, work / f"{kind}-{precision}", kind, precision, reference)
            except subprocess.CalledProcessError as error:
                row |= {"failed": (error.stderr or error.stdout or "").strip().splitlines()[-12:]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    shutil.rmtree(work)
    Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    return int(any("failed" in row or not row["resume is exact"] or not row["follows the curve"] for row in rows))


def read_options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter that has colossalai")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ranks", type=int, default=0, help="0: all GPUs, or 2 CPU ranks")
    parser.add_argument("--kinds", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--output", default="colossalai.json")
    options = parser.parse_args()
    options.python = str(Path(options.python).absolute())
    if not options.ranks:
        count = [options.python, "-c", "import torch; print(torch.cuda.device_count())"]
        options.ranks = 2 if options.device == "cpu" else int(said(count).strip() or 0)
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
    said([*trainwiz, "init", str(folder), "--defaults", "--yes", "--python", options.python, *settings])

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
    said([*launcher, "train.py", "--output_dir", output, *arguments], cwd=folder)


def said(argv: list[str], cwd: Path | None = None) -> str:
    """A command's output. Raises `CalledProcessError`."""
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=900, check=True).stdout


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
            f"{row.get(name, 'failed'):.2g}" if isinstance(row.get(name), float) else str(row.get(name, "failed"))
            for name in names
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
