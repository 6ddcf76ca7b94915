"""Texts of conversations: the content of a message, and conversations written as one text: `Human: … Assistant: …`."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from typing import Any

from json_rows import RepeatedKey, parsed

ROLES = {"Human": "user", "Assistant": "assistant"}
SAID = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}]
MEDIA = {"image", "video", "audio", "file", "document"}
SHOWN = re.compile(
    r"<(?:image|video|audio)>|<img>.*?</img>|<\|(?:image_pad|video_pad|image|vision_start)\|>", re.DOTALL
)


def is_transcript(text: Any) -> bool:
    """Return whether a text is a conversation."""
    return isinstance(text, str) and re.match(r"\s*Human:", text) is not None


def is_open_transcript(text: str) -> bool:
    """Return whether a text is a conversation whose last answer is to be written."""
    return is_transcript(text) and re.search(r"\n\s*Assistant:\s*$", text) is not None


def transcript(text: str) -> list[dict[str, Any]]:
    """Return the messages of a transcript. If an empty line precedes an answer, one precedes each message."""
    gap = r"\n\n" if "\n\nAssistant:" in text else r"\n"
    _, *parts = re.split(rf"(?:^|{gap})\s*(Human|Assistant):", f"\n\n{text.lstrip()}")
    return [{"role": ROLES[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]


def usual_parts(content: Any) -> Any:
    """Return a content with its parts as OpenAI and Anthropic name them; LLaMA-Factory says all of them in `value`."""
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in content:
        if not isinstance(part, dict) or "value" not in part:
            parts.append(part)
        elif is_part(part, "reasoning"):
            parts.append({"type": "thinking", "thinking": part["value"]})
        elif is_part(part, "tool_call"):
            calls = parsed(part["value"]) if isinstance(part["value"], str) else part["value"]
            for call in calls if isinstance(calls, list) else [calls]:
                parts.append({**call, "type": "tool_use"} if isinstance(call, dict) else {"type": "tool_use"})
        else:
            parts.append({"type": part.get("type"), "text": part["value"]})
    return parts


def is_part(part: Any, kind: str) -> bool:
    """Return whether a part of a content is of this type."""
    return isinstance(part, dict) and part.get("type") == kind


def text_of(content: Any, role: str) -> str:
    """Return a content as text. Raises `ValueError` if it is not text, such as an image."""
    if content is None or isinstance(content, str):
        return content or ""
    kinds = ("text", "output_text", "refusal") if role == "assistant" else ("text", "input_text")
    if isinstance(content, list) and all(
        isinstance(x, str) or any(is_part(x, kind) and {"text", "refusal"} & x.keys() for kind in kinds)
        for x in content
    ):
        flags = {part.get(name, 1) for part in content if isinstance(part, dict) for name in ("train", "weight")}
        if flags - {1}:
            raise ValueError("a part of a message cannot be learned without the rest")
        return "".join(part if isinstance(part, str) else part.get("refusal") or part["text"] for part in content)
    if role == "tool" and isinstance(content, dict | list):
        return json.dumps(content, ensure_ascii=False)
    kinds = (
        {str(part.get("type")) for part in content if isinstance(part, dict)} if isinstance(content, list) else set()
    )
    if media := sorted(kind for kind in kinds if MEDIA & set(kind.split("_"))):
        raise ValueError(f"the {role} shows {media[0]}, and this model reads text only; delete the row")
    raise ValueError(f"the {role} says {shown(content)}, which is not text")


def media_in(content: Any) -> str:
    """Return the first mark in a text that stands for a picture, a video or a sound; empty: it has none."""
    found = SHOWN.search(content) if isinstance(content, str) else None
    return found[0][:40] if found else ""


def by_rows(talk: dict[str, Any]) -> Any:
    """Return messages that a table holds as a list for each field: `{"role": [...], "content": [...]}`."""
    fields = {name: values for name, values in talk.items() if values is not None}
    lists = all(isinstance(values, list) for values in fields.values()) and {"role", "from"} & fields.keys()
    if not lists or len({len(values) for values in fields.values()}) != 1:
        return talk
    return [dict(zip(fields, said, strict=True)) for said in zip(*fields.values(), strict=True)]


def dense(value: Any) -> Any:
    """Return a value without the Nones in it."""
    if isinstance(value, dict):
        return {name: dense(part) for name, part in value.items() if part is not None}
    return [dense(part) for part in value] if isinstance(value, list) else value


def not_read(error: Exception) -> str:
    """Return why a row is not read."""
    if isinstance(error, json.JSONDecodeError):
        return f"not a JSON object: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start}: {error.reason}"
    if isinstance(error, RepeatedKey):
        return f'the key "{error}" is given twice; only one value would be read'
    return str(error) if type(error) is ValueError else repr(error)


def shown(value: Any) -> str:
    """Return the beginning of a value."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


@functools.cache
def takes_parts(tokenizer: Any, template: str) -> bool:
    """Return whether a template wants contents as lists of parts, as those of some models for pictures do."""

    def says(messages: list[dict[str, Any]]) -> bool:
        try:
            text = str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False))
        except Exception:  # Jinja's errors, and what templates raise
            return False
        return all(message["content"] in text for message in SAID)

    return not says(SAID) and says([in_parts(message) for message in SAID])


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its content as a list with one part."""
    return {**message, "content": [{"type": "text", "text": message["content"]}] if message["content"] else []}


def given(tokenizer: Any, template: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with contents as a template takes them."""
    return [in_parts(message) for message in messages] if takes_parts(tokenizer, template) else messages


def two_messages(tokenizer: Any) -> list[dict[str, Any]]:
    """Return a question and its answer as the tokenizer's template takes them."""
    return given(tokenizer, str(tokenizer.chat_template), SAID)


def refuse_losses(talk: Any, text: str, seen: list[bool] | None = None) -> None:
    """Raise `ValueError` if the template left out a tool, a call, or what a message says: any, or those `seen`."""
    place = 0
    for message in itertools.compress(talk.messages, seen or itertools.repeat(True)):
        said = said_by(message)
        found = place_of(said, text, place)
        if found < 0 and place_of(said, text) < 0:
            raise ValueError(f"it leaves out what the {message['role']} says: {said[:60]!r}")
        place = max(place, found)
    calls = [call["function"]["name"] for message in talk.messages for call in message.get("tool_calls", [])]
    for name, count in Counter(calls + [str(tool["function"].get("name")) for tool in talk.tools or []]).items():
        if text.count(name) < count:
            raise ValueError(f"it leaves out the tool {name} or a call of it; choose a model that is made for tools")


def said_by(message: dict[str, Any]) -> str:
    """Return what a message says, without what it thinks."""
    return str(message["content"].rpartition("</think>")[2].strip())


def place_of(said: str, text: str, begin: int = 0) -> int:
    """Return where a text has what a message says, as it is or as JSON; -1: it does not."""
    found = text.find(said, begin)
    return found if found >= 0 else text.find(json.dumps(said, ensure_ascii=False)[1:-1], begin)


def reasoning_of(message: dict[str, Any]) -> str:
    """Return the reasoning of an answer; empty if it has none."""
    thoughts, thinks, _ = message["content"].partition("</think>")
    thoughts = thoughts.partition("<think>")[2] or thoughts if thinks else ""
    return str(message.get("reasoning_content") or thoughts).strip()


CALLS = [
    {"type": "function", "id": "00000000" + x, "function": {"name": f"zq{x}", "arguments": {"b": "c"}}} for x in "12"
]


@functools.cache
def takes_one_call(tokenizer: Any, template: str) -> bool:
    """Return whether a template renders the first call of a message, and leaves out the others."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": CALLS}]
    try:
        text = str(tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False))
    except Exception:  # as in takes_text
        return False
    return "zq1" in text and "zq2" not in text


@functools.cache
def takes_text(tokenizer: Any, template: str) -> bool:
    """Return whether a template wants the arguments of a call as JSON text, because it appends them to a string."""
    call = {"type": "function", "id": "000000001", "function": {"name": "a", "arguments": {"b": "c"}}}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False)
    except TypeError:
        return True
    except Exception:  # an error that encoding will raise again, and report
        return False
    return False


def with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have their arguments as JSON text."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def refuse_lost_calls(tokenizer: Any, template: str, messages: list[dict[str, Any]]) -> None:
    """Raise `ValueError` if a message has several calls of which the template renders the first."""
    if any(len(message.get("tool_calls", [])) > 1 for message in messages) and takes_one_call(tokenizer, template):
        raise ValueError(
            "it renders one call of a message and leaves out the others; write each call as a message of its own, "
            "with its result behind it"
        )
