"""FSDP2 in the generated program: who loads the model, when gradients are reduced, and in which numbers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from projects import REGRESSION, SMALL, begins_with, make, metrics
from test_sft import instructed
from test_tasks import load
from test_training import CURVE, ON_STANDIN, SINGLE, STRATEGIES, one_rank  # noqa: F401 - a fixture
from torch import nn
from warm import child, launch, run

from trainwiz.engines.transformers import LOADED_AS_SAVED
from trainwiz.models.families import FAMILIES

pytestmark = pytest.mark.train

OTHER_FILES = {"bloom", "falcon", "gpt_bigcode", "gpt_neo", "gpt_oss", "gptj", "mpt", "opt"}
"""Nothing changes their weights, but what is published are pickles, a head beside the embeddings, or MXFP4."""
OF_THE_HUB = {"baichuan", "chatglm", "internlm", "internlm2"}
"""Their code is that of the hub."""
ENCODERS = {"bert", "distilbert", "roberta", "xlm-roberta"}
SMALL_SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
OWN_SHAPE: dict[str, Any] = {"falcon": {}, "gpt_neo": {"attention_types": [[["global"], 1]]}}
CHILD = Path(__file__).parents[1] / "engine_children" / "sharded.py"
FSDP = {**SMALL, **STRATEGIES["fsdp"]}


def asked(project: Path, what: str, ranks: int, *arguments: str) -> list[dict[str, Any]]:
    """What each rank found."""
    shutil.copy(CHILD, project)
    done = run(project, [CHILD.name, str(project), what, *arguments], ranks, env=ON_STANDIN, seconds=240)
    assert [one.code for one in done] == [0] * ranks, done[-1].err[-3000:]
    return [json.loads((project / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "each"), [(4, True), (4, False)])
def test_gradients_that_are_reduced_in_each_micro_batch_add_up_to_the_same(
    ranks: int,
    each: bool,
    one_rank: list[dict[str, float]],  # noqa: F811
    tmp_path: Path,
) -> None:
    values = {**FSDP, "machine.num_processes": ranks, "batch.per_device_batch_size": 2, "schedule.n_steps": 3}
    folder = make(tmp_path / "project", {**values, "strategy.sync_each_batch": each})
    done = launch(folder, env=ON_STANDIN)
    assert done.code == 0, done.err
    for mine, theirs in zip(metrics(folder), one_rank[:3], strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4), (field, mine["update"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_losses_of_16_bit_layers_are_in_fp32(
    precision: str,
    one_rank: list[dict[str, float]],  # noqa: F811
    tmp_path: Path,
) -> None:
    """A loss that is summed in 16 bits would be rounded to 8 bits, or be infinite in fp16."""
    values = {"precision.mixed_precision": precision, "schedule.n_steps": 3, "data.eval": "embedded"}
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW201": "FSDP2 computes in what its policy says"}
    folder = make(tmp_path / "project", {**FSDP, **values, "ignore": ignored})
    done = launch(folder, env=ON_STANDIN)
    assert done.code == 0, done.err
    found = [r["loss"] for r in metrics(folder)]
    assert found == pytest.approx([r["loss"] for r in one_rank[:3]], rel=2e-3)
    records = (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
    found.append(json.loads(records[-1])["eval_loss"])
    assert all(float(torch.tensor(loss, dtype=torch.bfloat16)) != loss for loss in found)


# docs/decisions/loop.md: FSDP2 gathers weights anew after an evaluation
@pytest.mark.parametrize("older", [False, True])
def test_an_update_after_an_evaluation_does_not_compute_with_the_averages(older: bool, tmp_path: Path) -> None:
    """With a head that is called for each chunk of tokens; before PyTorch 2.13, nothing else ended such a pass."""
    values: dict[str, object] = {"data.eval": "8", "evaluation.evaluation_steps": 1, "schedule.n_steps": 3}
    values |= {"model.loss_chunk": 32, "optimizer.ema_decay": 0.5, "checkpoint.checkpointing_steps": 0}
    curves = []
    for name, way in (("one", SINGLE), ("two", FSDP)):
        folder = make(tmp_path / name, {**CURVE, **way, **values})
        if older:
            state = "torch.distributed.fsdp._fully_shard._fsdp_state"
            begins_with(
                folder,
                "build_model",
                f"from {state} import FSDPState; FSDPState._force_complete_incomplete_states = lambda _, found: found",
            )
        done = launch(folder, env=ON_STANDIN if name == "two" else None)
        assert done.code == 0, done.err
        records = map(json.loads, (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines())
        curves.append([record.get("eval_loss", record.get("loss")) for record in records])
    assert len(curves[0]) == 6
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


@pytest.mark.parametrize(("each", "times"), [(False, 1), (True, 4)])
def test_how_often_gradients_are_reduced(each: bool, times: int, tmp_path: Path) -> None:
    """Of four micro-batches in an update, each or the last; in fp32, whatever the layers compute in."""
    values = {
        **FSDP,
        "batch.per_device_batch_size": 2,
        "precision.mixed_precision": "bf16",
        "schedule.n_steps": 2,
        "schedule.n_warmup_steps": 0,
    }
    folder = make(tmp_path / "project", {**values, "strategy.sync_each_batch": each})
    found = asked(folder, "reductions", 2, "--output_dir", str(tmp_path / "out"))
    units = 4 + 2  # layers, and the embeddings, and the norm with the head
    for rank in found:
        assert rank["count"] == 2 * times * units
        assert rank["reduced"] == ["torch.float32"]
        assert rank["losses"] == ["torch.float32"]


def published(folder: Path, *, tied: bool, width: int = 512, layers: int = 6, file_size: str = "10MB") -> Path:
    """A model of some 100 MB in fp32, or a narrower one, saved in bf16 and in several files, as on the hub."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(instructed(folder, None))
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=256,
    )
    transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(
        folder, max_shard_size=file_size
    )
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    return folder


@pytest.mark.parametrize(("ranks", "scratch"), [(2, True), (4, False)])
def test_who_holds_the_model_while_it_loads(ranks: int, scratch: bool, tmp_path: Path) -> None:
    """New weights are held by one rank alone; those in files by none, and they are the same to the last bit."""
    model = published(tmp_path / "model", tied=False)
    values = {**FSDP, "model.name": str(model), "model.from_scratch": scratch, "machine.num_processes": ranks}
    folder = make(tmp_path / "project", values)
    first, *others = asked(folder, "loading", ranks)
    whole = 4 * first["parameters"]
    assert whole > 90e6
    for rank in others:
        assert rank["waits"] == [["gloo", 3 * 3600.0]] * scratch
        assert rank["parameters"] == first["parameters"] == rank["trained"]
        # What both imported meanwhile left out.
        assert (first["build"] - rank["build"] > 0.9 * whole) == scratch
        assert rank["held"] < 1.05 * whole / ranks
        assert rank["digest"] == first["digest"]
    assert sum(rank["kept"] for rank in (first, *others)) == first["parameters"]
    if not scratch:
        assert max(rank["prepare"] for rank in (first, *others)) < 1.2 * whole / ranks
        assert first["digest"] == first["published"]


def test_no_rank_holds_a_model_that_an_adapter_is_trained_beside(tmp_path: Path) -> None:
    """Each reads its rows of the frozen weights in 16 bits; the adapter, too, is what one rank alone would have."""
    model = published(tmp_path / "model", tied=True)
    adapted = {"model.adapter": "lora", "model.lora_rank": 4, "precision.mixed_precision": "bf16"}
    folder = make(tmp_path / "project", {**FSDP, "model.name": str(model), "model.from_scratch": False, **adapted})
    found = asked(folder, "loading", 2)
    frozen = 2 * (found[0]["parameters"] - found[0]["trained"])
    assert frozen > 45e6
    for rank in found:
        assert rank["held"] < 0.5 * frozen + 2 * rank["trained"] + 1e5
        assert rank["build"] < 0.5 * frozen, "what is imported; in fp32, the model would take twice `frozen`"
        assert rank["prepare"] < 0.6 * frozen + 4 * rank["trained"]
        assert rank["digest"] == found[0]["published"]


def test_what_transformers_changes_as_it_loads_is_not_read_in_parts(tmp_path: Path) -> None:
    """The list of families is transformers' own; a mixture's experts are merged, and a new head is in no file."""
    sharding = load(tmp_path / "code", "sft", "sharding", strategy__kind="fsdp", machine__num_processes=2)
    seen = set()
    for family in FAMILIES.keys() - OF_THE_HUB - ENCODERS:
        small = {**SMALL_SHAPE, **OWN_SHAPE.get(family, {"head_dim": 16})}
        config = transformers.AutoConfig.for_model(family, vocab_size=64, pad_token_id=0, **small)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        is_kept = not sharding.changed_by_loading(model) and not sharding.saved_buffers(model)
        assert is_kept == (family in LOADED_AS_SAVED or family in OTHER_FILES), family
        seen.add(family)
    assert seen > LOADED_AS_SAVED
    assert "mixtral" in seen
    saved = published(tmp_path / "model", tied=True)
    shape = transformers.AutoConfig.from_pretrained(saved)
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(shape)
        judge = transformers.AutoModelForSequenceClassification.from_config(shape)
        shape.tie_word_embeddings = False
        untied = transformers.AutoModelForCausalLM.from_config(shape)
    whole.tie_weights()
    found = sharding.found_in(whole, str(saved))
    assert found["lm_head.weight"] == found["model.embed_tokens.weight"]
    assert len({path for path, _ in found.values()}) > 1
    assert sharding.found_in(judge, str(saved)) == sharding.found_in(untied, str(saved)) == {}


def test_what_task_py_changes_after_loading_is_not_lost(tmp_path: Path) -> None:
    """Each rank would read what the files hold; whoever edits build_model means the weights that it returns."""
    saved = published(tmp_path / "model", tied=False, width=64, file_size="100KB")
    added = {"data__added_tokens": "<new>", "model__name": str(saved), "model__from_scratch": False}
    added |= {"strategy__kind": "fsdp", "machine__num_processes": 2}
    new_tokens = load(tmp_path / "code", "sft", "new_tokens", **added)
    sharding = load(tmp_path / "code", "sft", "sharding", **added)

    def head(model: Any) -> nn.Parameter:
        found: nn.Parameter = model.get_output_embeddings().weight
        return found

    def replaced(model: Any) -> None:
        model.get_output_embeddings().weight = nn.Parameter(head(model) * 2)

    changes: dict[str, Callable[[Any], object]] = {
        "nothing": lambda _: None,
        "only read": lambda model: head(model).sum(),
        "frozen": lambda model: head(model).requires_grad_(requires_grad=False),
        "in place": lambda model: head(model).data.mul_(2),
        "several": lambda model: torch._foreach_mul_([head(model).data], 2.0),
        "out": lambda model: torch.add(head(model).data, 1, out=head(model).data),
        "a row of a new token": lambda model: new_tokens.fill(head(model), {5: "<new>"}),
        "initialized": lambda model: model.get_output_embeddings().reset_parameters(),
        "replaced": replaced,
    }
    for name, change in changes.items():

        def build_model(change: Callable[[Any], object] = change) -> Any:
            model = sharding.Loader(transformers.AutoModelForCausalLM).from_pretrained(str(saved), dtype=torch.float32)
            change(model)
            return model

        with torch.no_grad():
            sharding.build(SimpleNamespace(is_main_process=False), build_model)
        assert bool(sharding.places) == (name in ("nothing", "only read", "frozen")), name


@pytest.mark.filterwarnings("ignore:Model has .tie_word")
def test_what_task_py_changes_beside_an_adapter_is_not_lost(tmp_path: Path) -> None:
    """The adapter is no file's, and what is trained as a whole beside it is a copy: then rank 0 has all."""
    saved = published(tmp_path / "model", tied=True, width=64, file_size="100KB")
    adapted = {"model__name": str(saved), "model__from_scratch": False, "model__adapter": "lora"}
    task = load(tmp_path / "code", "sft", **adapted, strategy__kind="fsdp", machine__num_processes=2)
    sharding = sys.modules["sharding"]

    def layer(model: Any) -> Any:
        return model.model.layers[0].self_attn.q_proj

    embeddings = {"modules_to_save": "embed_tokens,lm_head"}
    cases: dict[str, tuple[dict[str, Any], Callable[[Any], object]]] = {
        "nothing": ({}, lambda _: None),
        "the adapter": ({}, lambda model: layer(model).lora_B["default"].weight.data.fill_(1)),
        "another norm is trained": ({}, lambda model: model.model.norm.weight.requires_grad_()),
        "below the adapter": ({}, lambda model: layer(model).base_layer.weight.data.mul_(2)),
        "the embeddings": ({}, lambda model: model.get_input_embeddings().weight.data.mul_(2)),
        "trained as a whole": (embeddings, lambda _: None),
    }
    for name, (told, change) in cases.items():

        def build_model(told: dict[str, Any] = told, change: Callable[[Any], object] = change) -> Any:
            model = task.build_model(task.TaskConfig(**told))
            change(model)
            return model

        torch.manual_seed(0)
        model = sharding.build(SimpleNamespace(is_main_process=False), build_model)
        assert bool(sharding.places) == (name in ("nothing", "the adapter", "another norm is trained")), name
        both = [part.weight for part in (model.get_input_embeddings(), model.get_output_embeddings())]
        assert (both[0] is both[1]) == (not told), name
    assert "model.layers.0.self_attn.q_proj.base_layer.weight" in dict(model.named_parameters())


def test_before_torch_2_9_frozen_weights_have_the_type_of_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adapted = {"model__name": "org/model", "model__from_scratch": False, "model__adapter": "lora"}
    sharding = load(tmp_path, "sft", "sharding", **adapted, strategy__kind="fsdp", machine__num_processes=2)
    for version, dtype in (("2.8.0+cu126", "float32"), ("2.9.1", "bfloat16"), ("2.13.0", "bfloat16")):
        monkeypatch.setattr(sharding.torch, "__version__", version)
        assert sharding.type_of_frozen("bfloat16") == dtype
        assert (version in capsys.readouterr().out) == (dtype == "float32")


def test_a_script_without_a_launcher_is_the_only_rank_of_its_world(tmp_path: Path) -> None:
    values = {"machine.num_processes": 1, "batch.real_batch_size": 4, "batch.per_device_batch_size": 4}
    folder = make(tmp_path / "project", {**FSDP, **values, "batch.gradient_accumulation_steps": 1})
    done = child(
        folder / "train.py",
        "--n_steps",
        "1",
        "--n_warmup_steps",
        "0",
        "--output_dir",
        str(tmp_path / "out"),
        env=ON_STANDIN,
    )
    assert done.code == 0, done.err
    assert list((tmp_path / "out" / "checkpoints" / "checkpoint-00000001").glob("*.distcp"))


@pytest.mark.parametrize("tied", [False, True])
def test_all_ranks_train_the_model_that_the_first_one_loaded(tied: bool, tmp_path: Path) -> None:
    """The curve of one rank that loads it by itself."""
    model = published(tmp_path / "model", tied=tied, width=64, file_size="100KB")
    curves = []
    for strategy in ({"strategy.kind": "single", "machine.num_processes": 1}, STRATEGIES["fsdp"]):
        values = {**SMALL, **strategy, "model.name": str(model), "schedule.n_steps": 3, "schedule.n_warmup_steps": 0}
        folder = make(tmp_path / str(len(curves)), values)
        done = launch(folder, env=ON_STANDIN if curves else None)
        assert done.code == 0, done.err
        curves.append([(r["loss"], r["grad_norm_pre_clip"], r["weight_norm"]) for r in metrics(folder)])
    for mine, theirs in zip(*curves, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_outputs_of_a_whole_model_in_16_bits_are_in_fp32(tmp_path: Path) -> None:
    """A task's own loss would otherwise be computed from rounded outputs."""
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW201": "FSDP2 computes in what its policy says"}
    values = {**REGRESSION, **STRATEGIES["fsdp"], "precision.mixed_precision": "bf16", "ignore": ignored}
    folder = make(tmp_path / "project", {**values, "schedule.n_steps": 3, "data.eval": ""})
    text = (folder / "task.py").read_text()
    (folder / "task.py").write_text(f"{text}\n\nusual = loss_sum\n\n\n{OF_WHOLE_OUTPUTS}")
    done = launch(folder, env=ON_STANDIN)
    assert done.code == 0, done.err


OF_WHOLE_OUTPUTS = """
def loss_sum(model, batch):
    seen = []
    hook = model.head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    assert model(batch["inputs"]).dtype == torch.float32
    hook.remove()
    assert seen == [torch.bfloat16]
    return usual(model, batch)
"""
