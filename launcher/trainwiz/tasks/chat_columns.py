"""Columns of conversations and preferences: the names that task.py reads, and what other names may stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz import vocabulary as v

TALKS = ("messages", "conversations", "conversation")
QUESTIONS = ("instruction", "prompt", "query", "question", "problem", "input")
ANSWERS = ("output", "completion", "response", "answer", "solution", "target")
"""The columns of a conversation, as the generated conversations.py names them."""
CHOSEN = ("chosen", "chosen_response", "preferred_output", "preferred")
REJECTED = ("rejected", "rejected_response", "non_preferred_output", "dispreferred")
LABELS = ("label", "kto_tag")
"""The columns of a preference, as the generated preferences.py names them."""
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "system": ("system", "system_prompt", "system_message", "系统", "系统提示", "系统提示词"),
    "messages": (*TALKS, "dialogue", "dialog", "chat", "turns", "对话"),
    "prompt": (
        *(name for name in QUESTIONS if name != "input"),
        *("q", "ask", "user", "human", "user_input", "user_message", "question_text", "input_text", "source", "src"),
        *("问题", "问", "提问", "指令", "题目", "用户", "用户输入", "提示", "提示词", "标题"),
    ),
    "input": ("input", "context", "passage", "背景", "上下文", "材料", "输入"),
    "completion": (
        *ANSWERS,
        *("a", "reply", "answers", "assistant", "bot", "gpt", "model_output", "output_text", "generation", "tgt"),
        *(
            "human_answers",
            "chatgpt_answers",
            "best_answer",
            "gold",
            "gold_answer",
            "reference",
            "答案",
            "答",
            "回答",
            "回复",
            "答复",
            "输出",
            "助手",
        ),
    ),
    "chosen": (
        *CHOSEN,
        *("better", "good", "good_answer", "winner", "win", "accepted", "positive", "response_chosen", "chosen_answer"),
        *("better_response", "answer_chosen", "preferred_answer", "好回答", "较好回答", "优选回答", "优选", "偏好回答"),
    ),
    "rejected": (
        *REJECTED,
        *("worse", "bad", "bad_answer", "loser", "lose", "negative", "response_rejected", "rejected_answer"),
        *("worse_response", "answer_rejected", "坏回答", "差回答", "较差回答", "拒绝", "拒绝回答", "非偏好回答"),
    ),
}
"""What other data sets call them, the best names first, in lower case and without a language behind them."""
_LANGUAGE = re.compile(r"_(zh|cn|en|chinese|english|text|str|content)$")


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What columns may be read as."""

    columns: Mapping[str, str]
    """A column for each word, or a path into one."""
    sure: bool
    """Whether each has a name of its word, no other column has, and it holds what is read."""

    @property
    def spelled(self) -> str:
        """As a plan has it."""
        return ",".join(f"{word}={name}" for word, name in self.columns.items())


def problem(row: Mapping[str, Any], *, compares: bool) -> str | None:
    """What a row lacks: talk, answers or label. None: nothing."""
    there = {name for name, value in row.items() if value is not None}
    if not compares:
        asked = there & set(TALKS) or (there & set(QUESTIONS) and there & set(ANSWERS))
        return None if asked else "talk"
    if there & set(CHOSEN) and there & set(REJECTED):
        return None
    return "label" if there & set(LABELS) and not there & {*CHOSEN, *REJECTED} else "answers"


def named(columns: str) -> dict[str, str]:
    """The column that a plan reads as each word."""
    pairs = re.split(rf",(?=(?:{'|'.join(v.COLUMN_WORDS)})=)", columns)
    return {word: name for word, _, name in (pair.partition("=") for pair in pairs)}


def renamed(row: Mapping[str, Any], columns: str | None) -> dict[str, Any]:
    """A row with its columns under the words that a plan reads them as."""
    words = named(columns) if columns else {}
    return {**row, **{word: value for word, name in words.items() if (value := value_at(row, name)) is not None}}


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or what a path leads to, as the generated column_names.py finds it."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", part):
            value = value[int(part)] if -len(value) <= int(part) < len(value) else None
        else:
            return None
    return value


def guessed(row: Mapping[str, Any], *, compares: bool) -> Guess | None:
    """What the columns of a row may be read as; None where nothing is likely."""
    texts = {name: path for name, value in row.items() if (path := _text_in(name, value)) is not None}
    found = {word: [name for name in texts if _is_called(name, word)] for word in _OTHERS}
    if not found["prompt"] and found["input"]:
        found["prompt"] = found.pop("input")
    talks = [name for name in found.pop("messages") if _is_talk(row[name])]
    answers = ("chosen", "rejected") if compares else ("completion",)
    whole = compares and all(_is_talk(row[name]) for word in answers for name in found[word])
    if talks and not compares:
        return Guess(columns={"messages": talks[0]}, sure=len(talks) == 1)
    needed = answers if whole else ("prompt", *answers)
    if not all(found[word] for word in needed):
        two = not compares and len(texts) == 2
        return Guess(columns=dict(zip(needed, texts.values(), strict=True)), sure=False) if two else None
    wanted = {word: found.get(word, []) for word in ("system", *needed[:1], "input", *needed[1:])}
    names = {word: texts[columns[0]] for word, columns in wanted.items() if columns}
    sure = all(name in row for name in names.values()) and all(len(columns) < 2 for columns in wanted.values())
    return Guess(columns=names, sure=sure)


def _is_called(name: str, word: str) -> bool:
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    return plain in _OTHERS[word] or _LANGUAGE.sub("", plain) in _OTHERS[word]


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _text_in(name: str, value: Any) -> str | None:
    """The path to a text or to messages: the column itself, or the first text of a list. None: it holds neither."""
    if isinstance(value, str) or _is_talk(value):
        return name
    if isinstance(value, list) and value and isinstance(value[0], str):
        return f"{name}.0"
    if isinstance(value, Mapping):
        inner = {key: path for key, held in value.items() if (path := _text_in(f"{name}.{key}", held)) is not None}
        return inner.get("text") or (next(iter(inner.values())) if len(inner) == 1 else None)
    return None
