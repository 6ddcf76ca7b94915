"""Conversations as people store them, read as the messages that chat templates take.

Each row of a dataset is one conversation, in one of these formats:

- OpenAI: `messages` of `role` and `content`, with `tool_calls`, `refusal` (read as the assistant's answer), `weight`,
  `name`; `tools` beside them, and if a question comes last, its answer may be in `response` or `completion`
- ShareGPT: `conversations` of `from` and `value`, with `function_call` and `observation`; `system`, `tools` beside them
- Alpaca: `instruction`, `input`, `output`, `system` and `history`
- a question and an answer: `prompt` and `completion` (strings, or lists of messages), `query` and `response`, …; the
  passage that it is about may be in `context`, the answer's reasoning in `reasoning_content`, and a question that ends
  with `Assistant:` is read as a conversation

A row that cannot be used ends the program with an error that gives its place and the reason. What is ignored is counted
and named.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# feature: own_columns
import column_names

# end: own_columns
from json_rows import parsed as parsed_row
from sources import Row, TableRow
from transcripts import (
    by_rows,
    dense,
    is_open_transcript,
    is_part,
    media_in,
    not_read,
    shown,
    text_of,
    transcript,
    usual_parts,
)

Message = dict[str, Any]
ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "用户"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot", "model", "助手"), "assistant"),
    **dict.fromkeys(("system", "developer", "系统"), "system"),
    **dict.fromkeys(("tool", "observation", "observations", "tool_response", "function_response", "function"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
TALKS = ("messages", "conversations", "conversation")
QUESTIONS = ("instruction", "prompt", "query", "question", "problem")
ANSWERS = ("output", "completion", "response", "answer", "solution")
REASONING = ("reasoning_content", "reasoning", "thinking")
FLAGS = ("weight", "loss", "train", "loss_scale", "loss_weight")  # of a message: 1 (learn it) or 0
FIELDS = {"role", "content", "tool_calls", "tool_call_id", *REASONING}
SAYS = ("content", "tool_calls", "reasoning_content")  # one of these must hold something in an answer
BLANK = re.compile(r"{{(?:name|author|NAME|AUTHOR)}}|<(?:NAME|AUTHOR)>")
"""What LLaMA-Factory's and ms-swift's examples have in place of the names of a model and of its makers."""
MEDIA = ("images", "image", "image_path", "image_url", "videos", "video", "audios", "audio")


@dataclass
class Conversation:
    """Messages as a chat template takes them."""

    messages: list[Message]
    """With `role` (system, developer, user, assistant or tool) and `content`, a string."""
    learned: list[bool]
    """For each message, whether the model learns to write it."""
    place: str = ""
    """The file and line, or the row, for errors."""
    tools: list[Any] | None = None
    """Functions that the model may call, as JSON schemas."""
    settings: dict[str, Any] = field(default_factory=dict)
    """More variables for the template, such as `enable_thinking`."""
    ignored: set[str] = field(default_factory=set)
    """Columns that are not read."""
    fields: set[str] = field(default_factory=set)
    """Fields of messages that only a template may read."""
    empty: int = 0
    """Answers that are not learned, because they are empty."""
    # feature: own_columns
    told: list[str] = field(default_factory=list)  # notes on the columns that it was read from
    # end: own_columns


def read(
    row: Row,
    convert: Callable[[Any], Any] | None = None,
    # feature: own_columns
    columns: str = "",
    # end: own_columns
) -> Any:
    """Return the conversation of a row, converted by `convert` if given. Exit if it cannot be used."""
    place, value = row
    try:
        value = parsed_row(value) if isinstance(value, bytes | str) else value
        # In a table, None stands for a missing value, even inside the arguments of calls.
        value = dense(value) if isinstance(value, TableRow) else value
        # feature: own_columns
        value, told = column_names.renamed(value, columns)
        # end: own_columns
        conversation = (convert or conversation_of)(value)
        # feature: own_columns
        for talk in getattr(conversation, "answers", [conversation]):
            talk.told = told
        # end: own_columns
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = not_read(error)
        raise SystemExit(f"{place}: this conversation cannot be used: {reason}") from None
    conversation.place = place
    return conversation


def conversation_of(row: dict[str, Any]) -> Conversation:
    """Return the conversation of a row. Raises `ValueError` with the reason if it cannot be used."""
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object: {shown(row)}")
    columns = {name: value for name, value in row.items() if value is not None}
    if seen := [name for name in MEDIA if columns.get(name)]:
        raise ValueError(f"it has {seen[0]}, and this model reads text only")
    if bad := [name for name in ("kto_tag", "label") if str(columns.get(name)).strip().lower() == "false"]:
        raise ValueError(f"{bad[0]} marks its answer as a bad one, which would be learned")
    names = ", ".join(columns)
    tools, system = taken(columns, "tools", "functions"), taken(columns, "system", "system_prompt")
    settings = parsed(columns.pop("chat_template_kwargs", None)) or {}
    talk = parsed(taken(columns, *TALKS))
    talk = by_rows(talk) if isinstance(talk, dict) else talk
    turns = turns_of(talk) if talk is not None else asked_and_answered(columns, names)
    if talk is not None and turns and turns[-1][0]["role"] not in ("assistant", "system", "developer"):
        turns += answer_to(columns)
    if system:
        if turns and turns[0][0]["role"] in ("system", "developer") and turns[0][0]["content"] != system:
            raise ValueError("it has a system column and another system message; delete one")
        if not turns or turns[0][0]["role"] not in ("system", "developer"):
            turns.insert(0, ({"role": "system", "content": system}, False))
    if not turns:
        raise ValueError("it has no messages")
    messages = [message for message, _ in turns]
    if "tools" in messages[0]:  # GLM-4 has them in the system's message
        if tools is not None:
            raise ValueError("it has a column of tools, and other tools in its first message; delete one")
        tools = messages[0].pop("tools")
    number_calls(messages)
    empty = [flag and not any(message.get(name) for name in SAYS) for message, flag in turns]
    return Conversation(
        messages=messages,
        learned=[flag and not nothing for (_, flag), nothing in zip(turns, empty, strict=True)],
        tools=tools_of(tools),
        settings=settings,
        ignored={name for name, value in columns.items() if value not in ("", [])},
        fields={name for said in messages for name in said if (said["role"], name) != ("tool", "name")} - FIELDS,
        empty=sum(empty),
    )


def taken(columns: dict[str, Any], *names: str) -> Any:
    """Remove and return the column of one of these names. None: there is none. Raises `ValueError` for several."""
    found = [name for name in names if name in columns]
    if len(found) > 1:
        raise ValueError(f"it has {' and '.join(found)}, which mean the same; delete or rename all but one")
    return columns.pop(found[0]) if found else None


def parsed(value: Any) -> Any:
    """Return a value that tables often hold as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parsed_row(value) if value.strip() else None
    except json.JSONDecodeError:
        raise ValueError(f"not JSON: {shown(value)}") from None


Turn = tuple[Message, bool]  # a message, and whether it is learned


def asked_and_answered(columns: dict[str, Any], names: str) -> list[Turn]:
    """Return the messages of a row with a question and an answer, and perhaps with earlier ones.

    `names` are those of all columns of the row, for errors.
    """
    if "chosen" in columns or "rejected" in columns:
        raise ValueError("a preference (chosen, rejected); keep the chosen answer as messages or as an output")
    history = parsed(columns.pop("history", None)) or []
    question, further, answer = (in_list(taken(columns, *of)) for of in (QUESTIONS, ("input",), ANSWERS))
    if question is None and isinstance(columns.get("context"), list):  # ColossalChat has the messages before so
        question = columns.pop("context")
    passage = isinstance(columns.get("context"), str) and not isinstance(question, list)
    if further is None and passage:  # what the question is about
        further = columns.pop("context")
    answer = taken(columns, "target") if answer is None else answer
    if (question is None and further is None) or answer is None:
        raise ValueError(f"neither messages nor a question with an answer; it has {names or 'no columns'}")
    choices = next((name for name in ("choices", "options") if isinstance(columns.get(name), list | dict)), "")
    if choices and (isinstance(answer, int) or len(str(answer).strip()) == 1):
        raise ValueError(f"its answer {answer!r} is one of {choices}, which is not read: write it out as text")
    if isinstance(answer, str) and len(answer.strip()) == 1 and answer.strip() in columns:
        raise ValueError(
            f"its answer {answer!r} names a column, which is not read: write the choices into the question"
        )
    if not further and isinstance(question, str) and is_open_transcript(question):
        question = transcript(question)[:-1]
    turns = [turn for pair in history for turn in zip(pair_of(pair), (False, True), strict=True)]
    if isinstance(question, list):
        turns += [(message, False) for message, _ in turns_of(question)]  # an answer in a prompt is not learned
    else:
        asked = "\n".join(text_of(part, "user") for part in (question, further) if part)
        turns.append(({"role": "user", "content": asked}, False))
    if isinstance(answer, list):
        if answer and all(isinstance(text, str) for text in answer):
            raise ValueError(f"its answer is a list of texts; name one of them in data.columns, as answers.0: {names}")
        return turns + turns_of(answer)
    return [*turns, (answered(columns, answer), True)]


def answered(columns: dict[str, Any], answer: Any) -> Message:
    """Return the message of an answer that is a text, with its reasoning from a column beside it."""
    thought = columns.pop("reasoning_content", None)
    said = {"role": "assistant", "content": text_of(answer, "assistant")}
    return {**said, "reasoning_content": text_of(thought, "assistant")} if thought else said


def in_list(said: Any) -> Any:
    """Return a single message as a list of messages, and anything else as it is."""
    return [said] if isinstance(said, dict) and {"role", "from"} & said.keys() else said


def answer_to(columns: dict[str, Any]) -> list[Turn]:
    """Return the answer that is in a column of its own, beside messages that end with a question."""
    answer = in_list(taken(columns, *ANSWERS))
    if isinstance(answer, list):
        return turns_of(answer)
    return [] if answer is None else [(answered(columns, answer), True)]


def pair_of(pair: Any) -> tuple[Message, Message]:
    """Return an earlier question and its answer."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"history is not a list of pairs of a question and an answer: {shown(pair)}")
    asked, said = (text_of(text, "history") for text in pair)
    return {"role": "user", "content": asked}, {"role": "assistant", "content": said}


def turns_of(talk: Any) -> list[Turn]:
    """Return the messages of a conversation, and which are learned."""
    if not isinstance(talk, list):
        raise ValueError(f"not a list of messages: {shown(talk)}")
    turns: list[Turn] = []
    for said in talk:
        if not isinstance(said, dict):
            raise ValueError(f"not a message with a role: {shown(said)}")
        said = {name: value for name, value in said.items() if value is not None}
        if not {"role", "from"} & said.keys():  # a question and its answer in one: {"human": …, "assistant": …}
            pairs = [({"role": role, "content": text}) for name, text in said.items() if (role := speaker(name))]
            sides = [ROLES[pair["role"]] for pair in pairs]
            if not pairs or len(pairs) < len(said) or len(set(sides)) < len(sides):
                raise ValueError(f"a message without a role: {shown(said)}")
            pairs.sort(key=lambda pair: {"system": 0, "user": 1}.get(ROLES[pair["role"]], 2))
            turns += turns_of(pairs)
            continue
        named = taken(said, "role", "from")
        role = str(named).lower()
        if role not in ROLES:
            raise ValueError(f"the role {named!r} is unknown; known roles: {', '.join(ROLES)}")
        learned = is_learned(said, ROLES[role])
        if ROLES[role] == "call":
            add_call(turns, said, learned)
        else:
            turns += messages_of("developer" if role == "developer" else ROLES[role], said, learned)
    return turns


def speaker(name: str) -> str:
    """Return the role for the name of a speaker, such as `human` or `question`; empty if it is unknown."""
    sides = {**dict.fromkeys((*QUESTIONS, "input"), "user"), **dict.fromkeys(ANSWERS, "assistant")}
    return name.lower() if name.lower() in ROLES else sides.get(name, "")


def is_learned(said: Message, role: str) -> bool:
    """Return whether a message is learned; only the assistant's can be. Removes the field that says so."""
    if "train_detail" in said:
        raise ValueError("train_detail: a part of a message cannot be learned without the rest")
    flags = {name: said.pop(name) for name in FLAGS if name in said}
    for name, value in flags.items():
        if value not in (0, 1):
            raise ValueError(f"{name} is {value!r}; a message can be learned (1) or not (0)")
        if value and role not in ("assistant", "call"):
            raise ValueError(f"{name} is {value!r} in a message of the {role}; only the assistant's can be learned")
    return role in ("assistant", "call") and all(flags.values())


def messages_of(role: str, said: Message, learned: bool) -> Iterator[Turn]:
    """Yield the message, after the results of tools that Anthropic's format puts into it."""
    content = usual_parts(taken(said, "content", "value"))
    if role == "assistant" and (refusal := said.pop("refusal", None)):
        if content:
            raise ValueError("the assistant both answers and refuses; delete content or refusal")
        content = refusal
    parts = content if isinstance(content, list) and role != "tool" else []
    calls = [*(parsed(said.pop("tool_calls", None)) or [])]
    if "function_call" in said:
        calls.append(parsed(said.pop("function_call")))
    calls += [part for part in parts if is_part(part, "tool_use")]
    for part in parts:
        if is_part(part, "tool_result"):
            result = text_of(part.get("content", ""), "tool")
            yield {"role": "tool", "content": result, "tool_call_id": part.get("tool_use_id")}, False
    thoughts = [str(part.get("thinking", "")) for part in parts if is_part(part, "thinking")]
    rest = [part for part in parts if not any(is_part(part, kind) for kind in ("tool_use", "tool_result", "thinking"))]
    if parts and not rest and not calls and not thoughts:
        return
    message = {"role": role, "content": text_of(rest if parts else content, role)}
    if reasoning := taken(said, *REASONING):
        message["reasoning_content"] = text_of(reasoning, role)
    elif thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        if role != "assistant":
            raise ValueError(f"the {role} calls a tool; only the assistant can")
        message["tool_calls"] = [call_of(call) for call in calls]
    elif content is None and not reasoning:
        raise ValueError(f"the {role} says nothing: neither content nor tool_calls")
    yield {**message, **{name: value for name, value in said.items() if value not in ("", [])}}, learned


def call_of(call: Any) -> dict[str, Any]:
    """Return a call of a tool as `{"type": "function", "function": {"name": …, "arguments": {…}}}`."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not function.get("name"):
        raise ValueError(f"not a call of a tool: {shown(call)}")
    arguments = parsed(parsed(taken(dict(function), "arguments", "parameters", "input")))  # some are written twice
    if not isinstance(arguments, dict | None):
        raise ValueError(f"the arguments of {function['name']} are not an object: {shown(arguments)}")
    identity = {"id": call["id"]} if call.get("id") else {}
    return {"type": "function", **identity, "function": {"name": function["name"], "arguments": arguments or {}}}


def add_call(turns: list[Turn], said: Message, learned: bool) -> None:
    """Add the calls of a message without text, after its reasoning, to the assistant's previous message."""
    thoughts, thinks, text = text_of(taken(said, "content", "value"), "call").rpartition("</think>")
    calls = parsed(text)
    calls = [call_of(call) for call in (calls if isinstance(calls, list) else [calls])]
    if not turns or turns[-1][0]["role"] != "assistant":
        turns.append(({"role": "assistant", "content": ""}, learned))
    message, same = turns[-1]
    if same != learned:
        raise ValueError("a call of a tool cannot be learned without what the assistant says before it")
    message["content"] += thoughts + thinks
    message["tool_calls"] = message.get("tool_calls", []) + calls
    message.update({name: value for name, value in said.items() if name not in message})


def number_calls(messages: list[Message]) -> None:
    """Give calls without an id one of nine digits (the length that Mistral's templates ask for), and their results."""
    numbers, waiting = itertools.count(1), []
    for message in messages:
        for call in message.get("tool_calls", []):
            call.setdefault("id", f"{next(numbers):09}")
            waiting.append(call)
        if message["role"] == "tool":
            known = [call for call in waiting if call["id"] == message.get("tool_call_id")]
            if call := next(iter(known or waiting), None):
                waiting.remove(call)
                message["tool_call_id"] = message.get("tool_call_id") or call["id"]
                message.setdefault("name", call["function"]["name"])


def tools_of(tools: Any) -> list[Any] | None:
    """Return the tools as `{"type": "function", "function": {…}}` each. None: there are none."""
    tools = parsed(tools)
    if isinstance(tools, list) and any(isinstance(tool, str) and "{" not in tool for tool in tools):
        raise ValueError(f"tools has names only; write each as a JSON schema with name and parameters: {shown(tools)}")
    if not isinstance(tools, list | None) or not all(isinstance(parsed(tool), dict) for tool in tools or ()):
        raise ValueError(f"tools is not a list of JSON objects: {shown(tools)}")
    found = []
    for tool in map(parsed, tools or ()):
        function = dict(tool.get("function", tool))
        if "parameters" in function:
            function["parameters"] = parsed(function["parameters"])
        found.append({"type": "function", **(tool if "function" in tool else {}), "function": function})
    return found or None


def notes_on(talk: Conversation, reads: Callable[[str], bool]) -> list[str]:
    """Return notes on what is not learned or not read. `reads` tells whether a template reads a field."""
    unread = sorted(name for name in talk.fields if not reads(name))
    kinds = [f"ignored column: {name}" for name in sorted(talk.ignored)]
    kinds += [f"field of messages that the chat template does not read: {name}" for name in unread]
    # feature: own_columns
    kinds += talk.told
    # end: own_columns
    media = next(filter(None, (media_in(said.get("content")) for said in talk.messages)), "")
    kinds += [f"messages with {media}, which is read as text: nothing is shown to the model"] * bool(media)
    blank = next((found[0] for said in talk.messages if (found := BLANK.search(said["content"]))), "")
    kinds += [f"messages with {blank}, which stands for a name and is learned as it is: replace it"] * bool(blank)
    kinds += ["empty answers, which are not learned"] * bool(talk.empty)
    # feature: tokenizer
    # feature: answers_learned
    kinds += ["answers before any question, which are not learned"] * talk.learned[0]
    # end: answers_learned
    # end: tokenizer
    kinds += ["conversations without an answer to learn"] * (not any(talk.learned[1:]))
    return kinds
