"""What a training says when something is not there: the manual of the rules on packages, data and models, asked of the
generated scripts themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainwiz import plan as plans
from trainwiz.plan import Plan
from trainwiz.render import training_files
from trainwiz.store import templates

WITHOUT = """
import importlib.machinery, runpy, sys
gone, real = {gone!r}, importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda _, name, *rest: None if name.partition(".")[0] in gone else real(name, *rest)
)
sys.argv = ["train.py", *{arguments!r}]
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""
"""A program that runs train.py as if packages were not installed."""
IMAGES = {"task": "image_classification"}
ZERO = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2}
CASES: dict[str, tuple[str, dict[str, Any], set[str], list[str]]] = {
    "TW102": ("ModuleNotFoundError: No module named 'torch'", {}, {"torch"}, []),
    "TW111": ("ModuleNotFoundError: No module named 'accelerate'", {}, {"accelerate"}, []),
    "TW112": ("ImportError: DeepSpeed is not installed", ZERO, {"deepspeed"}, []),
    "TW113": ("ModuleNotFoundError: No module named 'transformers'", {}, {"transformers"}, []),
    "TW114": ("ModuleNotFoundError: No module named 'datasets'", {}, {"datasets"}, ["--train_data", "some/where"]),
    "TW117": ("ModuleNotFoundError: No module named 'sklearn'", IMAGES, {"sklearn"}, []),
    "TW511": ("ConnectionError: Couldn't reach './none.txt' on the Hub", {}, set(), ["--train_data", "./none.txt"]),
    "TW512": ('broken.jsonl:2: not a JSON object with a "text"', {}, set(), ["--train_data", "broken.jsonl"]),
    "TW513": ("OSError: ", {"model.name": "./none", "model.from_scratch": False}, set(), []),
}
"""By rule: the last line of what is said, the plan, the packages that are not there, the arguments."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {id: tmp_path_factory.mktemp(id) for id in CASES}
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(lambda id: last_line(id, folders[id]), CASES), strict=True))


def last_line(id: str, folder: Path) -> str:
    _, values, gone, arguments = CASES[id]
    for artifact in training_files(plans.with_changes(Plan(), {**values, "schedule.n_steps": 1}), templates.load()):
        (folder / artifact.path).write_text(artifact.text)
    (folder / "broken.jsonl").write_text('{"text": "a"}\n[1]\n')
    program = WITHOUT.format(gone=gone, arguments=arguments)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_", "DS_"))}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={**environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}, check=False)  # fmt: skip
    assert done.returncode == 1, f"{id}: {done.returncode} {done.stderr[-500:]}"
    return [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(" ")][-1]


@pytest.mark.parametrize("id", CASES)
def test_what_is_said(id: str, said: dict[str, str]) -> None:
    assert CASES[id][0] in said[id]
