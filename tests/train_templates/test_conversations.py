"""Every format of conversations by every kind of chat template: what is read, its tokens, and which are learned."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from test_tasks import load
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainwiz.tasks import chat_columns

CHATS = Path(__file__).parent / "chats"
SHAPES = {shape["name"]: shape for shape in yaml.safe_load((CHATS / "shapes.yaml").read_text())["shapes"]}
END = {"qwen2.5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<eos>"}
END |= {"phi3": "<|endoftext|>", "deepseek-r1": "<｜end▁of▁sentence｜>", "glm4.5": "<|endoftext|>"}
SPECIAL = """
<|im_start|> <|im_end|> <|endoftext|> <bos> <eos> <|start_header_id|> <|end_header_id|> <|eot_id|> [INST] [/INST]
[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] </s> <start_of_turn> <end_of_turn>
<|system|> <|user|> <|assistant|> <|observation|> <|end|> [gMASK] <sop> <｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜>
""".split()  # noqa: SIM905
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen and Llama 3 cut text, in short: lines together, a space before the word that follows it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The generated chat.py with a byte-level BPE tokenizer that has every template's special tokens."""
    folder = tmp_path_factory.mktemp("chats")
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([cut, byte_level]), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*(file.read_text() for file in CHATS.iterdir()), "\n\n one two\n\n" * 99], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>").save_pretrained(folder)
    return load(folder / "code", "sft", model__name=str(folder), model__from_scratch=False)


def talker(made: ModuleType, template: str, marked: bool) -> Any:
    """A Chat of this template, with or without its marks."""
    found = made.chat.Chat(made.TaskConfig())
    text = (CHATS / f"{template}.jinja").read_text()
    found.tokenizer.chat_template = text if marked else re.sub(r"{%-? (end)?generation %}", "", text)
    found.tokenizer.eos_token = END[template]
    return found


def refusal(template: str, shape: dict[str, Any]) -> str:
    """Why a template cannot be used for a shape; empty: it can."""
    messages = shape["messages"]
    roles, fields = {m["role"] for m in messages}, {name for m in messages for name in m}
    several = any(len(m.get("tool_calls", [])) > 1 for m in messages)
    if template == "gemma" and roles & {"system", "developer"}:
        return "System role not supported"
    if template == "gemma" and "tool" in roles:
        return "must alternate"
    if template in ("gemma", "phi3") and "tool_calls" in fields:
        return "leaves out"
    if template == "deepseek-r1" and shape.get("tools"):
        return "leaves out the tool get_weather"
    if template == "llama3" and several:
        return "single tool-calls"
    if "reasoning_content" in fields and template not in ("qwen3", "glm4.5", "deepseek-r1"):
        return "leaves out the reasoning 'Count up.'"
    return ""


def as_rendered(template: str, shape: dict[str, Any]) -> dict[str, Any]:
    """What the template is given, by its own form of roles and arguments."""
    messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in shape["messages"]]
    if template == "deepseek-r1":
        messages = json.loads(json.dumps(messages))
        for call in (call for m in messages for call in m.get("tool_calls", [])):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return {"conversation": messages}


def given(tokens: list[int]) -> list[int]:
    return [token if token >= 0 else ~token for token in tokens]


def places(tokens: list[int]) -> list[int]:
    return [place for place, token in enumerate(tokens) if token >= 0]


@pytest.mark.parametrize("name", SHAPES)
def test_every_format_is_read(name: str, made: ModuleType) -> None:
    shape = SHAPES[name]
    talk = made.chat.conversations.conversation_of(shape["row"])
    assert talk.messages == shape["messages"]
    assert [i for i, learned in enumerate(talk.learned) if learned] == shape["learned"]
    assert [tool["function"]["name"] for tool in talk.tools or []] == shape.get("tools", [])
    assert not talk.ignored
    assert not talk.fields


@pytest.mark.parametrize("template", END)
def test_marked_answers_are_those_of_transformers(template: str, made: ModuleType) -> None:
    """Tokens and mask, for all formats whose answers are all learned."""
    chat, looked = talker(made, template, marked=True), 0
    for name, shape in SHAPES.items():
        answers = [i for i, m in enumerate(shape["messages"]) if m["role"] == "assistant"]
        talk = made.chat.conversations.conversation_of(shape["row"])
        if refusal(template, shape) or answers != shape["learned"]:
            continue
        wanted = chat.tokenizer.apply_chat_template(
            **as_rendered(template, shape), tools=talk.tools, return_dict=True, return_assistant_tokens_mask=True
        )
        thoughts = ["Count up." in json.dumps(m) for m in shape["messages"]]
        if any(thoughts) and "Count up." not in chat.tokenizer.decode(wanted["input_ids"]):
            continue  # transformers' mask would learn an answer without its thoughts; see the next test
        (sample,) = chat.encode(talk)
        assert given(sample) == wanted["input_ids"], name
        assert places(sample) == [i for i, learned in enumerate(wanted["assistant_masks"]) if learned], name
        looked += 1
    assert looked >= 8


def answered(template: str, chat: Any, shape: dict[str, Any], tools: Any) -> Iterator[tuple[list[int], list[int]]]:
    """The prompt of each learned answer and the answer, by rendering everything before it, and it, again."""
    messages = as_rendered(template, shape)["conversation"]
    code = chat.tokenizer
    for i in shape["learned"]:
        prompt = code.apply_chat_template(messages[:i], tools=tools, add_generation_prompt=True, tokenize=False)
        text = code.apply_chat_template(messages[: i + 1], tools=tools, tokenize=False)
        thoughts = re.search(r"<think>\n(.*)\n</think>", messages[i]["content"], re.DOTALL)
        thought = messages[i].get("reasoning_content") or (thoughts[1] if thoughts else "")
        if template == "deepseek-r1" and prompt.endswith("<think>\n"):
            rest = text.removeprefix(prompt.removesuffix("<think>\n")).lstrip("\n")
            text = f"{prompt}{thought}\n</think>\n\n{rest}"
        elif template == "deepseek-r1":
            assert not thought
        assert text.startswith(prompt)
        assert thought in text[len(prompt) :]
        if template == "glm4.5":
            text += END[template]  # nothing else ends its answers
        ids = [code(part, add_special_tokens=False)["input_ids"] for part in (prompt, text[len(prompt) :])]
        yield ids[0], ids[1]


# docs/decisions/tasks.md: A template must render what it is given
@pytest.mark.parametrize("marked", [False, True], ids=["unmarked", "marked"])
@pytest.mark.parametrize("template", END)
def test_each_answer_is_learned_behind_the_prompt_that_it_is_given(
    template: str, marked: bool, made: ModuleType
) -> None:
    """Against rendering each beginning of the conversation again; all refusals are as expected."""
    chat, looked = talker(made, template, marked), 0
    stops = {chat.tokenizer.convert_tokens_to_ids(token) for token in ("<|user|>", "<|observation|>", END[template])}
    for name, shape in SHAPES.items():
        talk = made.chat.conversations.conversation_of(shape["row"])
        if reason := refusal(template, shape):
            with pytest.raises(Exception, match=re.escape(reason)):
                chat.encode(talk)
            continue
        samples, learned, looked = chat.encode(talk), 0, looked + 1
        if marked and len(samples) == 1:
            continue  # the test above
        for prompt, answer in answered(template, chat, shape, talk.tools):
            forms = [answer]
            if template == "phi3":
                forms.append(answer[:-1])  # without the end token behind the whole conversation
            if template == "glm4.5":
                forms += [[*answer[:-1], stop] for stop in stops]  # what follows an answer ends it
            found = [
                len(form)
                for sample in samples
                for form in forms
                if given(sample)[: len(prompt) + len(form)] == prompt + form
                and set(range(len(prompt), len(prompt) + len(form))) <= set(places(sample))
                and ~prompt[-1] == sample[len(prompt) - 1]
            ]
            assert found, (name, chat.tokenizer.decode(answer))
            learned += max(found)
        assert learned == sum(len(places(sample)) for sample in samples), name
    assert looked >= 12


LONG = [
    m
    for i in range(30)
    for m in ({"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"It is {i}."})
]


# docs/decisions/tasks.md: Answers are found in the text, and later rounds are rendered without the ones between
@pytest.mark.parametrize("template", END)
def test_long_conversations_are_learned_as_short_ones(template: str, made: ModuleType) -> None:
    """Where later rounds are rendered without the ones between, the result is that of rendering all."""
    chat = talker(made, template, marked=False)
    talk = made.chat.conversations.conversation_of({"messages": LONG})
    samples = chat.encode(talk)
    assert len(samples) == (30 if template in ("qwen3", "deepseek-r1") else 1)
    chat.spans = lambda *_: None  # every beginning is rendered
    apart = chat.encode(talk)
    assert sum(len(places(sample)) for sample in apart) - sum(len(places(sample)) for sample in samples) == (
        29 if template == "phi3" else 0
    )
    if template != "phi3":
        assert given(apart[-1]) == given(samples[-1])


def test_the_time_for_a_conversation_grows_with_its_length(made: ModuleType) -> None:
    """Rendering all beginnings of 100 rounds takes 20,000 messages; a few messages for each round are enough."""
    chat = talker(made, "qwen2.5", marked=False)
    count, apply = [0], chat.tokenizer.apply_chat_template

    def counted(messages: list[Any], **options: Any) -> Any:
        count[0] += len(messages)
        return apply(messages, **options)

    chat.tokenizer.apply_chat_template = counted
    long = [
        m for i in range(100) for m in ({"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}."})
    ]
    (sample,) = chat.encode(made.chat.conversations.conversation_of({"messages": long}))
    assert count[0] < 1200
    assert sum(token >= 0 for token in sample) >= 200


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (
            [{"role": "user", "content": "q", "name": "Ada"}],
            "field of messages that the chat template does not read: name",
        ),
        ([{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "q"}], "answers before any question"),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "I am {{name}}."},
                {"role": "user", "content": "q"},
            ],
            "messages with {{name}}, which stands for a name and is learned as it is",
        ),
    ],
)
def test_what_is_not_learned_of_a_conversation_is_told(messages: list[Any], says: str, made: ModuleType) -> None:
    talk = made.chat.conversations.conversation_of({"messages": [*messages, {"role": "assistant", "content": "a"}]})
    notes = made.chat.conversations.notes_on(talk, talker(made, "qwen2.5", False).reads)
    assert [note for note in notes if note.startswith(says)], notes


@pytest.mark.parametrize("talk", [["q", "a"], [["q", "a"]]])
def test_texts_without_roles_are_refused_in_words(talk: list[Any], made: ModuleType) -> None:
    with pytest.raises(ValueError, match="not a message with a role: "):
        made.chat.conversations.conversation_of({"conversations": talk})


def test_the_probe_knows_the_columns_of_a_conversation(made: ModuleType) -> None:
    code = made.chat.conversations
    assert (code.TALKS, (*code.ANSWERS, "target")) == (chat_columns.TALKS, chat_columns.ANSWERS)
    assert (*code.QUESTIONS, "input") == chat_columns.QUESTIONS


@pytest.mark.parametrize(
    "said",
    [
        {"content": None, "refusal": "I can't."},
        {"refusal": "I can't."},
        {"content": [{"type": "refusal", "refusal": "I can't."}]},
    ],
)
def test_a_refusal_is_what_the_assistant_says(said: dict[str, Any], made: ModuleType) -> None:
    """OpenAI's API returns one in a field of its own, or as a part of the content."""
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", **said}]}
    talk = made.chat.conversations.conversation_of(row)
    assert (talk.messages[1], talk.learned) == ({"role": "assistant", "content": "I can't."}, [False, True])
    row["messages"][1] = {"role": "assistant", "content": "a", "refusal": "I can't."}
    with pytest.raises(ValueError, match="both answers and refuses; delete content or refusal"):
        made.chat.conversations.conversation_of(row)


def test_arguments_that_were_written_as_json_twice_are_read(made: ModuleType) -> None:
    """As in OpenAI's own example of fine-tuning with tools; the row was refused."""
    call = {"type": "function", "function": {"name": "land", "arguments": json.dumps(json.dumps({"place": "here"}))}}
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]}
    talk = made.chat.conversations.conversation_of(row)
    assert talk.messages[1]["tool_calls"][0]["function"]["arguments"] == {"place": "here"}
    call["function"]["arguments"] = json.dumps(json.dumps("here"))
    with pytest.raises(ValueError, match="the arguments of land are not an object: 'here'"):
        made.chat.conversations.conversation_of(row)


@pytest.mark.parametrize("template", ["qwen2.5", "glm4.5"])
def test_tools_of_the_first_message_are_the_conversation_s(template: str, made: ModuleType) -> None:
    """GLM-4's format; they were lost, and no note said so, since templates have another variable of that name."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    read = made.chat.conversations.conversation_of
    talk = read({"messages": [{"role": "system", "content": "be brief", "tools": tools}, *said]})
    chat = talker(made, template, False)
    assert chat.encode(talk) == chat.encode(read({"system": "be brief", "messages": said, "tools": tools}))
    assert not made.chat.conversations.notes_on(talk, chat.reads)
    with pytest.raises(ValueError, match="a column of tools, and other tools in its first message"):
        read({"messages": [{**said[0], "tools": tools}, said[1]], "tools": tools})
    later = read({"messages": [said[0], {**said[1], "tools": tools}]})
    notes = made.chat.conversations.notes_on(later, chat.reads)
    assert notes == ["field of messages that the chat template does not read: tools"]


def test_reasoning_beside_an_answer_is_learned(made: ModuleType) -> None:
    """It was an ignored column."""
    chat = talker(made, "qwen3", marked=False)
    for asked in ({"input": "q", "output": "a"}, {"messages": [{"role": "user", "content": "q"}], "response": "a"}):
        talk = made.chat.conversations.conversation_of({**asked, "reasoning_content": "Count up."})
        assert (talk.messages[1]["reasoning_content"], talk.ignored) == ("Count up.", set())
        (sample,) = chat.encode(talk)
        assert "Count up." in chat.tokenizer.decode([token for token in sample if token >= 0])


def test_an_answer_beside_messages_is_learned(made: ModuleType) -> None:
    """It was an ignored column, and nothing was learned of the row."""
    asked = [{"role": "user", "content": "q"}]
    for column in ("response", "completion"):
        talk = made.chat.conversations.conversation_of({"messages": asked, column: "a"})
        assert [message["content"] for message in talk.messages] == ["q", "a"]
        assert (talk.learned, talk.ignored) == ([False, True], set())
    answered = [*asked, {"role": "assistant", "content": "b"}]
    talk = made.chat.conversations.conversation_of({"messages": answered, "response": "a"})
    assert (len(talk.messages), talk.ignored) == (2, {"response"})


PARTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As templates of models that see pictures write contents."""


def test_a_template_that_takes_parts_is_given_parts(made: ModuleType) -> None:
    """Those that go over a content as a list left out what was said, or ended with an error of Jinja."""
    chat = talker(made, "qwen2.5", marked=False)
    talk = made.chat.conversations.conversation_of(SHAPES["sharegpt, with a system message"]["row"])
    chat.tokenizer.chat_template = PARTS.replace("{% for part in m['content'] %}{% if part['type'] == 'text' %}", "")
    chat.tokenizer.chat_template = chat.tokenizer.chat_template.replace(
        "part['text'] }}{% endif %}{% endfor %}", "m['content'] }}"
    )
    wanted = chat.encode(talk)
    for strict in ("", "{% if messages[0]['content'] is string %}{{ raise_exception('a list') }}{% endif %}"):
        chat.tokenizer.chat_template = strict + PARTS
        assert chat.encode(talk) == wanted
        assert chat.prompt("One?")
