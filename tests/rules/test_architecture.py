"""The model that foreign files are for: how `trainwiz check` finds out, and what it reads of its shape."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import forked
import pytest
import warm

from trainwiz.cli import run
from trainwiz.engines import transformers as heads
from trainwiz.probe import model as probing
from trainwiz.probe.cache import HubCache
from trainwiz.script import read as read_script

LLAMA = {"model_type": "llama", "num_attention_heads": 12, "num_key_value_heads": 4, "num_hidden_layers": 2}
SPLIT = """\
distributed_type: DEEPSPEED
num_processes: 8
mixed_precision: bf16
deepspeed_config:
  gradient_clipping: 1.0
  zero_stage: 3
  zero3_save_16bit_model: true
parallelism_config:
  parallelism_config_sp_size: 8
"""
VERSIONS = ("--engine-version", "accelerate=1.15.0", "--engine-version", "deepspeed=0.19.8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (tmp_path / "acc.yaml").write_text(SPLIT)
    return tmp_path


def configured(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, str]]:
    run(["check", "acc.yaml", *arguments, *VERSIONS, "--json"])
    return [(f["rule"], f["message"]) for f in json.loads(capsys.readouterr().out)["findings"]]


def test_a_model_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(folder / "mine", LLAMA)
    assert found(capsys) == []
    assert found(capsys, "--model", "mine") == [("TW387", "sp_size 8 does not divide num_attention_heads 12 of mine")]
    assert found(capsys, "--model", "llama-1b") == []
    ((id, message),) = found(capsys, "--model", "gpt2-124m")
    assert (id, "gpt2" in message) == ("TW387", True)
    assert run(["check", "acc.yaml", "--model", "other/model"]) == 2
    assert "no config.json found here for model other/model" in capsys.readouterr().err


def test_a_model_that_was_downloaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(folder / "hf" / "hub" / "models--some--one" / "snapshots" / "abc", LLAMA)
    assert [id for id, _ in found(capsys, "--model", "some/one")] == ["TW387"]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("AutoModelForCausalLM.from_pretrained('mine')", True),
        ("name = 'mine'\nmodel = transformers.LlamaForCausalLM.from_pretrained(name)", True),
        ("AutoConfig.from_pretrained('mine')", True),
        ("AutoTokenizer.from_pretrained('mine')", False),
        ("AutoModel.from_pretrained(args.model)", False),
        ("AutoModel.from_pretrained('mine')\nAutoModel.from_pretrained('other')", False),
    ],
)
def test_the_script_names_a_model(line: str, known: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(folder / "mine", LLAMA)
    (folder / "train.py").write_text(f"import transformers\nfrom transformers import *\n{line}\n")
    assert [id for id, _ in found(capsys, "--script", "train.py")] == (["TW387"] if known else [])


def test_a_plan_beside_names_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "trainwiz.yaml").write_text("model: {name: tiny}\n")
    ((id, message),) = found(capsys)
    assert (id, message) == ("TW387", "sp_size 8 does not divide num_attention_heads 4 of tiny")


def test_a_launch_knows_the_script_and_the_address(folder: Path) -> None:
    configured(folder / "mine", LLAMA)
    (folder / "train.py").write_text(
        "from accelerate import Accelerator\nfrom transformers import AutoModel\n"
        "Accelerator(gradient_accumulation_steps=4)\nAutoModel.from_pretrained('mine')\n"
    )
    (folder / "acc.yaml").write_text(
        SPLIT.replace("zero_stage: 3\n", "zero_stage: 3\n  gradient_accumulation_steps: 1\n")
        + "num_machines: 2\nmain_process_ip: 10.0.0.1\n"
    )
    machine = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
    command = ["launch", "--config", "acc.yaml", "train.py", "--dry-run", "--machine", machine]
    done = forked.run(command, cwd=folder, env=os.environ)
    shown = done.stdout + done.stderr
    assert "TW387" in shown, "the model's heads"
    assert "TW436" in shown, "what the script accumulates"
    assert "TW613" not in shown, "an address is given"


def test_what_a_script_loads() -> None:
    text = "from transformers import AutoModel\nAutoModel.from_pretrained('a', attn_implementation='sdpa')\n"
    loaded = read_script("s.py", text).loaded
    assert (loaded.names, loaded.attention) == (("a",), "sdpa")
    assert read_script("s.py", f"{text}AutoModel.from_pretrained('a')\n").loaded.attention is None


def test_shapes_of_nested_and_broken_configurations(tmp_path: Path) -> None:
    def read(config: Any) -> Any:
        configured(tmp_path / "m", config)
        return probing.architecture("m", tmp_path, HubCache({}))

    nested = read({"model_type": "llava", "text_config": LLAMA, "vision_config": {"num_attention_heads": 16}})
    assert (nested.model_type, nested.heads, nested.kv, nested.layers) == ("llama", 12, 4, 2)
    assert read({"model_type": "falcon", "num_attention_heads": 71, "num_kv_heads": 8}).kv == 8
    assert read({"model_type": "gpt2", "n_head": 12, "n_layer": 6}).heads == 12
    assert read({"model_type": "phi3", "sliding_window": 2047}).layer_types == ("sliding_attention",)
    assert read({"num_attention_heads": "12", "layer_types": 3}).heads is None
    assert read([1]) is None
    (tmp_path / "m" / "config.json").write_text("{")
    assert probing.architecture("m", tmp_path, HubCache({})) is None
    for name in ("..", "a/b/c", ""):
        assert probing.architecture(name, tmp_path / "none", HubCache({"HF_HUB_CACHE": str(tmp_path)})) is None


def test_types_of_models_are_as_transformers_has_them(tmp_path: Path) -> None:
    one_kind, cut, without = (
        sorted(kinds) for kinds in (heads.ONE_KIND_OF_HEADS, heads.CUT_BY_HEADS, heads.WITHOUT_PLAN)
    )
    program = f"""
import json
from transformers import AutoConfig
def styles(kind):
    plan = getattr(AutoConfig.for_model(kind), "base_model_tp_plan", None) or {{}}
    of_heads = ("q_proj", "k_proj", "v_proj", "query_key_value")
    return sorted({{style for name, style in plan.items() if name.rpartition(".")[2] in of_heads}})
others = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "starcoder2"]
print(json.dumps([
    [kind for kind in {one_kind} if hasattr(AutoConfig.for_model(kind), "num_key_value_heads")],
    [kind for kind in others if not hasattr(AutoConfig.for_model(kind), "num_key_value_heads")],
    [kind for kind in {cut} if styles(kind) != ["colwise"]],
    [kind for kind in {without} if getattr(AutoConfig.for_model(kind), "base_model_tp_plan", None)],
]))
"""
    (tmp_path / "program.py").write_text(program)
    done = warm.child(tmp_path / "program.py")
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1]) == [[], [], [], []]
