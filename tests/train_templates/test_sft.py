"""Fine-tuning on conversations: what is learned of them, by many templates; adapters, their checkpoints and weights."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from plans import BASE
from projects import SMALL, launch, make, metrics, trainwiz
from safetensors.torch import load_file
from test_tasks import load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from warm import spawn

from trainwiz import plan as plans
from trainwiz.probe.inside import answer_prompts
from trainwiz.probe.project import project

pytestmark = pytest.mark.filterwarnings("default")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = "<|im_start|>assistant\n"
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|start_header|>{{ m['role'] }}<|end_header|>\n\n{{ m['content'] | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}"
)
# No prompt for an answer, and what the system says goes into the last question: earlier turns read otherwise later on.
MISTRAL = (
    "<|begin|>{% set system = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
    "{{ (system if loop.last or (loop.revindex == 2 and messages[-1]['role'] == 'assistant') else '') + m['content'] }}"
    " [/INST]{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] }}<|eot|>{% endif %}{% endfor %}"
)
# What an answer thinks is shown only in the last one, as reasoning models have it.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' }}"
    "{{ m['content'].split('</think>')[-1] if not loop.last else m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|eot|>",
    "<|start_header|>",
    "<|end_header|>",
    "[INST]",
    "[/INST]",
)

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "second"},
]


def instructed(folder: Path, template: str | None, **sizes: int) -> Path:
    """A Llama of random weights with a tokenizer of bytes and this chat template, as one that a person might name."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "<|end|>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    if template:
        fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, **sizes}
    config = LlamaConfig(
        vocab_size=len(fast), **shape, max_position_embeddings=512, bos_token_id=None, eos_token_id=256
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def chat(folder: Path, template: str | None) -> Any:
    """The generated task's Chat, with a tokenizer of this template."""
    name = str(instructed(folder / "model", template))
    task = load(folder, "sft", model__name=name, model__from_scratch=False)
    return task.chat.Chat(task.TaskConfig())


def test_a_project_for_own_data_has_no_other_in_it(tmp_path: Path) -> None:
    """Its sample answers a question of that data."""
    rows = [{"messages": [{"role": "system", "content": "be brief"}, *TALK[1:]]}, {"messages": TALK[1:3]}]
    (data := tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load(tmp_path, "sft", data__train=str(data), data__eval="5%")
    text = "".join((tmp_path / f"{name}.py").read_text() for name in ("task", "chat", "conversations"))
    assert "embedded" not in text
    assert "str.split" not in text
    assert task.chat.first_question(task.TaskConfig()) == "one?"
    assert (
        load(tmp_path / "other", "sft").chat.first_question(task.TaskConfig(train_data="embedded")).startswith("What")
    )


def encode(talker: Any, messages: list[dict[str, Any]]) -> list[list[int]]:
    """The samples of a conversation."""
    return talker.encode(sys.modules["conversations"].conversation_of({"messages": messages}))  # type: ignore[no-any-return]


def conversations(task: Any, path: Path) -> list[Any]:
    """The conversations of a file or folder, as the generated task reads them."""
    return list(map(task.chat.conversations.read, sys.modules["sources"].Sources(str(path), "train")))


def learned(talker: Any, tokens: list[int]) -> Iterator[str]:
    """The stretches of a sample that are learned, as text."""
    stretch: list[int] = []
    for token in [*tokens, -1]:
        if token >= 0:
            stretch.append(token)
        elif stretch:
            yield talker.tokenizer.decode(stretch)
            stretch = []


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (CHATML, ["first<|im_end|>\n", "second<|im_end|>\n"]),
        (MARKED, ["first<|im_end|>", "second<|im_end|>"]),
        (LLAMA3, ["first<|eot|>", "second<|eot|>"]),
        (None, ["first<|end|>\n", "second<|end|>\n"]),
    ],
    ids=["chatml", "marked", "llama3", "plain"],
)
def test_only_what_the_assistant_says_is_learned(template: str | None, answers: list[str], tmp_path: Path) -> None:
    talker = chat(tmp_path, template)
    (tokens,) = encode(talker, TALK)
    assert list(learned(talker, tokens)) == answers
    rendered = talker.tokenizer.apply_chat_template(TALK, tokenize=False)
    assert talker.tokenizer.decode([t if t >= 0 else ~t for t in tokens]) == rendered


# docs/decisions/tasks.md: Learned tokens are found by comparing rendered prompts
@pytest.mark.parametrize("template", [MISTRAL, THINKING], ids=["mistral", "thinking"])
def test_answers_that_read_otherwise_later_on_are_samples_of_their_own(template: str, tmp_path: Path) -> None:
    """Each is learned behind exactly the prompt that it would be given."""
    talker = chat(tmp_path, template)
    talk = [dict(m, content=f"<think>hm</think>{m['content']}") if m["role"] == "assistant" else m for m in TALK]
    samples = encode(talker, talk)
    assert len(samples) == 2
    for tokens, turn in zip(samples, (2, 4), strict=True):
        (text,) = learned(talker, tokens)
        assert text.strip().startswith(talk[turn]["content"])
        prompt = [~t for t in tokens if t < 0]
        asked = talker.tokenizer.apply_chat_template(talk[:turn], add_generation_prompt=True, return_dict=True)
        assert prompt == asked["input_ids"]


def test_answers_follow_an_empty_thought_that_only_their_prompt_has(tmp_path: Path) -> None:
    """As Gemma 4 prompts without thinking: each answer is learned behind what it is given, not refused."""
    talker = chat(
        tmp_path, CHATML.replace("<|im_start|>assistant\n{% endif %}", f"{ASKED}[INST]thought[/INST]{{% endif %}}")
    )
    samples = encode(talker, TALK)
    assert [list(learned(talker, tokens)) for tokens in samples] == [["first<|im_end|>\n"], ["second<|im_end|>\n"]]
    for tokens, turn in zip(samples, (2, 4), strict=True):
        asked = talker.tokenizer.apply_chat_template(TALK[:turn], add_generation_prompt=True, return_dict=True)
        assert [~token for token in tokens if token < 0] == asked["input_ids"]
    with pytest.raises(ValueError, match="but no answer begins with it"):  # what it thinks would be lost
        encode(talker, [TALK[1], {**TALK[2], "reasoning_content": "one is the first"}])


@pytest.mark.parametrize("end", ["[INST]thought\n", "[INST]", "\n"], ids=["open", "bare", "line"])
def test_an_answer_does_not_go_into_an_open_thought(end: str, tmp_path: Path) -> None:
    talker = chat(tmp_path, CHATML.replace("<|im_start|>assistant\n{% endif %}", f"{ASKED}{end}{{% endif %}}"))
    with pytest.raises(ValueError, match="but no answer begins with it"):
        encode(talker, TALK)


def test_a_template_that_prompts_for_other_answers_than_it_renders_is_refused(tmp_path: Path) -> None:
    """Another thing would be learned than is asked for."""
    talker = chat(tmp_path, CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>bot\n{% endif %}"))
    with pytest.raises(ValueError, match=r"prompts for an answer with 'bot\\n', but no answer begins with it"):
        encode(talker, TALK)


def test_bytes_need_no_template(tmp_path: Path) -> None:
    task = load(tmp_path, "sft")
    talker = task.chat.Chat(task.TaskConfig())
    (tokens,) = encode(talker, TALK)
    said = bytes(t for t in tokens if 0 <= t < 256)
    assert said == b"firstsecond"
    assert tokens.count(256) == 2
    prompt = talker.prompt("one?")
    assert prompt == [t if t >= 0 else ~t for t in encode(talker, TALK[1:3])[0]][: len(prompt)]
    with pytest.raises(ValueError, match="cannot represent tools"):
        encode(talker, [TALK[1], CALL])


CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}


@pytest.mark.parametrize("form", ["messages.jsonl", "sharegpt.jsonl", "alpaca.jsonl", "alpaca.json", "folder"])
def test_conversations_of_every_form(form: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [TALK[1], {"role": "assistant", "content": [{"type": "text", "text": "first"}]}]},
        {"conversations": [{"from": "human", "value": "one?"}, {"from": "gpt", "value": "first"}]},
        {"instruction": "one?", "input": "", "output": "first"},
        {"instruction": "one?", "input": "here", "output": "first"},
    ]
    chosen = {"messages.jsonl": rows[:1], "sharegpt.jsonl": rows[1:2]}.get(form, rows[2:])
    path = tmp_path / form
    if form == "folder":
        path.mkdir()
        (path / "a.jsonl").write_text(json.dumps(rows[2]))
        (path / "b.json").write_text(json.dumps(rows[3:]))
    else:
        text = json.dumps(chosen) if path.suffix == ".json" else "\n\n".join(map(json.dumps, chosen))
        path.write_text(text + "\n\n")
    found = conversations(load(tmp_path, "sft"), path)
    assert found[0].messages == TALK[1:3]
    if len(found) > 1:
        assert found[1].messages[0]["content"] == "one?\nhere"
    changes = {"task": "sft", "data.train": str(path)}
    facts = project(plans.with_changes(BASE, changes), str(tmp_path)).train
    assert facts
    assert (facts.kind, facts.detail) == ("folder" if form == "folder" else "file", "")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"text": "only"}\n', "neither messages nor a question with an answer"),
        ("a.jsonl", "plain\n", "line 1 is not a JSON object"),
        ("a.json", '[{"question": "x"}]', "neither messages nor a question with an answer"),
        ("a.json", "[{", "is not valid JSON"),
    ],
)
def test_what_is_no_conversation_is_named_before_and_in_the_task(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    facts = project(plans.with_changes(BASE, {"task": "sft", "data.train": name}), str(tmp_path)).train
    assert facts
    assert says in facts.detail
    with pytest.raises(SystemExit, match=rf"{name}(:1|: item 1)?: (this conversation cannot be used|not a list)"):
        conversations(load(tmp_path, "sft"), tmp_path / name)


USER, SAID = {"role": "user", "content": "one?"}, {"role": "assistant", "content": "first"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "the assistant says nothing"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, "the assistant says 4, which is not text"),
        (
            {"messages": [USER, {"role": "bard", "content": "x"}]},
            "the role 'bard' is unknown; known roles: user, human",
        ),
        ({"messages": [{"content": "x"}]}, "a message without a role"),
        ({"messages": []}, "it has no messages"),
        ({"messages": "hello"}, "not JSON: 'hello'"),
        ({"messages": [USER, {**SAID, "weight": 0.5}]}, "weight is 0.5; a message can be learned (1) or not (0)"),
        ({"messages": [{**USER, "train": True}, SAID]}, "only the assistant's can be learned"),
        ({"messages": [USER, {**SAID, "train_detail": []}]}, "train_detail: a part of a message cannot be learned"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "a", "train": False}]}]},
            "a part of a message cannot be learned",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}]}, "the user shows image,"),
        ({"messages": [USER, SAID], "images": ["a.png"]}, "it has images, and this model reads text only"),
        ({"messages": [USER, {**CALL, "tool_calls": [{"type": "function"}]}]}, "not a call of a tool"),
        (
            {"messages": [USER, {**CALL, "tool_calls": [{"name": "add", "arguments": "[1]"}]}]},
            "the arguments of add are not an object: [1]",
        ),
        ({"messages": [USER, {**CALL, "tool_calls": [{"name": "add", "arguments": "{"}]}]}, "not JSON: '{'"),
        ({"messages": [{**CALL, "role": "user"}]}, "the user calls a tool"),
        ({"messages": [USER, SAID], "tools": "none"}, "not JSON: 'none'"),
        ({"messages": [USER, SAID], "tools": {"name": "add"}}, "tools is not a list of JSON objects"),
        ({"messages": [USER, SAID], "tools": [], "functions": []}, "tools and functions, which mean the same"),
        ({"messages": [{"role": "system", "content": "a"}, USER, SAID], "system": "b"}, "another system message"),
        ({"conversations": [{"from": "function_call", "value": "add(1)"}]}, "not JSON: 'add(1)'"),
        ({"instruction": "one?", "output": None}, "neither messages nor a question with an answer; it has instruction"),
        ({"instruction": "one?", "output": 4}, "the assistant says 4, which is not text"),
        ({"instruction": "a", "output": "b", "history": ["a", "b"]}, "history is not a list of pairs"),
        ({"problem": "a", "solution": "b", "answer": "c"}, "answer and solution, which mean the same"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "a preference (chosen, rejected)"),
        ({"prompt": "a", "completion": "b", "label": False}, "label marks its answer as a bad one"),
        ({"prompt": "a", "completion": "b", "label": "False"}, "label marks its answer as a bad one"),
        ({"question": "a", "A": "1", "B": "2", "answer": "B"}, "its answer 'B' names a column, which is not read"),
        ({"text": "a"}, "neither messages nor a question with an answer; it has text"),
        ([1], "not a JSON object: [1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_named_with_its_place(row: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'messages': TALK})}\n\n{json.dumps(row)}\n")
    with pytest.raises(SystemExit, match=rf"a\.jsonl:3: .*{re.escape(says)}"):
        conversations(load(tmp_path, "sft"), tmp_path / "a.jsonl")


def test_what_is_not_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [USER, SAID], "id": 1, "source": ""},
        {"messages": [{**USER, "time": 3}, SAID], "id": 2, "score": 0.5},
        {"messages": [USER, {**SAID, "content": ""}]},
        {"messages": [USER]},
        {"messages": [USER, {**SAID, "weight": 0}]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load(tmp_path, "sft")
    config = task.TaskConfig(
        train_data=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "cache"), sequence_length=99
    )
    assert len(task.load_train_data(config).starts) == 2
    told = capsys.readouterr().out
    for line in (
        "ignored column: id (2, the first: {}:1)",
        "ignored column: score (1, the first: {}:2)",
        "field of messages that the chat template does not read: time (1, the first: {}:2)",
        "empty answers, which are not learned (1, the first: {}:3)",
        "conversations without an answer to learn (3, the first: {}:3)",
    ):
        assert line.format(tmp_path / "a.jsonl") in told
    assert "source" not in told


def test_an_answer_that_nobody_asked_for_is_not_learned(tmp_path: Path) -> None:
    """Templates refuse to render the empty talk before it."""
    talker = chat(tmp_path, CHATML)
    (tokens,) = encode(talker, TALK[2:])
    assert list(learned(talker, tokens)) == ["second<|im_end|>\n"]


def test_what_a_template_refuses_is_named(tmp_path: Path) -> None:
    picky = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    name = str(instructed(tmp_path / "model", picky + CHATML))
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in (TALK[1:], TALK)))
    task = load(tmp_path, "sft", model__name=name, model__from_scratch=False)
    recipe = task.chat.recipe(task.TaskConfig(), str(tmp_path / "a.jsonl"), "train")
    with pytest.raises(
        SystemExit, match=r"a\.jsonl:2: this conversation cannot be used with the chat template: no system here"
    ):
        recipe.encoder().encode(list(recipe.rows))


def test_what_has_no_answer_left_is_dropped_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talks = [["short?", "yes"], ["long? " * 20, "never seen"], ["cut?", "a long answer " * 20]]
    rows = [{"instruction": asked, "output": said} for asked, said in talks]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load(tmp_path, "sft", data__train=str(tmp_path / "rows.jsonl"), batch__sequence_length=64)
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    data = task.load_train_data(config)
    assert "samples: 3, 2 cut to 64 tokens, 1 dropped" in capsys.readouterr().out
    assert len(data) == 2
    assert all((row[1] != -100).any() for row in data)


def test_another_chat_template_makes_other_rows(tmp_path: Path) -> None:
    """What was tokenized by the one that the folder held before is not taken up again."""
    name = str(instructed(tmp_path / "model", CHATML))
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": TALK}))
    changes = {"model__name": name, "model__from_scratch": False, "data__train": str(tmp_path / "a.jsonl")}
    task = load(tmp_path, "sft", **changes)
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    before = task.load_train_data(config)[0]
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", "<|eot|>"))
    assert not torch.equal(task.load_train_data(config)[0], before)


@pytest.mark.usefixtures("unhurried")
def test_the_probe_counts_what_the_task_makes_of_python_s_documentation(tmp_path: Path) -> None:
    for packing in (True, False):
        changes = {"task": "sft", "data.packing": packing, "batch.sequence_length": 128}
        found = project(plans.with_changes(BASE, changes), str(tmp_path))
        task = load(tmp_path / str(packing), "sft", data__packing=packing, batch__sequence_length=128)
        config = task.TaskConfig(cache_dir=str(tmp_path / "cache" / str(packing)))
        assert found.train
        assert found.eval
        assert found.train.samples == len(task.load_train_data(config))
        assert found.eval.samples == len(task.load_eval_data(config))


TUNED = {**SMALL, "task": "sft", "model.from_scratch": False, "schedule.n_steps": 6, "batch.sequence_length": 96}
ADAPTED = {**TUNED, "model.adapter": "lora", "model.lora_rank": 4, "optimizer.learning_rate": 1e-2}


def conversations_file(folder: Path) -> Path:
    """Ragged sums: what is asked is short, what is answered longer."""
    rows = [
        {"messages": [{"role": "user", "content": f"{i} + {i}?"}, {"role": "assistant", "content": "o" * (i % 30 + 1)}]}
        for i in range(90)
    ]
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "talks.jsonl"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A model with a chat template, and conversations to tune it on."""
    folder = tmp_path_factory.mktemp("named")
    return {"model.name": str(instructed(folder / "model", CHATML)), "data.train": str(conversations_file(folder))}


def curve(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def export(folder: Path, output: Path, target: Path) -> None:
    """What `trainwiz export` writes from the last checkpoint is what the training wrote at its end."""
    done = trainwiz("export", str(folder), "--output", str(target), *warm.option())
    assert done.code == 0, done.err
    merged = target.with_name(f"{target.name}-merged")
    assert done.out.split() == [str(target), str(merged)] if merged.exists() else [str(target)]
    assert merged.exists() == (output / "merged").exists()
    written = {"model": target, "merged": merged}
    for name, exported in written.items():
        for file in (output / name).glob("*"):
            if file.name != "adapter_config.json":  # it lists modules in no order
                assert (exported / file.name).read_bytes() == file.read_bytes(), file
    configs = [json.loads((place / "adapter_config.json").read_text()) for place in (output / "model", target)]
    for config in configs:
        config["target_modules"].sort()
    assert configs[0] == configs[1]


def adapter_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "adapter_model.safetensors").read_bytes()).hexdigest()


# docs/decisions/tasks.md: Frozen weights are left out of the model's own state dict
@pytest.mark.train
def test_an_adapter_learns_alike_on_one_rank_and_two_and_goes_on_bit_for_bit(
    named: dict[str, object], tmp_path: Path
) -> None:
    folder = make(tmp_path / "project", {**ADAPTED, **named, "model.merge_adapter": True})
    one = {"num_processes": 1, "per_device_batch_size": 16, "gradient_accumulation_steps": 1}
    assert spawn(folder, 1, tmp_path / "one", one) == 0
    assert spawn(folder, 2, tmp_path / "two", {}) == 0
    for mine, theirs in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4), (field, mine["update"])
    assert curve(tmp_path / "one")[-1]["loss"] < curve(tmp_path / "one")[0]["loss"]

    checkpoints = tmp_path / "two" / "checkpoints"
    assert len(list(checkpoints.glob("checkpoint-????????"))) == 2
    whole = sum(p.stat().st_size for p in Path(str(named["model.name"])).glob("*.safetensors"))
    saved = list((checkpoints / "checkpoint-00000003").rglob("*.safetensors"))
    assert saved
    assert sum(p.stat().st_size for p in saved) < whole / 2, "the frozen model is in no checkpoint"
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "checkpoint-00000006")
    shutil.rmtree(tmp_path / "again" / "model")
    assert spawn(folder, 2, tmp_path / "again", {"resume": "auto"}) == 0
    assert adapter_hash(tmp_path / "again") == adapter_hash(tmp_path / "two")

    settings = json.loads((tmp_path / "two" / "model" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)
    names = set(load_file(tmp_path / "two" / "model" / "adapter_model.safetensors"))
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    ids = torch.arange(20)[None]
    base, adapted, merged = (
        AutoModelForCausalLM.from_pretrained(name)(ids).logits
        for name in (named["model.name"], tmp_path / "two" / "model", tmp_path / "two" / "merged")
    )
    assert torch.allclose(adapted, merged, atol=1e-5)
    assert not torch.allclose(base, merged, atol=1e-3)

    from peft import AutoPeftModelForCausalLM

    shutil.copytree(checkpoints, folder / "output" / "checkpoints")
    export(folder, tmp_path / "two", tmp_path / "exported")
    by_peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "exported")(ids).logits
    assert torch.equal(by_peft, adapted)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "exported-merged")(ids).logits, merged)
    again = trainwiz("export", str(folder), "--output", str(tmp_path / "exported"), *warm.option())
    assert (again.code, "already exists" in again.err) == (2, True)


@pytest.mark.train
def test_dropout_and_rslora_go_on_bit_for_bit(named: dict[str, object], tmp_path: Path) -> None:
    kinds = {"model.lora_dropout": 0.2, "model.lora_rslora": True, "model.merge_adapter": True}
    folder = make(tmp_path / "project", {**ADAPTED, **named, **SINGLE, **kinds})
    assert spawn(folder, 1, tmp_path / "whole", {}) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "checkpoint-00000006")
    shutil.rmtree(tmp_path / "again" / "model")
    shutil.rmtree(tmp_path / "again" / "merged")
    assert spawn(folder, 1, tmp_path / "again", {"resume": "auto"}) == 0
    assert adapter_hash(tmp_path / "again") == adapter_hash(tmp_path / "whole")
    settings = json.loads((tmp_path / "whole" / "model" / "adapter_config.json").read_text())
    assert (settings["lora_dropout"], settings["use_rslora"]) == (0.2, True)
    ids = torch.arange(20)[None]
    base, adapted, merged = (
        AutoModelForCausalLM.from_pretrained(name)(ids).logits
        for name in (named["model.name"], tmp_path / "whole" / "model", tmp_path / "whole" / "merged")
    )
    assert torch.allclose(adapted, merged, atol=1e-4)
    assert not torch.allclose(base, merged, atol=1e-3)


# docs/decisions/checkpoints.md: DeepSpeed leaves frozen weights out of checkpoints
@pytest.mark.train
@pytest.mark.parametrize("name", ["zero2", "zero3", "fsdp"])
def test_adapters_go_with_every_way_to_shard(name: str, named: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**ADAPTED, **named, **STRATEGIES[name]})
    environment = ON_STANDIN if name == "fsdp" else None
    done = warm.launch(folder, env=environment)
    assert done.code == 0, done.err
    whole = metrics(folder)
    assert whole[-1]["loss"] < whole[0]["loss"]
    latest = (folder / "runs" / "latest").resolve()
    first = adapter_hash(latest)
    export(folder, latest, tmp_path / "exported")
    if name != "fsdp":  # whose files are mostly names
        saved = sum(p.stat().st_size for p in (latest / "checkpoints" / "checkpoint-00000006" / "state").iterdir())
        whole_model = sum(p.stat().st_size for p in Path(str(named["model.name"])).glob("*.safetensors"))
        assert saved < whole_model, "the frozen model is in no checkpoint"
    shutil.rmtree(latest / "checkpoints" / "checkpoint-00000006")
    done = warm.launch(folder, "--resume", env=environment)
    assert done.code == 0, done.err
    assert [r["loss"] for r in metrics(folder)] == [r["loss"] for r in whole[3:]]
    assert adapter_hash(folder / "runs" / "latest") == first


DORA = {"model.lora_dora": True, "model.merge_adapter": True, "model.lora_rank": 2}


@pytest.fixture(scope="module")
def by_one_rank(named: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with DoRA by one rank, which took each batch as a whole."""
    folder = make(tmp_path_factory.mktemp("dora") / "project", {**ADAPTED, **named, **SINGLE, **DORA})
    one = {"per_device_batch_size": 16, "gradient_accumulation_steps": 1}
    assert spawn(folder, 1, folder / "whole", one) == 0
    return folder


# docs/decisions/tasks.md: DoRA measures the rows of sharded weights after they were read
@pytest.mark.train
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "zero2-offload"])
def test_dora_learns_alike_by_every_way_to_shard(
    name: str, named: dict[str, object], by_one_rank: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path / "project", {**ADAPTED, **named, **STRATEGIES[name], **DORA})
    environment = ON_STANDIN if name == "fsdp" else None
    done = warm.launch(folder, env=environment)
    assert done.code == 0, done.err
    whole = metrics(folder)
    for mine, theirs in zip(whole, curve(by_one_rank / "whole"), strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4), (field, mine["update"])
    latest = (folder / "runs" / "latest").resolve()
    first = adapter_hash(latest)
    export(folder, latest, tmp_path / "exported")
    shutil.rmtree(latest / "checkpoints" / "checkpoint-00000006")
    done = warm.launch(folder, "--resume", env=environment)
    assert done.code == 0, done.err
    assert [r["loss"] for r in metrics(folder)] == [r["loss"] for r in whole[3:]]
    assert adapter_hash(folder / "runs" / "latest") == first


@pytest.mark.train
def test_dora_is_what_peft_computes(named: dict[str, object], by_one_rank: Path, tmp_path: Path) -> None:
    """The saved lengths are learned, and go on bit for bit; peft and the merged model give the same answers."""
    from peft import AutoPeftModelForCausalLM

    trained = by_one_rank / "whole"
    shutil.copytree(trained, tmp_path / "again")
    for part in ("checkpoints/checkpoint-00000006", "model", "merged"):
        shutil.rmtree(tmp_path / "again" / part)
    one = {"per_device_batch_size": 16, "gradient_accumulation_steps": 1, "resume": "auto"}
    assert spawn(by_one_rank, 1, tmp_path / "again", one) == 0
    assert adapter_hash(tmp_path / "again") == adapter_hash(trained)
    assert json.loads((trained / "model" / "adapter_config.json").read_text())["use_dora"] is True
    saved = load_file(trained / "model" / "adapter_model.safetensors")
    base = load_file(Path(str(named["model.name"])) / "model.safetensors")
    lengths = {name: value for name, value in saved.items() if name.endswith("lora_magnitude_vector")}
    assert len(lengths) == len(saved) // 3 > 0
    for name, value in lengths.items():
        weight = base[name.removeprefix("base_model.model.").replace("lora_magnitude_vector", "weight")]
        assert value.shape == weight.shape[:1]
        assert not torch.equal(value, weight.norm(dim=1))
        assert torch.allclose(value, weight.norm(dim=1), atol=0.1)
    ids = torch.arange(20)[None]
    by_peft = AutoPeftModelForCausalLM.from_pretrained(trained / "model").eval()(ids).logits
    merged, before = (
        AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (trained / "merged", named["model.name"])
    )
    assert torch.allclose(by_peft, merged, atol=1e-5)
    assert torch.equal(by_peft, answer_prompts.loaded(trained / "model", "cpu")(ids).logits)
    assert not torch.allclose(before, merged, atol=1e-3)


@pytest.mark.train
def test_all_weights_are_tuned_alike_however_the_batch_is_split(named: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**TUNED, **named, "optimizer.learning_rate": 1e-3})
    curves = []
    for ranks, micro in ((1, 16), (2, 2), (2, 8)):
        split = {"num_processes": ranks, "per_device_batch_size": micro}
        split |= {"gradient_accumulation_steps": 16 // ranks // micro}
        assert spawn(folder, ranks, tmp_path / f"{ranks}-{micro}", split) == 0
        curves.append([record["loss"] for record in curve(tmp_path / f"{ranks}-{micro}")])
    assert curves[0][-1] < curves[0][0]
    for other in curves[1:]:
        assert other == pytest.approx(curves[0], rel=1e-5)


@pytest.mark.train
def test_the_defaults_train_on_this_machine_without_a_network(tmp_path: Path) -> None:
    settings = {"task": "sft", **SINGLE, "schedule.n_steps": 3, "batch.real_batch_size": 8}
    folder = make(tmp_path / "project", settings)
    done = launch(folder)
    assert done.code == 0, done.err
    assert "What is str.split?" in done.out
    assert trainwiz("check", str(folder)).code == 0


def test_texts_that_are_formatted_already_are_told(tmp_path: Path) -> None:
    """The template would format them once more."""
    task = load(tmp_path, "sft", model__name=str(instructed(tmp_path / "model", CHATML)), model__from_scratch=False)
    talker = task.chat.Chat(task.TaskConfig())
    asked = {"prompt": "<|im_start|>user\none?<|im_end|>\n", "completion": "first"}
    _, notes = task.chat.encoded(talker, [("a:1", asked), ("a:2", {**asked, "prompt": "one?"})])
    assert notes == {"messages that hold <|im_start|>, as if they were formatted already": (1, "a:1")}
