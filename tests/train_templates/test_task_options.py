"""What tasks may be told beside their usual way: what is learned of conversations, by which template, and attention."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_sft import CHATML, TALK, THINKING, instructed
from test_tasks import _forget_modules, load  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.filterwarnings("default")


def talker(folder: Path, template: str | None, **changes: Any) -> Any:
    """The generated task's Chat, with a tokenizer of this template."""
    name = str(instructed(folder / "model", template))
    task = load(folder, "sft", model__name=name, model__from_scratch=False, **changes)
    return task.chat.Chat(task.TaskConfig())


def conversation(made: Any, messages: list[dict[str, str]], learned: list[bool]) -> Any:
    return made.__init__.__globals__["Conversation"](messages, learned)


@pytest.mark.parametrize("template", [None, CHATML], ids=["plain", "chatml"])
def test_prompts_are_learned_too_where_the_plan_says_so(template: str | None, tmp_path: Path) -> None:
    made = talker(tmp_path, template, data__train_on="all")
    (ids,) = made.encode(conversation(made, TALK, [False, False, True, False, True]))
    text = made.tokenizer.apply_chat_template(TALK, tokenize=False)
    whole = made.tokenizer(text, add_special_tokens=False)["input_ids"]
    # A template that ends no text with a special token gets the end token behind it.
    assert [i for i in ids if i >= 0][: len(whole)] == whole
    assert ids[len(whole) :] in ([], [made.tokenizer.eos_token_id])


def test_an_answer_of_weight_0_is_not_learned_with_the_prompts_either(tmp_path: Path) -> None:
    made = talker(tmp_path, CHATML, data__train_on="all")
    (ids,) = made.encode(conversation(made, TALK, [False, False, False, False, True]))
    left_out = made.tokenizer.decode([~i for i in ids if i < 0])
    assert left_out == "first<|im_end|>\n"
    rest = made.tokenizer.decode([i for i in ids if i >= 0])
    assert "first" not in rest
    assert all(said in rest for said in ("be brief", "one?", "two?", "second"))


def test_a_greeting_of_weight_0_is_not_learned_with_the_prompts_either(tmp_path: Path) -> None:
    made = talker(tmp_path, CHATML, data__train_on="all")
    said = [{"role": "assistant", "content": "hello"}, *TALK[1:]]
    (ids,) = made.encode(conversation(made, said, [False, False, True, False, True]))
    assert "hello" in made.tokenizer.decode([~i for i in ids if i < 0])
    rest = made.tokenizer.decode([i for i in ids if i >= 0])
    assert "hello" not in rest
    assert all(each in rest for each in ("one?", "first", "two?", "second"))


def test_a_template_that_drops_reasoning_is_refused_where_all_is_learned(tmp_path: Path) -> None:
    made = talker(tmp_path, THINKING, data__train_on="all")
    said = [dict(message) for message in TALK]
    said[2]["content"] = "<think>hmm</think>first"
    with pytest.raises(ValueError, match="leaves out the reasoning 'hmm'"):
        made.encode(conversation(made, said, [False, False, True, False, True]))


def test_bytes_learn_prompts_too(tmp_path: Path) -> None:
    task = load(tmp_path, "sft", data__train_on="all")
    made = task.chat.Chat(task.TaskConfig())
    ((*ids,),) = made.encode(conversation(made, TALK[1:3], [False, False]))
    assert made.decode([i for i in ids if i >= 0]) == "user:\none?"
    ((*ids,),) = made.encode(conversation(made, TALK[1:3], [False, True]))
    assert made.decode(ids) == "user:\none?assistant:\nfirst"


def test_an_own_template_takes_the_place_of_the_tokenizer_s_and_is_saved(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(
        "{% for m in messages %}{{ m['role'] }}>\n{{ m['content'] }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}assistant>\n{% endif %}"
    )
    (data := tmp_path / "talks.jsonl").write_text(json.dumps({"messages": TALK}) + "\n")
    name = str(instructed(tmp_path / "model", CHATML))
    changes = {"model__name": name, "model__from_scratch": False, "data__train": str(data), "data__eval": None}
    task = load(tmp_path / "code", "sft", data__chat_template=str(own), data__packing=False, **changes)
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    ids, labels, _ = task.load_train_data(config)[0]
    made = task.chat.Chat(config)
    assert made.tokenizer.decode(ids).startswith("system>\nbe brief<|eot|>user>\none?<|eot|>assistant>\n")
    assert made.tokenizer.decode(labels[labels >= 0]) == "first<|eot|>second<|eot|>"

    model = task.build_model(config)
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.chat_template == own.read_text()
    ends = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").generation_config.eos_token_id
    assert set(saved.convert_tokens_to_ids(["<|eot|>", "<|end|>"])) == set(ends)

    # Other words in the template are other tokens.
    before = config.cache_dir, task.chat.recipe(config, str(data), "train").key([])
    own.write_text(own.read_text().replace(">", ":"))
    assert task.chat.recipe(config, str(data), "train").key([]) != before[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% for m in messages %}{{ m['content'] }}", "own.jinja: this chat template cannot be used: .*end"),
        ("{{ messages[0]['content'] }}", "leaves out the message 'second'"),
        ("{% for m in messages %}<|turn|>{{ m['content'] }}{% endfor %}", r"the tokenizer has no token <\|turn\|>"),
        (None, "own.jinja: this chat template cannot be used: .*No such file"),
    ],
    ids=["syntax", "leaves out", "tokens", "missing"],
)
def test_a_template_that_cannot_be_used_ends_the_training_at_once(text: str | None, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "own.jinja").write_text(text)
    with pytest.raises(SystemExit, match=says):
        talker(tmp_path, CHATML, data__chat_template=str(tmp_path / "own.jinja"))


def _loss(task: ModuleType, config: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model = task.build_model(config)
    data = task.load_train_data(config)
    batch, _ = task.collate([data[i] for i in range(4)], [True] * 4)
    loss = task.loss_sum(model, batch)
    loss.backward()
    return torch.cat([loss[None], *(p.grad.flatten() for p in model.parameters() if p.grad is not None)])


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "unpacked"])
def test_every_attention_computes_the_same(packing: bool, tmp_path: Path) -> None:
    found = {}
    for name in ("auto", "sdpa", "eager"):
        task = load(tmp_path / name, "causal_lm", model__attention=name, data__packing=packing)
        config = task.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=64)
        found[name] = _loss(task, config)
        if name != "auto":
            assert task.build_model(config).config._attn_implementation == name
    torch.testing.assert_close(found["auto"], found["sdpa"], rtol=0, atol=0)
    torch.testing.assert_close(found["auto"], found["eager"], rtol=1e-4, atol=1e-4)


def test_an_encoder_takes_the_attention_that_is_named(tmp_path: Path) -> None:
    for name in ("sdpa", "eager"):
        task = load(tmp_path / name, "text_classification", model__attention=name)
        assert task.build_model(task.TaskConfig()).config._attn_implementation == name
