"""Adapters of every task on text: what is trained and saved beside them, and that others can load it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from projects import SMALL, make
from safetensors.torch import load_file, save_file
from test_sft import adapter_hash, curve, export, instructed
from test_tasks import load
from warm import spawn

pytestmark = pytest.mark.filterwarnings("default")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ADAPTED = {"model__from_scratch": False, "model__adapter": "lora", "model__lora_rank": 4}
ALL = "embed_tokens,lm_head"
MLPS, NAMES = ("mlp", "shared_experts"), ("down_proj", "gate_proj", "up_proj")
EXPERTS = "experts.down_proj, experts.gate_up_proj"


def published(folder: Path, kind: str, **shape: Any) -> str:
    """A tiny pretrained model with a tokenizer: an encoder, or a decoder."""
    instructed(folder, None)
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(folder))
    if kind == "bert":  # dropout draws other noise on another number of ranks
        shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=vocabulary, bos_token_id=None, eos_token_id=256, pad_token_id=None, **SIZES, **shape
    )
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    made = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
    made.from_config(config).save_pretrained(folder)
    return str(folder)


def rows(path: Path, label: Any) -> str:
    """Texts of ragged lengths with a label."""
    texts = [{"text": f"{i} " * (i % 9 + 1), "label": label(i)} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, texts)))
    return str(path)


def disturbed(model: Any) -> dict[str, torch.Tensor]:
    """The weights that a training would change, changed; as the engine gathers them."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 10)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("task", ["text_classification", "text_regression", "text_multilabel"])
def test_a_head_for_labels_is_trained_and_saved_with_the_adapter(kind: str, task: str, tmp_path: Path) -> None:
    name = published(tmp_path / "model", kind)
    data = rows(tmp_path / "rows.jsonl", float if task == "text_regression" else lambda i: "abc"[i % 3])
    changes = {"model__name": name, "data__train": data, "data__eval": None, "model__merge_adapter": True}
    made = load(tmp_path / "code", task, **ADAPTED, **changes)
    config = made.TaskConfig(text_column="text", label_column="label")
    model = made.build_model(config)
    head = "classifier" if kind == "bert" else "score"
    trained = {name for name, part in model.named_parameters() if part.requires_grad}
    assert f"{head}.modules_to_save.default.weight" in trained
    assert all("lora_" in name or ".modules_to_save." in name for name in trained)
    weights = disturbed(model)
    assert set(weights) == trained, "frozen weights are in no checkpoint"

    made.save_model(config, model, dict(weights), tmp_path / "out" / "model")
    ids = torch.arange(9)[None]
    want = model.eval()(ids, torch.ones_like(ids))
    outputs = 1 if task == "text_regression" else 3
    from peft import AutoPeftModelForSequenceClassification  # not by every worker that collects tests

    by_peft = AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "out" / "model", num_labels=outputs)
    torch.testing.assert_close(by_peft.eval()(ids).logits, want, rtol=0, atol=1e-6)
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "merged")
    torch.testing.assert_close(merged(ids).logits, want, rtol=0, atol=1e-5)
    assert merged.num_labels == outputs
    if task != "text_regression":
        assert merged.config.label2id == {"a": 0, "b": 1, "c": 2}
        assert list(merged.config.id2label.values()) == ["a", "b", "c"]
    assert len(made.sample(config, tmp_path / "out" / "model").splitlines()) >= 5


def test_weights_that_the_model_lacks_are_not_frozen_as_they_happen_to_be(tmp_path: Path) -> None:
    """A BERT from masked language modeling has no pooler, which a classifier reads through."""
    name = published(tmp_path / "model", "bert")
    config = transformers.AutoConfig.from_pretrained(name)
    (tmp_path / "model" / "model.safetensors").unlink()
    transformers.BertForMaskedLM(config).save_pretrained(name)
    data = rows(tmp_path / "rows.jsonl", lambda i: "abc"[i % 3])
    changes = {"model__name": name, "data__train": data, "data__eval": None}
    made = load(tmp_path / "code", "text_classification", **ADAPTED, **changes)
    with pytest.raises(SystemExit, match=r"it has no bert\.pooler\.dense\.bias, .* stay random"):
        made.build_model(made.TaskConfig())
    model = made.build_model(made.TaskConfig(modules_to_save="pooler"))
    assert sum("pooler.modules_to_save" in name for name, p in model.named_parameters() if p.requires_grad) == 2


def test_an_adapter_too_ends_its_answers_as_the_template_of_the_plan_does(tmp_path: Path) -> None:
    name = published(tmp_path / "model", "llama")
    values = {"data__chat_template": "chatml", "model__merge_adapter": True, "data__eval": None}
    made = load(tmp_path / "code", "sft", **ADAPTED, **values, model__name=name)
    config = made.TaskConfig(tokenizer_name=name)
    model = made.build_model(config)
    made.save_model(config, model, disturbed(model), tmp_path / "out" / "model")
    end = transformers.AutoTokenizer.from_pretrained(name).convert_tokens_to_ids("<|im_end|>")
    for folder in ("model", "merged"):
        assert end in transformers.GenerationConfig.from_pretrained(tmp_path / "out" / folder).eos_token_id


@pytest.mark.parametrize(
    ("kind", "tied", "whole"),
    [("llama", True, ""), ("llama", False, ALL), ("llama", True, ALL), ("gpt2", True, "wte,lm_head")],
)
def test_modules_that_are_trained_as_a_whole_are_saved_and_merged(
    kind: str, tied: bool, whole: str, tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    name = published(tmp_path / "model", kind, tie_word_embeddings=tied)
    changes = {"model__modules_to_save": whole or None, "model__merge_adapter": True, "data__packing": False}
    made = load(tmp_path / "code", "causal_lm", **ADAPTED, **changes, model__name=name)
    config = made.TaskConfig()
    model = made.build_model(config)
    weights = disturbed(model)
    assert sum(".modules_to_save." in name for name in weights) == (2 if whole else 0)
    made.save_model(config, model, dict(weights), tmp_path / "out" / "model")
    ids = torch.arange(9)[None]
    found = {
        "peft": AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out" / "model").eval(),
        "transformers": transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model"),
        "merged": transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged"),
    }
    logits = {by: loaded(ids).logits for by, loaded in found.items()}
    want = torch.tensor(0.0)
    for batch in (made.collate([torch.stack((ids[0, :-1], ids[0, 1:], torch.arange(8)))], [True])[0],):
        want = model.eval()(**batch)
    for by, seen in logits.items():
        loss = torch.nn.functional.cross_entropy(seen[0, :-1], ids[0, 1:], reduction="sum")
        torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-5, msg=by)
    # Programs that read the configuration alone must not make one of two weights.
    assert found["merged"].config.tie_word_embeddings == (tied and not whole)
    before = load_file(Path(name) / "model.safetensors")
    base = next(weight for key, weight in before.items() if key.endswith(("embed_tokens.weight", "wte.weight")))
    assert torch.equal(base, found["merged"].get_input_embeddings().weight) == (not whole)


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        ("lm_head", "its embeddings are its head, and modules_to_save names one of both"),
        ("heads", "no module of .*heads"),
    ],
)
def test_modules_that_cannot_be_trained_as_a_whole_are_named(whole: str, says: str, tmp_path: Path) -> None:
    name = published(tmp_path / "model", "llama", tie_word_embeddings=True)
    made = load(tmp_path / "code", "causal_lm", **ADAPTED, model__name=name, model__modules_to_save=whole)
    with pytest.raises(SystemExit, match=says):
        made.build_model(made.TaskConfig())


# docs/decisions/tasks.md: An adapter leaves out what is not called as a layer
@pytest.mark.parametrize(
    ("kind", "shape", "says"),
    [
        (
            "jamba",
            {"attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 4, "mamba_d_state": 4},
            f"no adapter for 5 weights: {EXPERTS}, mamba.dt_proj, mamba.out_proj, mamba.x_proj\n",
        ),
        (
            "phimoe",
            {"num_local_experts": 4},
            f"no adapter for 6 weights: {EXPERTS}, mlp.router\n",
        ),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, ""),
        (
            "deepseek_v2",
            {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
            | {"moe_intermediate_size": 16, "topk_method": "greedy", "n_group": 1},
            f"no adapter for 6 weights: {', '.join(f'{part}.{name}' for part in MLPS for name in NAMES)}\n",
        ),
    ],
)
def test_layers_out_of_an_adapters_reach_are_left_out_and_named(
    kind: str, shape: dict[str, Any], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Mamba's layers are used without being called, and some routers and experts are no plain layers."""
    adapter = load(tmp_path / "code", "causal_lm", "adapter", **ADAPTED, model__name="an/other")
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(kind, vocab_size=40, num_key_value_heads=2, **tokens, **SIZES, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    chosen = {"lora_rank": 4, "lora_alpha": 8, "lora_targets": "all-linear", "lora_dropout": 0.0}
    chosen |= {"lora_rslora": False, "lora_dora": False}
    adapter.add(model, SimpleNamespace(model_name=kind, **chosen), [])
    assert capfd.readouterr().out == says
    model(torch.arange(3, 35).view(2, 16), use_cache=False).logits.sum().backward()
    assert [name for name, part in model.named_parameters() if part.requires_grad and part.grad is None] == []


def test_layers_out_of_an_adapters_reach_are_refused_where_somebody_names_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their adapters stayed as they began; the others of the same model were trained without a word."""
    adapter = load(tmp_path / "code", "causal_lm", "adapter", **ADAPTED, model__name="an/other")

    def adapted(kind: str, targets: str, **shape: Any) -> None:
        config = transformers.AutoConfig.for_model(kind, vocab_size=40, num_key_value_heads=2, **{**SIZES, **shape})
        model = transformers.AutoModelForCausalLM.from_config(config)
        chosen = {"lora_rank": 4, "lora_alpha": 8, "lora_targets": targets, "lora_dropout": 0.0}
        adapter.add(model, SimpleNamespace(model_name=kind, lora_rslora=False, lora_dora=False, **chosen), [])

    two = {
        "layer_types": ["full_attention"] * 2,
        "intermediate_size": [48, 48],
        "activation_sparsity_pattern": [0.0] * 2,
    }
    more = {"head_dim": 8, "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
    clipped = {**two, **more, "num_hidden_layers": 2, "num_kv_shared_layers": 0}
    with pytest.raises(SystemExit, match="an adapter of correction_coefs would not be trained"):
        adapted("gemma3n_text", "q_proj,correction_coefs", **clipped)
    adapted("gemma3n_text", "q_proj,v_proj", **clipped)
    assert capfd.readouterr().out == ""
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    adapted(
        "jamba", "q_proj,out_proj", attn_layer_offset=1, attn_layer_period=2, num_experts=4, mamba_d_state=4, **tokens
    )
    assert capfd.readouterr().out == "the adapters of out_proj have no effect where Mamba's kernels are installed\n"


def test_weights_that_are_loaded_onto_the_device_are_those_that_the_host_would_hold(tmp_path: Path) -> None:
    """Without a GPU the device is the CPU; random numbers are drawn alike."""
    saved, found = published(tmp_path / "model", "llama"), []
    for device in ("cuda", "cpu"):
        changes = {**ADAPTED, "model__name": saved, "machine__device": device, "precision__mixed_precision": "bf16"}
        task = load(tmp_path / device, "causal_lm", **changes)
        torch.manual_seed(1)
        model = task.build_model(task.TaskConfig())
        assert ("device_map" in (tmp_path / device / "adapter.py").read_text()) == (device == "cuda")
        found.append({name: part.detach() for name, part in model.named_parameters()})
    onto, held = found
    assert onto.keys() == held.keys()
    assert {part.dtype for part in onto.values()} == {torch.bfloat16, torch.float32}
    assert all(onto[name].dtype == part.dtype and torch.equal(onto[name], part) for name, part in held.items())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_dora_has_the_loss_and_the_gradients_of_peft(kind: str, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    name = published(tmp_path / "model", kind)
    made = load(tmp_path / "code", "causal_lm", **ADAPTED, model__name=name, model__lora_dora=True, data__packing=False)
    config = made.TaskConfig()
    model = made.build_model(config)
    weights = disturbed(model)
    made.save_model(config, model, dict(weights), tmp_path / "out" / "model")
    ids = torch.arange(9)[None]
    batch = made.collate([torch.stack((ids[0, :-1], ids[0, 1:], torch.arange(8)))], [True])[0]
    loss = model.eval()(**batch)
    loss.backward()
    by_peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out" / "model", is_trainable=True).eval()
    theirs = torch.nn.functional.cross_entropy(by_peft(ids).logits[0, :-1], ids[0, 1:], reduction="sum")
    theirs.backward()
    torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=1e-6)
    wanted = {key.removeprefix("base_model.model."): part.grad for key, part in by_peft.named_parameters()}
    found = {key: part.grad for key, part in model.named_parameters() if part.requires_grad}
    assert len(found) == len(weights)
    assert sum("lora_magnitude_vector" in key for key in found) == len(found) // 3
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-5, atol=1e-6, msg=key)
        assert gradient.abs().sum() > 0, key


def test_dora_does_not_begin_where_it_would_divide_by_zero(tmp_path: Path) -> None:
    """Some published weights have rows of zeros; DoRA would make the first loss NaN."""
    name = published(tmp_path / "model", "llama")
    made = load(tmp_path / "code", "causal_lm", **ADAPTED, model__name=name, model__lora_dora=True)
    config = made.TaskConfig()
    model = made.build_model(config)
    assert sum("lora_magnitude_vector" in part for part in model.state_dict()) == 14
    weights = load_file(Path(name) / "model.safetensors")
    weights["model.layers.1.self_attn.o_proj.weight"][[3, 5]] = 0
    save_file(weights, Path(name) / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit, match=r"1 layers have rows of zeros \(model.layers.1.self_attn.o_proj: 2\): set"):
        made.build_model(config)
    made.build_model(replace(config, lora_targets="q_proj"))
    made.build_model(replace(config, lora_dora=False))


@pytest.mark.train
@pytest.mark.parametrize("task", ["causal_lm", "text_classification"])
def test_an_adapter_learns_alike_on_two_ranks_and_goes_on_bit_for_bit(task: str, tmp_path: Path) -> None:
    decoder = task == "causal_lm"
    values = {key.replace("__", "."): value for key, value in ADAPTED.items()} | {
        "task": task,
        "model.name": published(tmp_path / "model", "llama" if decoder else "bert"),
        **({"model.modules_to_save": ALL} if decoder else {}),
        "model.merge_adapter": True,
        "data.train": rows(tmp_path / "rows.jsonl", lambda i: "abc"[i % 3]),
        "optimizer.learning_rate": 1e-2,
        "batch.real_batch_size": 16,
        "batch.per_device_batch_size": 4,
        "batch.gradient_accumulation_steps": 2,
        "batch.sequence_length": 32,
        "schedule.n_steps": 4,
        "schedule.n_warmup_steps": 0,
        "checkpoint.checkpointing_steps": 2,
    }
    folder = make(tmp_path / "project", {**SMALL, **values, "strategy.kind": "ddp", "machine.num_processes": 2})
    one = {"num_processes": 1, "per_device_batch_size": 16, "gradient_accumulation_steps": 1}
    assert spawn(folder, 1, tmp_path / "one", one) == 0
    assert spawn(folder, 2, tmp_path / "two", {}) == 0
    for mine, theirs in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4), (field, mine["update"])
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "checkpoint-00000004")
    shutil.rmtree(tmp_path / "again" / "model")
    shutil.rmtree(tmp_path / "again" / "merged")
    assert spawn(folder, 2, tmp_path / "again", {"resume": "auto"}) == 0
    assert adapter_hash(tmp_path / "again") == adapter_hash(tmp_path / "two")
    shutil.copytree(tmp_path / "two" / "checkpoints", folder / "output" / "checkpoints")
    export(folder, tmp_path / "two", tmp_path / "exported")
