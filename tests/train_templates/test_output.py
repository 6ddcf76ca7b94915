"""The folder of a trained model: other programs load it, in the type it was read in, with tokenizer and settings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import BASE
from safetensors.torch import load_file
from test_sft import CHATML, TALK, instructed
from test_tasks import draw, load
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForSequenceClassification, pipeline

from trainwiz import plan as plans
from trainwiz.probe.project import project

pytestmark = pytest.mark.filterwarnings("default")

NAMED = {"model__from_scratch": False, "batch__sequence_length": 64}


def published(folder: Path, template: str | None = CHATML, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A model as one downloads it: half precision, a tokenizer, settings for generation."""
    instructed(folder, template)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config.update(temperature=0.6, do_sample=True, top_p=0.9, max_new_tokens=4)
    model.save_pretrained(folder)
    return folder


def trained(folder: Path, task_name: str, **changes: Any) -> tuple[Any, Any, Any]:
    """The generated task, its config, and the model that it builds, with other weights than it was loaded with."""
    task = load(folder, task_name, **changes)
    config = task.TaskConfig()
    model = task.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 if parameter.requires_grad else 0)
    return task, config, model


def types(folder: Path) -> set[torch.dtype]:
    return {weight.dtype for file in folder.glob("*.safetensors") for weight in load_file(file).values()}


# docs/decisions/tasks.md: A trained model is saved as it was loaded, by one file
@pytest.mark.parametrize("template", [CHATML, None], ids=["its own template", "ours"])
def test_a_chat_model_is_saved_with_all_that_it_was_loaded_with(template: str | None, tmp_path: Path) -> None:
    source = published(tmp_path / "model", template)
    task, config, model = trained(tmp_path, "sft", model__name=str(source), **NAMED)
    folder = tmp_path / "out" / "model"
    task.save_model(config, model, dict(model.state_dict()), folder)
    assert types(folder) == {torch.bfloat16}
    before, after = (json.loads((place / "config.json").read_text()) for place in (source, folder))
    assert after == before
    assert (before["dtype"], before["use_cache"]) == ("bfloat16", True)
    settings = "generation_config.json"
    assert json.loads((folder / settings).read_text()) == json.loads((source / settings).read_text())

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == (template or task.chat.PLAIN_TEMPLATE)
    ids = tokenizer.apply_chat_template(TALK[1:2], add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == task.chat.Chat(config).prompt(TALK[1]["content"])
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    assert loaded.generate(torch.tensor([ids])).shape[1] > len(ids)
    (said,) = pipeline("text-generation", model=str(folder))(TALK[:2])
    assert said["generated_text"][-1]["role"] == "assistant"
    again = project(plans.with_changes(BASE, {"task": "sft", "model.name": str(folder)}), str(tmp_path)).model
    assert again
    assert again.has_tokenizer


@pytest.mark.parametrize(
    ("said", "held", "wanted", "saved"),
    [
        ("bfloat16", torch.bfloat16, "source", torch.bfloat16),
        (None, torch.float16, "source", torch.float16),  # an older model, whose configuration says nothing
        (None, torch.float32, "source", torch.float32),
        ("bfloat16", torch.bfloat16, "float32", torch.float32),
        ("float32", torch.float32, "float16", torch.float16),
    ],
)
def test_weights_are_saved_in_the_type_that_is_wanted(
    said: str | None, held: torch.dtype, wanted: str, saved: torch.dtype, tmp_path: Path
) -> None:
    source = published(tmp_path / "model", dtype=held)
    shape = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**shape, "dtype": said}))
    changes = {**NAMED, "model__name": str(source), "model__output_dtype": wanted}
    task, config, model = trained(tmp_path, "causal_lm", **changes)
    assert model.dtype == torch.float32
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    task.save_model(config, model, dict(weights), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == str(saved).removeprefix("torch.")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert {name: value.dtype for name, value in loaded.items()} == dict.fromkeys(weights, saved)
    assert all(torch.equal(loaded[name], weight.to(saved)) for name, weight in weights.items())


def test_weights_that_a_model_keeps_in_fp32_stay_so(tmp_path: Path) -> None:
    task, config, model = trained(tmp_path, "causal_lm", model__output_dtype="bfloat16")
    model._keep_in_fp32_modules_strict = {"norm"}
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "out")
    kinds = {name: weight.dtype for name, weight in load_file(tmp_path / "out" / "model.safetensors").items()}
    assert kinds.pop("model.norm.weight") == torch.float32
    assert set(kinds.values()) == {torch.bfloat16}


def test_an_adapter_and_its_merged_model_are_saved_with_the_tokenizer(tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    source = published(tmp_path / "base", None)
    adapter = {"model__adapter": "lora", "model__merge_adapter": True, "model__lora_rank": 2}
    task, config, model = trained(tmp_path / "code", "sft", model__name=str(source), **adapter, **NAMED)
    folder, merged = tmp_path / "out" / "model", tmp_path / "out" / "merged"
    task.save_model(config, model, dict(model.state_dict()), folder)
    assert (types(folder), types(merged)) == ({torch.float32}, {torch.bfloat16})
    for place in (folder, merged):
        assert AutoTokenizer.from_pretrained(place).chat_template == task.chat.PLAIN_TEMPLATE
        assert (place / "generation_config.json").is_file()
        # Without being told, `pipeline` takes the tokenizer of an adapter's base model.
        (said,) = pipeline("text-generation", model=str(place), tokenizer=str(place))(TALK[:2])
        assert said["generated_text"][-1]["role"] == "assistant"
    assert json.loads((merged / "config.json").read_text())["use_cache"] is True
    ids = torch.arange(20)[None]
    by_peft = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="float32").eval()(ids).logits
    by_itself = AutoModelForCausalLM.from_pretrained(merged, dtype="float32")(ids).logits
    assert torch.allclose(by_peft, by_itself, atol=0.05)
    model.forward = type(model).forward.__get__(model)
    assert torch.allclose(by_peft, model.eval()(ids).logits, atol=1e-5)


def test_bytes_are_saved_as_a_tokenizer_that_does_the_same(tmp_path: Path) -> None:
    texts = ["plain", "spaces  and\nlines", "中文 é\x00\x7f", "".join(map(chr, range(1, 600)))]
    task, config, model = trained(tmp_path, "causal_lm")
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        (ours,) = task.Tokens(config).encode([text])
        assert [*tokenizer(text)["input_ids"], tokenizer.eos_token_id] == ours
        assert tokenizer.decode(ours, skip_special_tokens=True) == text
    (said,) = pipeline("text-generation", model=str(tmp_path / "out"))("The ", max_new_tokens=4)
    assert said["generated_text"].startswith("The ")

    task, config, model = trained(tmp_path, "sft")
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "chat")
    talk = task.chat.Conversation(TALK, [message["role"] == "assistant" for message in TALK])
    (ours,) = task.chat.Chat(config).encode(talk)
    rendered = tokenizer.apply_chat_template(TALK, return_dict=True)["input_ids"]
    assert rendered == [token if token >= 0 else ~token for token in ours]
    asked = tokenizer.apply_chat_template(TALK[1:2], add_generation_prompt=True, return_dict=True)["input_ids"]
    assert asked == task.chat.Chat(config).prompt(TALK[1]["content"])


def test_a_classifier_is_saved_with_its_labels_and_pads_a_batch(tmp_path: Path) -> None:
    source = instructed(tmp_path / "model", None)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    vocabulary = len(AutoTokenizer.from_pretrained(source))
    BertForSequenceClassification(BertConfig(vocab_size=vocabulary, **shape)).half().save_pretrained(source)
    rows = [{"text": f"number {i}" * i, "label": ("even", "odd")[i % 2]} for i in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    changes = {**NAMED, "model__name": str(source), "data__train": str(tmp_path / "rows.jsonl")}
    task, config, model = trained(tmp_path, "text_classification", **changes)
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "out")
    assert types(tmp_path / "out") == {torch.float16}
    classify = pipeline("text-classification", model=str(tmp_path / "out"), dtype=torch.float32, batch_size=2)
    assert {said["label"] for said in classify(["number 1", "number 2, which is longer"])} <= {"even", "odd"}


def test_a_network_for_pictures_is_saved_with_its_classes(tmp_path: Path) -> None:
    pets = draw(tmp_path / "pets", {"cat": 2, "dog": 2})
    task, config, model = trained(tmp_path, "image_classification", data__train=str(pets))
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "out")
    shape = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (shape.pop("class_names"), shape["image_size"]) == (["cat", "dog"], config.image_size)
    rebuilt = task.network.ResNet(task.TaskConfig(**shape), 2)
    rebuilt.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gemma3_text", "llama"])
def test_a_folder_without_a_tokenizer_is_refused_before_and_by_the_task(kind: str, tmp_path: Path) -> None:
    """transformers gives an empty tokenizer to some of them, and fails on the others."""
    source = published(tmp_path / "model")
    for file in (*source.glob("tokenizer*"), *source.glob("*.jinja")):
        file.unlink()
    shape = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**shape, "model_type": kind}))
    changes = {"task": "sft", "model.name": str(source), "model.from_scratch": False}
    facts = project(plans.with_changes(BASE, changes), str(tmp_path)).model
    assert facts
    assert (facts.kind, facts.has_tokenizer) == ("folder", False)
    task = load(tmp_path, "sft", model__name=str(source), **NAMED)
    with pytest.raises(SystemExit, match=f"{source}: (no tokenizer|cannot load its tokenizer)"):
        task.chat.Chat(task.TaskConfig())


def test_what_is_loaded_of_the_source_survives_its_end(tmp_path: Path) -> None:
    """A saved folder is a source as good as the first: what is trained from it is saved alike."""
    source = published(tmp_path / "model", None)
    for name in ("first", "second"):
        task, config, model = trained(tmp_path / "code", "sft", model__name=str(source), **NAMED)
        task.save_model(config, model, dict(model.state_dict()), tmp_path / name)
        source = tmp_path / name
        shutil.rmtree(tmp_path / "code")
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "second").iterdir())
    for name in files:
        if name != "model.safetensors":
            assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
