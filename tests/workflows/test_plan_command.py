"""`trainwiz plan`: rows, limits, scaling, JSON, and a row that becomes a project. No hub and no GPU is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwiz import language
from trainwiz.cli import run
from trainwiz.errors import UsageError
from trainwiz.store import machines
from trainwiz.wizard import summary
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.planning import quantity

QWEN = ["--model", "Qwen/Qwen2.5-7B-Instruct", "--task", "sft"]
GIB = 2**30
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    language.choose([], {})


def plan(*words: str) -> int:
    return run(["plan", *words])


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    plan(*words, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_are_the_fastest_that_fit_and_then_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, *QWEN, "--gpus", "8xH100")
    assert (found["gpus"], found["gpu"], found["usable_bytes"]) == (8, "H100", 72 * GIB)
    assert (found["model"], found["adapter"]) == ("Qwen/Qwen2.5-7B-Instruct", "none")
    fitting = [row for row in found["rows"] if row["fits"]]
    assert len(fitting) >= 4
    seconds = [row["seconds_per_update"] for row in fitting]
    near = sum(one <= 1.1 * min(seconds) for one in seconds)  # which a forecast cannot tell from the fastest
    assert seconds[0] <= 1.1 * min(seconds)
    assert seconds[near:] == sorted(seconds[near:])
    assert found["rows"][: len(fitting)] == fitting
    ddp = next(row for row in found["rows"] if row["strategy"] == "ddp")
    # 16 bytes for each of 7.6e9 parameters.
    assert not ddp["fits"]
    assert ddp["peak_bytes_per_rank"] > 16 * 7.6e9
    assert "72.0 GiB of 80.0 GiB can be used" in ddp["why_not"]
    for row in found["rows"]:
        micro, accumulation = row["per_device_batch_size"], row["gradient_accumulation_steps"]
        assert micro * accumulation * 8 == found["real_batch_size"]
        assert max(sum(parts.values()) for parts in row["moments"].values()) == row["peak_bytes_per_rank"]


def test_the_table_shows_the_parts_of_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*QWEN, "--gpus", "8xA100-80GB", "--price", "2") == 0
    out = capsys.readouterr()
    header, first, *_ = out.out.splitlines()
    assert header.split() == ["ROW", "STRATEGY", "RECOMPUTED", "BATCH", "PEAK", "MEMORY", "TOKENS/S", "TIME", "COST"]
    (bar,) = [word for word in first.split() if "█" in word or "▓" in word]
    assert len(bar) == 20
    assert "on 8 × A100-80GB (80.0 GiB)" in out.err


def test_limits_say_which_rows_are_too_slow_or_too_dear(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QWEN, "--gpus", "8xA100-80GB", "--tokens", "1B", "--price", "2"]
    free = rows(capsys, *words)["rows"]
    hours = [row["hours"] for row in free if row["fits"]]
    assert free[0]["cost"] == pytest.approx(hours[0] * 8 * 2)
    middle = (hours[0] + hours[-1]) / 2
    limited = rows(capsys, *words, "--target", f"{middle:.3f}h")["rows"]
    assert 0 < sum(row["fits"] for row in limited) < len(hours)
    assert any("takes" in (row["why_not"] or "") for row in limited)
    assert plan(*words, "--max-cost", "0.01") == 1
    assert "costs" in capsys.readouterr().out


def test_the_power_limit_of_a_machine_bounds_the_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = json.loads((Path(__file__).parents[1] / "machines" / "8xh100.json").read_text())
    file = tmp_path / "machine.json"
    words = [*QWEN, "--tokens", "1B", "--machine", str(file)]
    file.write_text(json.dumps(machine))
    found = rows(capsys, *words)
    best = found["rows"][0]
    assert found["gpu_power_watts"] == 700
    assert best["energy_kwh"] == pytest.approx(best["hours"] * 8 * 0.7)
    assert plan(*words) == 0
    assert "kWh, with GPUs at their power limit of 700 W" in capsys.readouterr().err
    for gpu in machine["gpus"]:
        gpu["power_watts"] = None
    file.write_text(json.dumps(machine))
    assert rows(capsys, *words)["rows"][0]["energy_kwh"] is None


def test_a_price_is_kept_for_its_gpu_until_it_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    h100, a100 = [*QWEN, "--gpus", "8xH100"], [*QWEN, "--gpus", "8xA100-80GB"]
    typed = rows(capsys, *h100, "--price", "2.5")
    assert (typed["price"], rows(capsys, *h100)["price"], rows(capsys, *a100)["price"]) == (2.5, 2.5, None)
    assert rows(capsys, *h100, "--max-cost", "10000")["rows"][0]["cost"] == typed["rows"][0]["cost"] > 0
    assert plan(*h100) == 0
    assert "cost: 2.5 per hour of one H100, as you entered it before" in capsys.readouterr().err
    # The wizard's review says what the training costs at this price.
    asked = {"task": "sft", "model.name": "Qwen/Qwen2.5-7B-Instruct", "model.parameters": 7_615_616_512}
    decided = Planner(folder=tmp_path, gpus="8xH100").decide(asked)
    assert decided.outlook.seconds
    cost = decided.outlook.seconds / 3600 * 8 * 2.5
    assert summary.lines(decided)["schedule.n_steps"].endswith(f", cost {cost:,.2f}")
    assert rows(capsys, *h100, "--price", "none")["price"] is None
    assert rows(capsys, *h100)["price"] is None
    (tmp_path / "settings" / "trainwiz" / "prices.json").write_text('{"H100": "cheap", "A100-80GB": -1}')
    assert rows(capsys, *h100)["price"] is rows(capsys, *a100)["price"] is None
    # Where settings cannot be written, the answer is the same.
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert plan(*h100, "--price", "3") == 0
    told = capsys.readouterr()
    assert "the price was not saved" in told.err
    assert "COST" in told.out


def test_another_model_in_a_project_has_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainwiz.yaml").write_text("task: sft\nmodel:\n  name: tiny\n")
    assert plan(*QWEN, "--gpus", "8xH100") == 0
    assert "all other settings come from trainwiz.yaml" in capsys.readouterr().err
    assert plan(str(tmp_path / "elsewhere"), *QWEN, "--gpus", "8xH100") == 0
    assert "all other settings" not in capsys.readouterr().err


def test_layers_that_are_assumed_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--model", "deepseek-ai/DeepSeek-V3", "--task", "sft", "--gpus", "256xH100") == 0
    assert "the layers of deepseek-ai/DeepSeek-V3 are assumed" in " ".join(capsys.readouterr().err.split())
    assert plan(*QWEN, "--gpus", "8xH100") == 0
    assert "assumed" not in capsys.readouterr().err


def test_more_gpus_take_less_time(capsys: pytest.CaptureFixture[str]) -> None:
    plan(*QWEN, "--gpus", "1xH100", "--over", "gpus=1,2,4,8,16", "--json")
    said = json.loads(capsys.readouterr().out)
    found = said["rows"]
    assert [row["gpus"] for row in found] == [1, 2, 4, 8, 16]
    # One GPU decides what is trained, also where more of them could train all weights.
    assert said["adapter"] == "lora"
    assert max(row["checkpoint_bytes"] for row in found) < GIB
    hours = [row["hours"] for row in found if row["fits"]]
    assert len(hours) >= 4
    assert hours == sorted(hours, reverse=True)
    assert plan(*QWEN, "--gpus", "1xH100", "--over", "gpus=1,8") == 0
    out = capsys.readouterr()
    assert out.out.splitlines()[0].startswith("GPUS")
    assert "Qwen/Qwen2.5-7B-Instruct (lora) on H100 (80.0 GiB)" in out.err


def test_an_adapter_fits_where_full_fine_tuning_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QWEN, "--gpus", "1x4090", "--strategy", "single"]
    assert plan(*words, "--method", "full") == 1
    assert "nothing fits" in capsys.readouterr().err
    assert plan(*words, "--target", "1m") == 1
    assert "everything that fits takes longer or costs more than requested" in capsys.readouterr().err
    assert plan(*words) == 0
    assert "Qwen/Qwen2.5-7B-Instruct (qlora) on 1 × 4090" in capsys.readouterr().err
    assert plan(*words, "--adapter", "lora") == 0
    assert "Qwen/Qwen2.5-7B-Instruct (lora) on 1 × 4090" in capsys.readouterr().err
    assert plan(*words, "--adapter", "dora") == 2
    assert "model.adapter: 'dora' is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no model to plan for"),
        ([*QWEN, "--gpus", "3xFOO"], "not a known GPU"),
        ([*QWEN, "--gpus", "12xH100"], "12 GPUs are not a whole number of"),
        ([*QWEN, "--gpus", "0xH100"], "not a known GPU"),
        ([*QWEN, "--gpus", "8xH100", "--max-cost", "3"], "--max-cost needs the price"),
        ([*QWEN, "--gpus", "8xH100", "--price", "-1"], "--price '-1' cannot be understood"),
        ([*QWEN, "--gpus", "8xH100", "--target", "soon"], "--target 'soon' cannot be understood"),
        ([*QWEN, "--gpus", "8xH100", "--tokens", "many"], "--tokens 'many' cannot be understood"),
        ([*QWEN, "--gpus", "8xH100", "--over", "2,4"], "not a list of GPU counts"),
        ([*QWEN, "--gpus", "8xH100", "--strategy", "fastest"], "is not available for 8 ranks"),
        ([*QWEN, "--gpus", "8xH100", "--pick", "99"], "no row with this number fits"),
        ([*QWEN, "--gpus", "8xH100", "--set", "batch.sequence_length=no"], "batch.sequence_length"),
        ([*QWEN, "--machine", "nowhere.json"], "nowhere.json: cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*words) == 2
    assert says in capsys.readouterr().err


def test_the_page_shows_each_moment_without_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QWEN, "--gpus", "8xA100-80GB", "--price", "2"]
    fitting = [row for row in rows(capsys, *words)["rows"] if row["fits"]]
    assert plan(*words, "--html", "plan.html") == 0
    assert capsys.readouterr().out.strip() == "plan.html"
    page = (tmp_path / "plan.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<circle") == len(fitting)
    assert page.count('class="bar"') == 4 * len(fitting)
    assert page.count('class="peak"') == len(fitting)
    assert "needs" in page[page.index("What does not fit") :]
    assert plan(*words, "--html", str(tmp_path)) == 2


def test_a_folder_with_a_configuration_is_enough(tmp_path: Path) -> None:
    """And its name is escaped on the page."""
    folder = tmp_path / "<b>x"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    assert plan("--model", "<b>x", "--task", "sft", "--gpus", "1xL4", "--html", "plan.html") == 0
    page = (tmp_path / "plan.html").read_text()
    assert "<b>x" not in page
    assert "&lt;b&gt;x" in page
    (folder / "config.json").write_text("[" * 10_000)
    assert plan("--model", "<b>x", "--task", "sft", "--gpus", "1xL4") == 2


def test_a_family_that_nobody_counted_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"model_type": "newest"}), encoding="utf-8")
    assert plan("--model", str(tmp_path), "--task", "causal_lm", "--gpus", "L4") == 0
    assert "trainwiz does not know the family newest" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": SIZES | {"model_type": "llama"}}), encoding="utf-8"
    )
    assert plan("--model", str(tmp_path), "--task", "causal_lm", "--gpus", "L4") == 0
    assert "only the language model is counted" in capsys.readouterr().err


def test_qlora_says_what_it_leaves_in_16_bits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "Qwen/Qwen3-30B-A3B", "--task", "sft", "--gpus", "8xH100", "--set"]
    assert plan(*words, "model.adapter=qlora") == 0
    assert "stay in 16 bits under ZeRO 3: 54.0 GiB" in " ".join(capsys.readouterr().err.split())
    assert plan(*words, "model.adapter=lora") == 0
    assert "16 bits" not in capsys.readouterr().err


def test_what_is_set_stays(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "batch.per_device_batch_size=1", "--set", "model.activation_checkpointing=full"]
    found = rows(capsys, *QWEN, "--gpus", "8xH100", *words)["rows"]
    assert {(row["per_device_batch_size"], row["activation_checkpointing"]) for row in found} == {(1, "full")}
    for typed in (["--set", "strategy.kind=ddp"], ["--strategy", "ddp"]):
        found = rows(capsys, "--model", "gpt2", "--gpus", "8xH100", *typed)["rows"]
        assert [row["strategy"] for row in found] == ["ddp"]


def test_a_model_whose_layers_are_unknown_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "image_classification", "--model", "timm/nobody_counted", "--gpus", "2xV100"]
    words += ["--set", "model.parameters=11_700_000"]
    found = rows(capsys, *words)["rows"]
    assert (found[0]["strategy"], found[0]["tokens_per_second"]) == ("ddp", None)
    assert plan(*words) == 0
    assert "the layers of timm/nobody_counted are unknown" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["resnet18", "timm/resnet50"])
def test_a_network_for_pictures_has_a_speed_in_pictures(capsys: pytest.CaptureFixture[str], model: str) -> None:
    words = ["--task", "image_classification", "--model", model, "--gpus", "1x3090", "--set", "data.train=photos"]
    best = rows(capsys, *words)["rows"][0]
    assert "tokens_per_second" not in best
    assert 100 < best["pictures_per_second"] < 20_000
    assert plan(*words) == 0
    said = capsys.readouterr()
    assert "PICTURES/S" in said.out + said.err
    assert "Llama" not in said.err, "it is no language model"


def test_fp32_is_slower_than_16_bits(capsys: pytest.CaptureFixture[str]) -> None:
    speed = [
        rows(capsys, *QWEN, "--gpus", "8xA100-80GB", "--set", f"precision.mixed_precision={how}")["rows"][0]
        for how in ("bf16", "no")
    ]
    assert speed[0]["tokens_per_second"] > 5 * speed[1]["tokens_per_second"]


def test_a_row_becomes_the_project(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["made", "--model", "llama-1b", "--task", "causal_lm", "--gpus", "4xA100-40GB", "--tokens", "100M"]
    said = rows(capsys, *words)
    found = said["rows"]
    chosen = next(row for row in found if row["fits"] and row["row"] > 1)
    assert plan(*words, "--pick", str(chosen["row"]), "--yes") == 0
    made = yaml.safe_load((tmp_path / "made" / "trainwiz.yaml").read_text())
    assert made["batch"]["per_device_batch_size"] == chosen["per_device_batch_size"]
    assert made["batch"]["gradient_accumulation_steps"] == chosen["gradient_accumulation_steps"]
    assert made["model"]["activation_checkpointing"] == chosen["activation_checkpointing"]
    assert made["machine"]["num_processes"] == 4
    assert made["schedule"]["n_steps"] == 10**8 // (said["real_batch_size"] * said["sequence_length"])
    assert "--machine 4xA100-40GB " in capsys.readouterr().err
    # The project is where the next plan begins.
    again = rows(capsys, "made", "--gpus", "8xH100")
    assert (again["model"], again["gpus"]) == ("llama-1b", 8)


def test_saving_takes_time_and_disk(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QWEN, "--gpus", "8xH100", "--strategy", "fsdp", "--steps", "100"]
    rare, often = (
        rows(capsys, *words, "--set", f"checkpoint.checkpointing_steps={every}")["rows"][0] for every in (100, 10)
    )
    each = rare["checkpoint_bytes"]
    assert each == 12 * 7_615_616_512
    assert often["hours"] - rare["hours"] == pytest.approx(9 * rare["checkpoint_seconds"] / 3600)
    assert (rare["disk_bytes"], often["disk_bytes"]) == (each + each // 3, 4 * each + each // 3)
    plan(*words)
    told = capsys.readouterr().err
    assert "disk for row 1" in told
    assert "host memory" not in told


def test_host_memory_is_shown_where_the_gpus_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that is only named rules nothing out, so what it must have is said."""
    words = ["--model", "meta-llama/Llama-3.1-70B", "--task", "sft"]
    plan(*words, "--gpus", "2x4090")
    assert re.search(r"host memory for row 1: 1\d\d GiB on each machine", capsys.readouterr().err)
    named = ["--set", "model.name=meta-llama/Llama-3.1-70B", "--set", "task=sft", "--machine", "2x4090"]
    assert run(["init", str(tmp_path / "a"), "--defaults", "--yes", *named]) == 0
    assert re.search(r"Each machine needs 1\d\d GiB of host memory beside its GPUs", capsys.readouterr().err)


@pytest.mark.parametrize("way", ["machine", "recipe", "file", "pick"])
def test_a_project_for_named_gpus_is_planned_for_them_where_there_are_none(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, where = tmp_path / "project", str(tmp_path / "project")
    count, name = (1, "4090") if way == "recipe" else (4, "A100-80GB")
    if way == "recipe":
        assert run(["init", where, "--recipe", "qwen2.5-7b-qlora-1x4090", "--defaults", "--yes"]) == 0
    elif way == "pick":
        assert run(["plan", where, *QWEN, "--gpus", f"{count}x{name}", "--pick", "1", "--yes"]) == 0
    else:
        machine, _ = quantity.machine_named(f"{count}x{name}")
        (tmp_path / "there.json").write_text(json.dumps(machines.to_dict(machine)))
        named = "there.json" if way == "file" else f"{count}x{name}"
        assert run(["init", where, *QWEN, "--machine", named, "--defaults", "--yes"]) == 0
    capsys.readouterr()
    found = rows(capsys, where)
    assert (found["gpus"], found["gpu"]) == (count, name)
    assert plan(where) == 0
    assert f"this machine has no GPU; the rows are for {count}x{name}, as the project is" in capsys.readouterr().err
    assert plan(where, "--gpus", "2xH100") == 0
    assert "on 2 × H100" in capsys.readouterr().err, "what is typed comes first"
    assert run(["update", where, "--set", "seed=7"]) == 0
    capsys.readouterr()
    assert rows(capsys, where)["gpus"] == count, "an update keeps it"
    assert json.loads((folder / ".trainwiz/answers.json").read_text())["gpus"] == f"{count}x{name}"


def test_a_machine_without_gpus_leaves_none_to_plan_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = machines.to_dict(quantity.machine_named("1xT4")[0])
    (tmp_path / "here.json").write_text(json.dumps({**machine, "gpus": []}))
    where = str(tmp_path / "project")
    assert run(["init", where, "--model", "tiny", "--machine", "here.json", "--defaults", "--yes"]) == 0
    assert "gpus" not in json.loads((tmp_path / "project/.trainwiz/answers.json").read_text())
    capsys.readouterr()
    assert rows(capsys, where)["device"] == "cpu"


def test_without_a_gpu_it_says_what_the_host_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = machines.to_dict(quantity.machine_named("1xT4")[0])
    (tmp_path / "here.json").write_text(json.dumps({**machine, "gpus": []}))
    small = ["--model", "tiny", "--task", "causal_lm", "--machine", "here.json"]
    found = rows(capsys, *small)
    usual = "ddp" if found["ranks"] > 1 else "single"
    assert (found["device"], found["fits"], found["strategy"]) == ("cpu", True, usual)
    assert 2**28 < found["host_bytes_per_rank"] < 2**31
    assert found["host_bytes_per_machine"] == found["ranks"] * found["host_bytes_per_rank"]
    assert found["checkpoint_bytes"] == 12 * 869_760
    assert plan(*small) == 0
    out = capsys.readouterr()
    assert "tiny on the CPU" in out.out
    assert "to see the forecast for some: --gpus" in out.err
    assert plan(*QWEN, "--set", "model.parameters=9_000_000_000_000", "--machine", "here.json") == 1
    assert "does not fit in the memory" in capsys.readouterr().err
    assert plan(*small, "--strategy", "ddp") == 2
    assert "this machine has no GPU to plan for" in capsys.readouterr().err
    assert plan("--task", "custom", "--model", "mine", "--machine", "here.json") == 2
    assert "add --exact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "each", "machines"),
    [
        ("8xH100", 8, 1),
        ("16xH100", 8, 2),
        ("2x8xH100", 8, 2),
        ("3 x 4 x L40S", 4, 3),
        ("T4x2", 2, 1),
        ("H100:8", 8, 1),
        ("2x4090", 2, 1),
        ("RTX 4070 Ti SUPER x 2", 2, 1),
    ],
)
def test_machines_are_named_by_their_gpus(text: str, each: int, machines: int) -> None:
    machine, count = quantity.machine_named(text)
    assert (len(machine.gpus), count) == (each, machines)


@pytest.mark.parametrize("text", ["12xH100", "2x9xH100", "0xH100", "8xGX200"])
def test_machines_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        quantity.machine_named(text)
