"""The benchmark of forecasts: its goals over the published rows, its answers to rows that say little, its form."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import forecast  # noqa: E402
import left_out  # noqa: E402
import pictures  # noqa: E402

MEASUREMENTS = ROOT / "benchmarks" / "published" / "measurements.csv"


@pytest.fixture(scope="module")
def rows() -> list[forecast.Forecast]:
    return forecast.read(MEASUREMENTS)


def memory(rows: list[forecast.Forecast], *groups: str) -> list[float]:
    chosen = [row for row in rows if row.exact and (not groups or row.group in groups)]
    found = forecast.errors((row.peak_gib, row.measured_gib) for row in chosen)
    assert len(found) > 20
    return found


@pytest.mark.parametrize(
    ("groups", "median"),
    [
        (("full, one GPU", "full, FSDP", "full, ZeRO"), 0.03),
        (("LoRA, one GPU", "QLoRA, one GPU"), 0.05),
        (("LoRA, FSDP", "QLoRA, FSDP"), 0.10),
    ],
)
def test_the_median_error_of_memory(rows: list[forecast.Forecast], groups: tuple[str, ...], median: float) -> None:
    assert statistics.median(map(abs, memory(rows, *groups))) <= median


def test_memory_is_seldom_far_off_and_seldom_too_low(rows: list[forecast.Forecast]) -> None:
    found = memory(rows)
    assert statistics.quantiles(map(abs, found), n=10)[-1] <= 0.15
    assert sum(error < -0.05 for error in found) <= len(found) / 20


def test_speed(rows: list[forecast.Forecast]) -> None:
    found = forecast.errors((row.tokens, row.measured_tokens) for row in rows)
    assert len(found) > 150
    assert statistics.median(map(abs, found)) <= 0.15
    assert statistics.quantiles(map(abs, found), n=10)[-1] <= 0.35


def test_strategies_are_ranked_as_they_were_measured(rows: list[forecast.Forecast]) -> None:
    exact = [row for row in rows if row.exact]
    memory, speed = (
        forecast.ranked(exact, "peak_gib", "measured_gib"),
        forecast.ranked(rows, "tokens", "measured_tokens"),
    )
    assert len(memory) > 400
    assert sum(memory) >= 0.99 * len(memory)
    assert len(speed) > 200
    assert sum(speed) >= 0.85 * len(speed)


def test_four_of_five_rows_get_a_forecast_and_the_others_say_why(rows: list[forecast.Forecast]) -> None:
    for said, measured in (("peak_gib", "measured_gib"), ("tokens", "measured_tokens")):
        known = [row for row in rows if getattr(row, measured)]
        assert sum(getattr(row, said) is not None for row in known) >= 0.8 * len(known)
    assert all(row.why_not for row in rows if row.peak_gib is None or row.tokens is None)


def test_the_page_shows_these_errors(rows: list[forecast.Forecast]) -> None:
    text = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")
    assert forecast.table(rows) in text
    for name in (
        "unseen.csv",
        "held_out.csv",
        "siblings.csv",
        "blind.csv",
        "blind_last.csv",
        "blind_third.csv",
        "blind_fourth.csv",
        "blind_fifth.csv",
        "blind_sixth.csv",
        "blind_seventh.csv",
        "blind_eighth.csv",
    ):
        assert forecast.table(forecast.read(MEASUREMENTS.with_name(name))) in text


def test_fused_kernels_keep_what_others_measured() -> None:
    """Qwen3 with 4B and 8B on a B300, whose norms and gated MLPs are liger-kernel's."""
    rows = forecast.read(MEASUREMENTS.with_name("blind_fifth.csv"))
    found = [row for row in rows if row.source == "whitecircle/halo" and row.measured_gib]
    assert len(found) == 6
    assert all(abs(row.peak_gib / row.measured_gib - 1) < 0.02 for row in found if row.peak_gib and row.measured_gib)


def worst(name: str, source: str) -> float:
    rows = forecast.read(MEASUREMENTS.with_name(name))
    found = forecast.errors((row.peak_gib, row.measured_gib) for row in rows if row.source == source)
    assert len(found) >= 8
    return max(map(abs, found))


def test_what_a_loop_holds_of_the_last_step_is_counted() -> None:
    """Keys and values that a model returns for generating, and its logits: 18 of 29 GiB in ATorch's example."""
    assert worst("blind_sixth.csv", "intelligent-machine-learning/dlrover") < 0.03


def test_adapters_on_a_t4_need_what_was_measured() -> None:
    """QLoRA and LoRA of eight models, with eager and fused attention, all of whose settings are known."""
    assert worst("blind_seventh.csv", "Anassbzdd/fitcheck") < 0.08


def test_networks_for_pictures_train_as_fast_as_others_measured() -> None:
    sizes = sorted(map(abs, pictures.errors().values()))
    assert len(sizes) == 55
    assert statistics.median(sizes) <= 0.15
    assert sizes[int(0.9 * len(sizes))] <= 0.35


HEADER = "source,model,params_b,gpu,gpus,strategy,precision,micro_batch,seq_len,checkpointing,extras,peak_gib"
ODD = {
    "x,Llama-3.1-8B,8.03,h100_80gb,8,fsdp2,bf16,2,4096,full,,": "",
    "x,Llama-3.1-8B,8.03,,8,fsdp2,bf16,2,4096,full,,": "the GPU is missing",
    "x,Llama-3.1-8B,8.03,h100_80gb,8,fsdp2,bf16,,4096,full,,": "the micro-batch is missing",
    "x,Llama-3.1-8B,8.03,h100_80gb,8,fsdp2,bf16,0,4096,full,,": "the micro-batch is missing",
    "x,Llama-3.1-8B,8.03,h100_80gb,8,fsdp2,bf16,2,long,full,,": "the sequence length is missing",
    "x,Llama-3.1-8B,8.03,h100_80gb,8,fsdp2 tp=8,bf16,2,4096,full,,": "tp: trainwiz does not plan",
    "x,nobody/knows-this,,h100_80gb,8,fsdp2,bf16,2,4096,full,,": "neither the model's name nor its size",
    "x,nobody/knows-this,3.1,l4,,,,1,128,,,": "",
    ",,,,,,,,,,,": "neither the model's name nor its size",
    "x": "neither the model's name nor its size",
}


def test_json_names_lines_and_says_why_not(tmp_path: Path) -> None:
    """One process, with rows that nobody made up for it."""
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([HEADER, *ODD]) + "\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "forecast.py"), str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["rows"]
    assert [row["row"] for row in found] == list(range(2, 2 + len(ODD)))
    for row, reason in zip(found, ODD.values(), strict=True):
        assert set(row) == {"row", "peak_gib", "tokens_per_s_per_gpu", "why_not"}
        assert row["why_not"].startswith(reason)
        assert bool(row["why_not"]) == bool(reason)
        assert (row["tokens_per_s_per_gpu"] is None) == bool(reason)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("name,value\na,1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="the columns micro_batch, model, seq_len, strategy are missing"):
        forecast.read(file)


def test_rates_are_found_again_from_speeds_that_they_made() -> None:
    rows = left_out.speeds(MEASUREMENTS)[::25]
    true = replace(left_out.FITTED, matrices=0.7, passes=2.4)
    made = [replace(row, tokens=forecast.tokens_per_second(row.found, row.gpu, true) or 0) for row in rows]
    assert max(abs(row.error(true)) for row in made) < 1e-9
    before = [abs(row.error(left_out.FITTED)) for row in made]
    found = left_out.fit(made)
    assert statistics.median(abs(row.error(found)) for row in made) < statistics.median(before) / 3
    assert found.matrices == pytest.approx(true.matrices, rel=0.06)
