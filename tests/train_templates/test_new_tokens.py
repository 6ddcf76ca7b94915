"""Tokens that the plan adds: the rows that models get for them, and that these are learned and saved with the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from test_adapters import ADAPTED, disturbed, published
from test_sft import TALK
from test_tasks import load
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from trainwiz.probe.inside import answer_prompts

pytestmark = pytest.mark.filterwarnings("default")

TOKENS = {"data__special_tokens": "<|turn|>,eos_token=<|stop|>", "data__added_tokens": "<tool_call>"}
NEW = ["<|turn|>", "<|stop|>", "<tool_call>"]
OWN = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def enlarged(folder: Path, task: str, kind: str, tied: bool, **changes: Any) -> tuple[Any, Any, str]:
    """The generated task for a tiny pretrained model, its config, and the folder of that model."""
    name = published(folder / "base", kind, tie_word_embeddings=tied)
    own = folder / "own.jinja"
    own.write_text(OWN)
    (folder / "talks.jsonl").write_text(json.dumps({"messages": TALK}) + "\n")
    chats = {"data__chat_template": str(own)} if task == "sft" else {}
    changes = {"model__name": name, "data__train": str(folder / "talks.jsonl"), "data__eval": None, **chats, **changes}
    made = load(folder / "code", task, **{"model__from_scratch": False, **TOKENS, **changes})
    return made, made.TaskConfig(cache_dir=str(folder / "cache")), name


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("gpt2", True), ("phi", False)])
def test_new_rows_are_near_the_mean_and_the_model_is_usable(kind: str, tied: bool, tmp_path: Path) -> None:
    made, config, name = enlarged(tmp_path, "sft", kind, tied, data__packing=False)
    before, known = AutoModelForCausalLM.from_pretrained(name), len(AutoTokenizer.from_pretrained(name))
    model = made.build_model(config)
    ends = [(m.get_input_embeddings().weight, m.get_output_embeddings().weight) for m in (before, model)]
    assert (ends[1][0] is ends[1][1]) == tied
    for old, new in zip(*ends, strict=True):
        assert torch.equal(new[:known], old)
        assert len(new) == known + 3 == model.config.vocab_size
        far = (new[known:] - old.mean(0)).abs().max()
        assert 0 < far < 0.5 * (old - old.mean(0)).abs().max()
        assert len(new[known:].unique(dim=0)) == 3
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), made.build_model(config).parameters(), strict=True)
    )
    data = made.load_train_data(config)
    loss = made.loss_sum(model, made.collate([data[0]], [True])[0])
    loss.backward()
    inputs, outputs = (end.weight.grad for end in (model.get_input_embeddings(), model.get_output_embeddings()))
    turn, stop, _ = made.chat.Chat(config).tokenizer.convert_tokens_to_ids(NEW)
    assert inputs[turn].abs().max() > 0
    assert outputs[stop].abs().max() > 0

    made.save_model(config, model, disturbed(model), tmp_path / "out" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    assert (tokenizer.eos_token, len(tokenizer)) == ("<|stop|>", known + 3)
    assert tokenizer.convert_tokens_to_ids(NEW) == made.chat.Chat(config).tokenizer.convert_tokens_to_ids(NEW)
    assert (
        tokenizer.decode(tokenizer("<|turn|>a<tool_call>b")["input_ids"], skip_special_tokens=True) == "a<tool_call>b"
    )
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    ids = torch.tensor([data[0][0].tolist()])
    hidden = model.eval().base_model(ids)[0]
    torch.testing.assert_close(loaded(ids).logits, model.get_output_embeddings()(hidden))
    assert tokenizer.eos_token_id in loaded.generation_config.eos_token_id
    (said,) = pipeline("text-generation", model=str(tmp_path / "out" / "model"), max_new_tokens=3)(TALK[:2])
    assert said["generated_text"][-1]["role"] == "assistant"


def test_rows_that_a_model_has_to_spare_are_taken_and_set(tmp_path: Path) -> None:
    """Qwen's embeddings have more rows than its tokenizer has tokens; what they hold was never learned."""
    name = published(tmp_path / "base", "llama")
    base = AutoModelForCausalLM.from_pretrained(name)
    known = len(AutoTokenizer.from_pretrained(name))
    base.resize_token_embeddings(known + 64, mean_resizing=False)
    base.get_input_embeddings().weight.data[known:] = 1e3
    base.save_pretrained(name)
    changes = {"model__name": name, "model__from_scratch": False}
    made = load(tmp_path / "code", "causal_lm", data__added_tokens="<a>,user", **changes)
    weight = made.build_model(made.TaskConfig()).get_input_embeddings().weight
    assert len(weight) == known + 64
    assert weight[known].abs().max() < 1
    assert weight[known + 2].min() == 1e3
    # One token's row is the same beside others.
    alone = load(tmp_path / "alone", "causal_lm", data__added_tokens="user", **changes)
    assert torch.equal(alone.build_model(alone.TaskConfig()).get_input_embeddings().weight[known], weight[known + 1])


@pytest.mark.parametrize(
    ("kind", "tied", "whole"), [("llama", False, "embed_tokens,lm_head"), ("gpt2", True, "wte,lm_head")]
)
def test_an_adapter_learns_new_tokens_or_is_refused(kind: str, tied: bool, whole: str, tmp_path: Path) -> None:
    made, config, _ = enlarged(tmp_path, "sft", kind, tied, **ADAPTED, model__merge_adapter=True, data__packing=False)
    with pytest.raises(SystemExit, match=f"{NEW[2]}.* would not be learned.* set modules_to_save to {whole}"):
        made.build_model(config)
    config.modules_to_save = whole
    model = made.build_model(config)
    weights = disturbed(model)
    made.save_model(config, model, dict(weights), tmp_path / "out" / "model")
    assert len(made.sample(config, tmp_path / "out" / "model").splitlines()) >= 1
    embeddings = answer_prompts.loaded(tmp_path / "out" / "model", "cpu").get_input_embeddings()
    assert embeddings.weight.shape[0] == model.config.vocab_size
    ids = torch.arange(model.config.vocab_size)[None, -20:]
    want = model.eval()(ids[:, :-1], ids[0, 1:])
    for loaded in (
        AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out" / "model").eval(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged"),
    ):
        loss = torch.nn.functional.cross_entropy(loaded(ids).logits[0, :-1], ids[0, 1:], reduction="sum")
        torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-5)


def test_an_encoder_gets_rows_too(tmp_path: Path) -> None:
    name = published(tmp_path / "base", "bert")
    (data := tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"[E]{i}", "label": i % 2}) + "\n" for i in range(9))
    )
    changes = {"model__name": name, "model__from_scratch": False, "data__train": str(data), "data__eval": None}
    made = load(tmp_path / "code", "text_classification", data__special_tokens="[E]", **changes)
    config = made.TaskConfig()
    model = made.build_model(config)
    known = len(AutoTokenizer.from_pretrained(name))
    assert made.load_train_data(config).ids[0][0] == known
    made.save_model(config, model, disturbed(model), tmp_path / "out")
    assert (
        len(AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").get_input_embeddings().weight)
        == known + 1
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("[E]")["input_ids"] == [known]


def test_other_tokens_are_other_rows_of_the_cache(tmp_path: Path) -> None:
    made, config, _ = enlarged(tmp_path, "sft", "llama", False)
    key = made.chat.recipe(config, config.train_data, "train").key([])
    config.added_tokens = "brief"
    assert made.chat.recipe(config, config.train_data, "train").key([]) != key
    assert "<tool_call>" not in made.chat.Chat(config).tokenizer.get_vocab()


def test_a_first_token_that_the_tokenizer_writes_itself_keeps_its_name(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    name = published(tmp_path / "base", "llama")
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.bos_token = "<|begin|>"
    number = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", number)]
    )
    tokenizer.save_pretrained(name)
    made = load(
        tmp_path / "code",
        "causal_lm",
        model__name=name,
        data__special_tokens="bos_token=<s>",
        model__from_scratch=False,
    )
    with pytest.raises(SystemExit, match=r"bos_token cannot be <s>: its tokenizer puts <\|begin\|> before each text"):
        made.build_model(made.TaskConfig())
