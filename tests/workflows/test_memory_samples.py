"""The memory of the ranks, taken from time to time."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from patience import patience

from trainwiz.workflows.launch import memory_samples


@pytest.fixture
def rank() -> Iterator[None]:
    """A process below this one that says it is rank 0."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "RANK": "0"}):
        yield


@pytest.mark.usefixtures("rank")
def test_a_slow_first_import_does_not_keep_the_next_samples_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        """Finds nothing, and takes its time for one module."""

        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleType | None:
            if name == "trainwiz.probe.ranks":
                time.sleep(1)
            return None

    monkeypatch.setattr(sys, "meta_path", [Slow, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "trainwiz.probe.ranks", raising=False)
    monkeypatch.setattr(memory_samples, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(memory_samples, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(memory_samples, "_REST", 60)
    file = tmp_path / "memory.jsonl"
    sampler = memory_samples.Sampler(file)
    until = time.monotonic() + min(1 + 6 * patience(), 50)
    while time.monotonic() < until and (not file.exists() or len(file.read_text().splitlines()) < 2):
        time.sleep(0.05)
    sampler.close()
    assert len(file.read_text().splitlines()) >= 2
