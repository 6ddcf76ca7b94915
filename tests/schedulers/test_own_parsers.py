"""Files of jobs, read by SkyPilot's own parser and by Kubernetes' own schemas, with unknown fields forbidden."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from plans import make
from test_schedulers import FULL, TWO, documents, text_of

from trainwiz import vocabulary as v

PYTHON = Path(__file__).parents[2] / ".venv-schedulers" / "bin" / "python"
READER = Path(__file__).parent / "own_parsers.py"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-schedulers here: make schedulers")


def clouds() -> Iterator[dict[str, Any]]:
    """SkyPilot's file for every device and number of machines, with few keys and with all."""
    everything = {**FULL, "cluster__infra": "aws/us-east-1", "cluster__spot": True}
    for device, world, keys in itertools.product(get_args(v.Device), ({}, TWO), ({}, FULL, everything)):
        (task,) = yaml.safe_load_all(
            text_of(make(cluster__kind="skypilot", machine__device=device, **world, **keys), "sky.yaml")
        )
        yield task


def read(kind: str, files: list[dict[str, Any]], home: Path) -> list[str]:
    """What is wrong with each file."""
    done = subprocess.run(
        [PYTHON, READER],
        input=json.dumps([{"kind": kind, "document": each} for each in files]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_skypilot_reads_every_file(tmp_path: Path) -> None:
    files = list(clouds())
    wrong = {**files[0], "num_node": 2}
    *found, of_wrong = read("skypilot", [*files, wrong], tmp_path)
    assert len(files) >= 12
    assert set(found) == {""}, found
    assert "num_node" in of_wrong


def test_kubernetes_has_every_field(tmp_path: Path) -> None:
    files = [document for document, _ in documents() if document["kind"] != "TrainJob"]
    job = next(one for one in files if one["kind"] == "Job")
    wrong = {**job, "spec": {**job["spec"], "backofLimit": 2}}
    *found, of_wrong = read("kubernetes", [*files, wrong], tmp_path)
    assert {one["kind"] for one in files} >= {"Job", "JobSet"}
    assert len(files) > 30
    assert set(found) == {""}, found
    assert "backofLimit" in of_wrong
