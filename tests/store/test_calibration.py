"""Ratios of measured and forecast, in the user's cache: corrections, damage, deletion; and peaks that ranks left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainwiz.cli import run as trainwiz
from trainwiz.estimate.gpus import gpu_of
from trainwiz.machine import Gpu, Machine
from trainwiz.record.forecast import Correction
from trainwiz.store import calibration, peaks

GPUS = tuple(Gpu(index=i, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30) for i in range(2))
MACHINE = Machine(hostname="node7", gpus=GPUS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    return tmp_path / "trainwiz" / "calibration.json"


def add(*ratios: float, machine: Machine = MACHINE) -> None:
    for number, ratio in enumerate(ratios):
        calibration.add(machine, run=f"r{number}-{ratio}", strategy="zero2", at="now", reserved_bytes=ratio)


def test_the_correction_is_the_median_of_the_newest_runs_here() -> None:
    assert calibration.corrections(MACHINE) == {}
    add(1.4, 1.1, 1.2, 1.1, 1.2, 1.1, 1.2, 1.1, 1.2)
    assert calibration.corrections(MACHINE)["reserved_bytes"] == Correction(factor=1.15, runs=8)
    assert calibration.corrections(Machine(hostname="node8", gpus=GPUS)) == {}
    assert calibration.corrections(Machine(hostname="node7")) == {}


def test_a_ratio_that_is_about_something_else_corrects_nothing() -> None:
    add(7.0, 0.01)
    assert calibration.corrections(MACHINE) == {}
    assert len(calibration.every()["node7: 2 × NVIDIA H100 80GB HBM3"]) == 2


def test_a_run_counts_once_and_old_runs_are_dropped() -> None:
    add(1.1, 1.1)
    add(1.1)
    assert len(calibration.every()["node7: 2 × NVIDIA H100 80GB HBM3"]) == 2
    add(*(1 + n / 100 for n in range(30)))
    assert len(calibration.every()["node7: 2 × NVIDIA H100 80GB HBM3"]) == 20


@pytest.mark.parametrize("text", ["", "[]", "{", '{"node7: 2 × NVIDIA H100 80GB HBM3": [3, {"ratios": {"x": "y"}}]}'])
def test_a_damaged_cache_corrects_nothing(cache: Path, text: str) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(text)
    assert calibration.corrections(MACHINE) == {}
    assert trainwiz(["plan", "--calibration"]) == 0
    add(1.1)
    assert calibration.corrections(MACHINE)["reserved_bytes"].factor == 1.1


def test_it_is_visible_and_deletable(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(1.1, 1.3)
    assert trainwiz(["plan", "--calibration"]) == 0
    out = capsys.readouterr().out
    assert "node7: 2 × NVIDIA H100 80GB HBM3" in out
    assert "1.300" in out
    assert "× 1.200" in out
    assert trainwiz(["plan", "--calibration", "--json"]) == 0
    (machine,) = json.loads(capsys.readouterr().out)
    assert machine["corrections"] == {"reserved_bytes": {"factor": 1.2, "runs": 2}}
    assert trainwiz(["plan", "--forget"]) == 2
    assert cache.exists()
    assert trainwiz(["plan", "--calibration", "--forget"]) == 0
    assert not cache.exists()
    assert trainwiz(["plan", "--calibration", "--forget"]) == 0


def test_measured_links_replace_those_of_the_datasheet(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = gpu_of(MACHINE)
    assert listed
    assert calibration.bus_bandwidth(MACHINE) is None
    for measured, link in ((40e9, 50e9), (480e9, listed.link)):  # the last is more than the wire carries
        calibration.measured(MACHINE, measured)
        found = replace(MACHINE, bus_bandwidth=calibration.bus_bandwidth(MACHINE))
        assert gpu_of(found) == replace(listed, link=pytest.approx(link))
    assert calibration.bus_bandwidth(replace(MACHINE, gpus=GPUS[:1])) is None
    assert trainwiz(["plan", "--calibration"]) == 0
    assert "node7: 2 × NVIDIA H100 80GB HBM3: bus bandwidth 480.0 GB/s" in capsys.readouterr().out
    add(1.1)
    assert trainwiz(["plan", "--calibration", "--json"]) == 0
    assert [one["bus_bandwidth"] for one in json.loads(capsys.readouterr().out)] == [480e9]
    assert trainwiz(["plan", "--calibration", "--forget"]) == 0
    assert not cache.exists()
    assert calibration.bus_bandwidth(MACHINE) is None


def test_peaks_are_those_of_ranks_that_ended_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "rank-0.peak").write_text("host_bytes 5\nallocated_bytes 7\nreserved_bytes 9\n")
    (tmp_path / "rank-10.peak").write_text("host_bytes 6\nnonsense\nother 3\nallocated_bytes -4\n")
    (tmp_path / "rank-2.peak").write_bytes(b"\xff\x00")
    (tmp_path / "rank-x.peak").write_text("host_bytes 5\n")
    (tmp_path / "rank-0.attempt-1.peak").write_text("host_bytes 99\n")
    assert peaks.read(tmp_path) == {
        0: {"host_bytes": 5, "allocated_bytes": 7, "reserved_bytes": 9},
        10: {"host_bytes": 6},
    }
    assert peaks.read(tmp_path / "missing") == {}
