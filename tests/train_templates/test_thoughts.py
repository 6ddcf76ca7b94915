"""Reasoning and calls of tools by templates that show them only for a while, or one at a time, as GPT-OSS's does."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_sft import CHATML, chat, encode

pytestmark = pytest.mark.filterwarnings("default")

# What is thought before a call is shown as long as no answer follows it, that of an answer only in the last message;
# one call of a message; the last answer ends otherwise than earlier ones.
HARMONY = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and m.get('tool_calls') %}"
    "{% set later = namespace(answer=false) %}{% for n in messages[loop.index:] %}"
    "{% if n['role'] == 'assistant' and not n.get('tool_calls') %}{% set later.answer = true %}{% endif %}{% endfor %}"
    "{% set thought = m['content'] or m.get('thinking') %}{% if thought and not later.answer %}"
    "<|im_start|>assistant[INST]{{ thought }}<|im_end|>{% endif %}"
    "<|im_start|>assistant to={{ m['tool_calls'][0]['function']['name'] }} "
    "{{ m['tool_calls'][0]['function']['arguments'] | tojson }}<|eot|>"
    "{% elif m['role'] == 'assistant' %}{% set end = '<|end|>' if loop.last else '<|im_end|>' %}"
    "{% if m.get('thinking') and loop.last %}<|im_start|>assistant[INST]{{ m['thinking'] }}<|im_end|>{% endif %}"
    "<|im_start|>assistant[/INST]{{ m['content'] + end }}"
    "{% else %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def call(name: str, thought: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [{"function": function}]}


TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Paris?"},
    call("weather", "Look it up.", city="Paris"),
    {"role": "tool", "content": "18"},
    {"role": "assistant", "content": "It is 18.", "reasoning_content": "Say it."},
    {"role": "user", "content": "3 and 4?"},
    call("sum", "Add them.", a=3, b=4),
    {"role": "tool", "content": "7"},
    call("sum", "Check it.", a=7, b=0),
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "It is 7.", "reasoning_content": "Seven then."},
]


def behind_prompts(talker: Any, messages: list[dict[str, Any]], **more: Any) -> Iterator[tuple[str, str]]:
    """What is given before each stretch that is learned, and the stretch."""
    for sample in talker.encode(sys.modules["conversations"].conversation_of({"messages": messages, **more})):
        ids = [token if token >= 0 else ~token for token in sample]
        for keep, run in itertools.groupby(range(len(ids)), key=lambda place: sample[place] >= 0):
            first, *_, last = [*run] * 2
            if keep:
                yield talker.tokenizer.decode(ids[:first]), talker.tokenizer.decode(ids[first : last + 1])


def prompts(talker: Any, messages: list[dict[str, Any]], **more: Any) -> list[str]:
    """What is given before each answer at inference."""
    talk = sys.modules["conversations"].conversation_of({"messages": messages, **more})
    places = [i for i, message in enumerate(talk.messages) if message["role"] == "assistant"]
    return [
        talker.tokenizer.apply_chat_template(
            [{**m, "thinking": m.get("reasoning_content", "")} for m in talk.messages[:i]],
            tools=talk.tools,
            add_generation_prompt=True,
            tokenize=False,
        )
        for i in places
    ]


# docs/decisions/tasks.md: Learned tokens are found by comparing rendered prompts
def test_thoughts_that_a_prompt_shows_and_the_conversation_does_not(tmp_path: Path) -> None:
    """Each call and answer is learned with its thoughts, behind exactly the prompt that it would be given."""
    talker = chat(tmp_path, HARMONY)
    found = list(behind_prompts(talker, TURNS))
    assert [before for before, _ in found] == prompts(talker, TURNS)
    assert [said for _, said in found] == [
        '[INST]Look it up.<|im_end|><|im_start|>assistant to=weather {"city": "Paris"}<|eot|>',
        "[INST]Say it.<|im_end|><|im_start|>assistant[/INST]It is 18.<|end|>",
        '[INST]Add them.<|im_end|><|im_start|>assistant to=sum {"a": 3, "b": 4}<|eot|>',
        '[INST]Check it.<|im_end|><|im_start|>assistant to=sum {"a": 7, "b": 0}<|eot|>',
        "[INST]Seven then.<|im_end|><|im_start|>assistant[/INST]It is 7.<|end|>",
    ]


def test_reasoning_has_the_name_that_the_template_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.23 gives it both names; earlier ones do not."""
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "_alias_reasoning_fields", lambda talk: talk, raising=False)
    talker = chat(tmp_path, HARMONY)
    assert [said for _, said in behind_prompts(talker, TURNS)][-1].startswith("[INST]Seven then.")


def test_what_is_said_before_a_call_is_learned_where_later_turns_hide_it(tmp_path: Path) -> None:
    talker = chat(tmp_path, HARMONY)
    said = {**call("weather", "", city="Paris"), "content": "Look it up."}
    del said["reasoning_content"]
    found = [text for _, text in behind_prompts(talker, [TURNS[0], said, *TURNS[2:4]])]
    assert found[0].startswith("[INST]Look it up.<|im_end|>")
    assert found[1].endswith("It is 18.<|end|>")
    with pytest.raises(ValueError, match="leaves out what the assistant says: 'Look it up"):  # and nowhere shown
        encode(chat(tmp_path, HARMONY.replace("m['content'] or ", "")), [TURNS[0], said, *TURNS[2:4]])


def test_a_template_that_renders_one_call_of_several_is_refused(tmp_path: Path) -> None:
    """The name of the second call is in the text nevertheless, as that of the first."""
    talker = chat(tmp_path, HARMONY.replace("{{ m['role'] + ", "{{ m['role'] + ' sum' * (m['role'] == 'tool') + "))
    both = {"role": "assistant", "content": "", "tool_calls": [*call("sum", "", a=1)["tool_calls"]] * 2}
    with pytest.raises(ValueError, match="renders one call of a message and leaves out the others; write each call"):
        encode(talker, [TURNS[4], both, TURNS[6], TURNS[6], TURNS[9]])


@pytest.mark.parametrize(("before", "after"), [("\n", "</think>"), ("\n", "\n</think>\n"), ("", "</think>\n\n")])
def test_an_answer_without_thoughts_ends_them_as_the_template_does(before: str, after: str, tmp_path: Path) -> None:
    """Templates of Nemotron 3, Qwen3.5 and others begin an answer with its thoughts, and end them differently."""
    thoughts = f"{{{{ '<think>{before}' + m.get('reasoning_content', '') + '{after}' }}}}".replace("\n", "\\n")
    template = CHATML.replace(
        "{{ m['role'] + '\n' + m['content'] }}",
        "{{ m['role'] + '\n' }}{% if m['role'] == 'assistant' and m.get('reasoning_content') %}"
        + thoughts
        + "{% endif %}{{ m['content'] }}",
    ).replace("assistant\n{% endif %}", f"assistant\n<think>{before}{{% endif %}}")
    talker = chat(tmp_path, template)
    answer = {"role": "assistant", "content": "first"}
    ((_, plain),) = behind_prompts(talker, [TURNS[0], answer])
    ((_, thought),) = behind_prompts(talker, [TURNS[0], {**answer, "reasoning_content": "hm"}])
    assert (thought, plain) == (f"hm{after}first<|im_end|>\n", f"{after}first<|im_end|>\n")


SPECIAL = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>")


def test_the_published_template_of_gpt_oss(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")  # docs/requirements-dev.txt
    template = Path(trl.__file__).parent / "chat_templates" / "gptoss.jinja"
    if not template.is_file():
        pytest.skip("this version of TRL has no copy of it")
    talker = chat(tmp_path, template.read_text())
    talker.tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL), "eos_token": "<|return|>"})
    talker.special = SPECIAL
    tools = [
        {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
        for name in ("weather", "sum")
    ]
    found = list(behind_prompts(talker, TURNS, tools=tools))
    assert [before for before, _ in found] == prompts(talker, TURNS, tools=tools)
    analysis, final = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
    said = "<|end|><|start|>assistant to=functions.{}<|channel|>commentary json<|message|>{}<|call|>"
    assert [text for _, text in found] == [
        f"{analysis}Look it up." + said.format("weather", '{"city": "Paris"}'),
        f"{analysis}Say it.<|end|>{final}It is 18.<|return|>",
        f"{analysis}Add them." + said.format("sum", '{"a": 3, "b": 4}'),
        f"{analysis}Check it." + said.format("sum", '{"a": 7, "b": 0}'),
        f"{analysis}Seven then.<|end|>{final}It is 7.<|return|>",
    ]


def test_how_an_answer_may_think_is_said_where_its_prompt_forbids_it(tmp_path: Path) -> None:
    """As Qwen3.5 small ones prompt, unless they are asked to think."""
    talker = chat(
        tmp_path,
        CHATML.replace(
            "assistant\n{% endif %}",
            "assistant\n<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}",
        ).replace(
            "m['content'] }}",
            "('<think>\n' + m.reasoning_content + '\n</think>\n\n' if m.reasoning_content else '') + m['content'] }}",
        ),
    )
    talk = [TURNS[0], {"role": "assistant", "content": "first", "reasoning_content": "hm"}]
    with pytest.raises(ValueError, match=r'with {"enable_thinking": true} changes the prompt'):
        encode(talker, talk)
    ((_, said),) = behind_prompts(talker, talk, chat_template_kwargs={"enable_thinking": True})
    assert said == "hm\n</think>\n\nfirst<|im_end|>\n"
