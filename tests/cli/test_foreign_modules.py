"""Modules that lie in a stranger's project are not imported by commands that only look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDING = ("json", "yaml", "torch", "typer", "pydantic", "psutil", "accelerate", "typing", "sitecustomize", "pynvml")


@pytest.mark.parametrize("words", ["check .", "lint train.py", "doctor --json"])
def test_a_module_in_the_working_folder_is_not_imported(words: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for name in HIDING:
        (tmp_path / f"{name}.py").write_text(f"open({str(canary)!r}, 'w')\nraise ImportError({name!r})\n")
    (tmp_path / "trainwiz.yaml").write_text("machine: {num_processes: 2}\n")
    (tmp_path / "train.py").write_text("import torch\nimport json\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TRAINWIZ_LANG": "en"},
        timeout=300,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    assert not canary.exists(), done.stderr
