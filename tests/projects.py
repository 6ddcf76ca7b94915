"""Real projects for tests: made by `trainwiz init`, run by `trainwiz launch`, read from what the run left."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apart

STANDIN = Path(__file__).parent / "standin"

SMALL = {
    "machine.device": "cpu",
    "strategy.kind": "ddp",
    "machine.num_processes": 2,
    "batch.real_batch_size": 16,
    "batch.per_device_batch_size": 4,
    "batch.sequence_length": 64,
    "schedule.n_steps": 8,
    "schedule.n_warmup_steps": 2,
    "optimizer.learning_rate": 3e-3,
    "tracking.logging_steps": 1,
    "checkpoint.checkpointing_steps": 3,
    "data.eval": "",
}
"""A tiny language model on 2 CPU ranks: 8 updates of 16 windows, a checkpoint every 3."""

REGRESSION = {**SMALL, "task": "custom", "data.eval": "embedded"}
"""The custom task's example: it imports no transformers, so it starts fastest."""


CLOCKED = {"tokens_per_second", "seconds_per_update", "data_wait_share"}
"""What of a record the clock decides, so that it differs from run to run."""


@dataclass(frozen=True)
class Done:
    """A finished command: its exit code and what it printed."""

    code: int
    out: str
    err: str


def trainwiz(*arguments: str, env: dict[str, str] | None = None, timeout: float = 240) -> Done:
    """Run trainwiz as a person would, without a terminal."""
    import forked  # which needs this module

    done = forked.run(arguments, env=environment(env), timeout=timeout)
    return Done(done.returncode, done.stdout, done.stderr)


def python_path(folder: Path) -> str:
    """PYTHONPATH with this folder before what is there: it may name the checkout that is tested."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a child, in English and without a plan's variables left over from elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "TRAINWIZ_", "FSDP_", "DS_"))}
    return {**kept, "TRAINWIZ_LANG": "en", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(extra or {})}


def path_without(programs: Sequence[str], folder: Path) -> str:
    """A search path like this process's without some programs; `folder` gets the links to what lies beside them."""
    parts = []
    for i, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        if any((Path(part) / name).exists() for name in programs):
            links = folder / str(i)
            links.mkdir(parents=True, exist_ok=True)
            for entry in Path(part).iterdir():
                if entry.name not in programs and not (links / entry.name).is_symlink():
                    (links / entry.name).symlink_to(entry)
            part = str(links)
        parts.append(part)
    return os.pathsep.join(parts)


def make(folder: Path, values: dict[str, object], *arguments: str) -> Path:
    """A project with these values, by dotted key; everything else is trainwiz's own choice.

    Where its files lie says nothing in them: each project is made once per run of the tests, and copied from then on.
    """
    surroundings = {name: os.environ.get(name) for name in ("HF_HOME", "PATH", "PYTHONPATH")}
    key = hashlib.sha256(json.dumps([values, arguments, surroundings], default=str).encode()).hexdigest()[:20]
    known = Path(os.environ[apart.RUN]) / "projects" / key
    empty = not folder.exists() or not any(folder.iterdir())
    if empty and known.is_dir():
        shutil.copytree(known, folder, dirs_exist_ok=True)
        return folder
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}") if key != "ignore"]
    if "ignore" in values:
        answers = folder.with_suffix(".answers.yaml")
        answers.write_text(json.dumps({"ignore": values["ignore"]}))
        settings += ["--answers", str(answers)]
    done = trainwiz("init", str(folder), "--defaults", "--yes", *settings, *arguments)
    assert done.code == 0, done.err
    if empty:
        new = Path(tempfile.mkdtemp()) / key
        shutil.copytree(folder, new)
        known.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # the other worker was first
            new.rename(known)
    return folder


def begins_with(folder: Path, function: str, line: str) -> Path:
    """Let a function of the project's task.py do this first."""
    task = folder / "task.py"
    source = task.read_text()
    documented = source.index('"""', source.index(f"def {function}("))
    body = source.index("\n", source.index('"""', documented + 3)) + 1
    task.write_text(f"{source[:body]}    {line}\n{source[body:]}")
    return folder


def paced(folder: Path, seconds: float = 0.1) -> Path:
    """Let each micro-batch take so long, for nothing: a training that others wait for keeps no core busy."""
    return begins_with(folder, "loss_sum", f"import time; time.sleep({seconds})")


def launch(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Done:
    """Launch a project; arguments after `--` go to the script."""
    return trainwiz("launch", str(folder), *arguments, env=env)


def forecast_and_measured(folder: Path, name: str) -> tuple[float, float]:
    """What the newest run's record says of `checkpoint_bytes`, or of `host_bytes`, of the largest rank."""
    outcome = json.loads((folder / "runs" / "latest" / "outcome.json").read_text())
    measured = outcome["measured"]
    seen = measured.get(name) or max(rank[name] for rank in measured["ranks"].values())
    return outcome["forecast"][name], seen


def metrics(folder: Path, run: str = "latest") -> list[dict[str, Any]]:
    """The training records of a run, evaluations left out."""
    lines = (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "loss" in record]


def losses(folder: Path, run: str = "latest") -> list[float]:
    """The loss of each logged update."""
    return [record["loss"] for record in metrics(folder, run)]
