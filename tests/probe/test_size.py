"""How large a model is: by its files, the hub, the plan, the table and its name, in this order."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from patience import patience
from plans import BASE
from projects import environment

from trainwiz import models
from trainwiz import plan as plans
from trainwiz.probe import headers, hub_model
from trainwiz.probe.hub_model import HubModel
from trainwiz.probe.project import project
from trainwiz.project import ModelFacts

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
EXACT = models.of_config(LLAMA)
assert EXACT


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header = {name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]} for name, (kind, shape) in tensors.items()}
    content = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(content)) + content)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def look(folder: Path, name: str, *, hub: HubModel | None = None, offline: bool = False, **changes: Any) -> ModelFacts:
    """The facts about a model; `hub` is what the hub answers, None if it must not be asked."""

    def ask(_: str) -> HubModel:
        assert hub is not None, "the hub was asked"
        return hub

    values = {"model.name": name, "model.from_scratch": False, **{k.replace("__", "."): v for k, v in changes.items()}}
    environ = {"HF_HOME": str(folder / "hf"), **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    found = project(plans.with_changes(BASE, values), str(folder), environ=environ, ask=ask).model
    assert found
    return found


def said(found: ModelFacts) -> tuple[int | None, str | None]:
    return found.parameters, found.size_source


NOTHING = HubModel()


@pytest.mark.parametrize(
    ("name", "parameters", "source"),
    [
        ("meta-llama/Llama-2-70b-hf", 68_976_648_192, "table"),
        ("someone/Llama-3.1-8B-Instruct-AWQ", 8_030_261_248, "table"),
        ("someone/own-model-13b-chat", 13_000_000_000, "name"),
        ("someone/own-model", None, None),
    ],
)
def test_a_model_that_is_not_here_and_of_which_the_hub_says_nothing(
    tmp_path: Path, name: str, parameters: int | None, source: str | None
) -> None:
    for found in (look(tmp_path, name, hub=NOTHING), look(tmp_path, name, offline=True)):
        assert (said(found), found.kind) == ((parameters, source), "hub")
        assert (found.transformer is None) == (parameters is None)
        assert found.assumed == (source == "name")


def test_the_hub_knows_better_than_a_name(tmp_path: Path) -> None:
    found = look(tmp_path, "someone/own-7b", hub=HubModel(config=LLAMA, counts={"BF16": 500, "F32": 11}))
    assert said(found) == (511, "hub")
    assert found.transformer == EXACT
    assert said(look(tmp_path, "someone/own-7b", hub=HubModel(config=LLAMA))) == (EXACT.parameters, "hub")
    assert said(look(tmp_path, "someone/own-7b", hub=HubModel(counts={"BF16": 10**9}))) == (10**9, "hub")
    packed = HubModel(config={"quantization_config": {"bits": 4}}, counts={"I32": 10**9, "F16": 10**7})
    assert said(look(tmp_path, "someone/own-7b", hub=packed)) == (8 * 10**9 + 10**7, "hub")


def test_what_the_plan_says_is_not_asked_for(tmp_path: Path) -> None:
    found = look(tmp_path, "someone/own-7b", model__parameters=6_500_000_000)
    assert (said(found), found.usual_parameters) == ((6_500_000_000, "plan"), 7_000_000_000)
    assert found.assumed
    known = look(tmp_path, "meta-llama/Llama-3.1-8B", model__parameters=8_030_261_248)
    assert (known.assumed, known.transformer) == (False, models.known("llama-3.1-8b"))


def test_a_downloaded_model(tmp_path: Path) -> None:
    snapshot = tmp_path / "hf/hub/models--org--mine/snapshots/abc"
    write(snapshot / "config.json", LLAMA)
    assert said(look(tmp_path, "org/mine")) == (EXACT.parameters, "config")
    safetensors(snapshot / "model.safetensors", {"a": ("BF16", [10, 20]), "b": ("F32", [3])})
    assert said(look(tmp_path, "org/mine", model__parameters=7)) == (203, "files")


def test_an_index_says_which_shards_count(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write(folder / "config.json", {**LLAMA, "torch_dtype": "bfloat16"})
    for number in (1, 2):
        safetensors(folder / f"model-0000{number}-of-00002.safetensors", {f"t{number}": ("BF16", [100 * number])})
    safetensors(folder / "consolidated.safetensors", {"all": ("BF16", [300])})
    shards = {f"t{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    index = write(folder / "model.safetensors.index.json", {"metadata": {"total_size": 640}, "weight_map": shards})
    assert said(look(tmp_path, "mine")) == (300, "files")
    (folder / "model-00002-of-00002.safetensors").unlink()  # still downloading
    still = look(tmp_path, "mine", model__from_scratch=True)
    assert said(still) == (320, "files")
    index.unlink()
    (folder / "model.safetensors.index.json").write_text("{")
    assert said(look(tmp_path, "mine")) == (EXACT.parameters, "config")


def test_weights_that_only_torch_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write(folder / "config.json", {"model_type": "own", "torch_dtype": "float16"})
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert said(look(tmp_path, "mine")) == (500, "files")
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00001.bin")
    assert said(look(tmp_path, "mine")) == (500, "files")
    write(folder / "pytorch_model.bin.index.json", {"metadata": {"total_size": 4000}})
    assert said(look(tmp_path, "mine")) == (2000, "files")


def gptq(name: str) -> dict[str, tuple[str, list[int]]]:
    return {
        f"{name}.qweight": ("I32", [64 // 8, 32]),
        f"{name}.qzeros": ("I32", [1, 4]),
        f"{name}.scales": ("F16", [1, 32]),
        f"{name}.g_idx": ("I32", [64]),
    }


QUANTIZED = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, gptq("layer"), 2048),
    "gptq in 8 bits": ({"quant_method": "gptq", "bits": 8}, gptq("layer"), 1024),
    "awq": ({"quant_method": "awq", "bits": 4}, {k: v for k, v in gptq("l").items() if "g_idx" not in k}, 2048),
    "bitsandbytes nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {
            "l.weight": ("U8", [1024, 1]),
            "l.weight.absmax": ("U8", [32]),
            "l.weight.quant_map": ("F32", [16]),
            "l.weight.nested_absmax": ("F32", [1]),
            "l.weight.nested_quant_map": ("F32", [256]),
            "l.weight.quant_state.bitsandbytes__nf4": ("U8", [81]),
        },
        2048,
    ),
    "bitsandbytes int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"l.weight": ("I8", [64, 32]), "l.SCB": ("F32", [64]), "l.weight_format": ("U8", [])},
        2048,
    ),
    "fp8": (
        {"quant_method": "fp8"},
        {"l.weight": ("F8_E4M3", [64, 32]), "l.weight_scale_inv": ("F32", [1, 1])},
        2048,
    ),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        {"l.weight_packed": ("I32", [64, 4]), "l.weight_scale": ("BF16", [64, 1]), "l.weight_shape": ("I64", [2])},
        2048,
    ),
    "mxfp4": (
        {"quant_method": "mxfp4"},
        {"e.gate_up_proj_blocks": ("U8", [4, 16, 16]), "e.gate_up_proj_scales": ("U8", [4, 16])},
        2048,
    ),
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_quantized_weights_count_as_weights(tmp_path: Path, method: str) -> None:
    told, tensors, expected = QUANTIZED[method]
    safetensors(tmp_path / "mine/model.safetensors", {**tensors, "norm.weight": ("F16", [5])})
    write(tmp_path / "mine/config.json", {"model_type": "own", "quantization_config": told})
    assert said(look(tmp_path, "mine")) == (expected + 5, "files")
    # Where the family is known, its shape is surer.
    write(tmp_path / "mine/config.json", {**LLAMA, "quantization_config": told})
    assert said(look(tmp_path, "mine")) == (EXACT.parameters, "config")


def test_an_adapter_is_as_large_as_the_model_it_was_trained_beside(tmp_path: Path) -> None:
    write(tmp_path / "adapter/adapter_config.json", {"base_model_name_or_path": "meta-llama/Llama-3.1-8B"})
    safetensors(tmp_path / "adapter/adapter_model.safetensors", {"lora_A.weight": ("F32", [16, 64])})
    found = look(tmp_path, "adapter", hub=NOTHING)
    assert (said(found), found.kind) == ((8_030_261_248, "table"), "folder")
    write(tmp_path / "base/config.json", LLAMA)
    write(tmp_path / "adapter/adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base")})
    assert said(look(tmp_path, "adapter")) == (EXACT.parameters, "config")
    snapshot = tmp_path / "hf/hub/models--org--adapter/snapshots/abc"
    write(snapshot / "adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base")})
    assert said(look(tmp_path, "org/adapter")) == (EXACT.parameters, "config")


def test_a_model_that_reads_pictures_too(tmp_path: Path) -> None:
    safetensors(tmp_path / "mine/model.safetensors", {"vision": ("BF16", [100]), "text": ("BF16", [1000])})
    write(tmp_path / "mine/config.json", {"model_type": "llava", "text_config": LLAMA, "vision_config": {}})
    found = look(tmp_path, "mine")
    assert said(found) == (1100, "files")
    assert found.transformer
    assert found.transformer.hidden_size == 64


def test_paths_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models/mine/config.json", LLAMA)
    for name in ("models/mine", "./models/mine", str(tmp_path / "models/mine"), "models/../models/mine"):
        assert said(look(tmp_path, name, model__from_scratch=True)) == (EXACT.parameters, "config")
    # `~` is expanded where it is typed, and refused in a plan, since train.py would not expand it.
    monkeypatch.setenv("HOME", str(tmp_path))
    found = look(tmp_path, "~/models/mine", model__from_scratch=True)
    assert (found.kind, found.parameters) == ("missing", None)
    assert "~ is not expanded" in found.detail


def test_the_hub_is_given_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def download(_name: str, _file: str, *, local_dir: str, etag_timeout: float) -> str:
        assert etag_timeout <= hub_model.SECONDS
        return str(write(Path(local_dir) / "config.json", LLAMA))

    def hang(_name: str) -> None:
        time.sleep(300)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", hang)
    began = time.monotonic()
    found = hub_model.look("org/model", seconds=0.5)
    assert time.monotonic() - began < 150 * patience()
    assert (found.config, dict(found.counts)) == (LLAMA, {})
    assert hub_model.SECONDS == 3.0


def test_a_hub_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    assert hub_model.look("org/model") == HubModel()


def test_bits_are_four_where_nobody_says() -> None:
    assert headers.weight_bits({}) == 4
    assert headers.weight_bits({"quantization_config": {"quant_method": "awq", "w_bit": 3}}) == 3


class Hub(BaseHTTPRequestHandler):
    """A hub with one model: its config.json, and the header of its weights."""

    HEADER = json.dumps({"a": {"dtype": "BF16", "shape": [1000, 10], "data_offsets": [0, 20_000]}}).encode()
    FILES: ClassVar[dict[str, bytes]] = {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + bytes(20_000),
    }

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def answer(self) -> bytes:
        content = self.FILES.get(self.path.partition("?")[0].rpartition("/")[2])
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1] if content and last and self.command == "GET" else content
        self.send_response(404 if content is None else 200 if part == content else 206)
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(part or b"")))
        self.end_headers()
        return part or b""

    def log_message(self, *_: object) -> None:
        pass


def test_the_hub_is_asked_by_its_own_library(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "127.0.0.1"}
    program = (
        "import json; from trainwiz.probe import hub_model; found = hub_model.look('org/own', seconds=100)\n"
        "print(json.dumps([found.config, dict(found.counts)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment({**endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    server.shutdown()
    serving.join()
    server.server_close()
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [LLAMA, {"BF16": 10_000}]
    assert not (tmp_path / "hf" / "hub").exists(), "a model with one file in the cache counts as downloaded"
