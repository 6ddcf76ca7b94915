"""Columns of conversations and preferences: the names that task.py reads, and what other names may mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz import vocabulary as v

WORDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation"),
    "system": ("system", "system_prompt"),
    "tools": ("tools", "functions"),
    "history": ("history",),
    "prompt": ("instruction", "prompt", "query", "question", "problem"),
    "input": ("input", "context"),
    "completion": ("output", "completion", "response", "answer", "solution", "target"),
    "chosen": ("chosen", "chosen_response", "chosen_messages", "preferred_output", "preferred"),
    "rejected": ("rejected", "rejected_response", "rejected_messages", "non_preferred_output", "dispreferred"),
    "label": ("label", "kto_tag"),
}
_RATINGS = frozenset({"overall_score", "score", "rating", "rank"})
"""What says how good each of several answers is, as the generated preferences.py knows it."""
ASIDE: Mapping[str, tuple[str, ...]] = {"prompt": ("messages",), "completion": ("messages", "chosen", "rejected")}
"""What columns can be read as, and what is not read beside a word that a plan names: as in column_names.py."""
TALKS, ANSWERS = WORDS["messages"], WORDS["completion"]
QUESTIONS = (*WORDS["prompt"], "input")
CHOSEN, REJECTED, LABELS = WORDS["chosen"], WORDS["rejected"], WORDS["label"]
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "system": ("system", "system_prompt", "system_message", "系统", "系统提示", "系统提示词"),
    "messages": (*TALKS, "dialogue", "dialog", "chat", "turns", "trajectory", "对话"),
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
            "std_answer",
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
"""Names in other datasets, the best first, in lower case and without a language suffix."""
_PAIRED = {"source": ("target", "tgt"), "src": ("target", "tgt"), "user": ("assistant", "bot")}
"""Names of a prompt that elsewhere say where a row comes from or whose it is, and the answers that they go with."""
_ABOUT_ROWS = re.compile(
    r"(^|_)(id|uuid|idx|index|key|hash|url|class|category|type|kind|topic|domain|label|split|lang|language|tags?|level"
    r"|difficulty|task|dataset|source)$"
)
_LANGUAGE = re.compile(r"_(zh|cn|en|chinese|english|text|str|content)$")


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What columns may be read as."""

    columns: Mapping[str, str]
    """A column for each word, or a path into one."""
    sure: bool
    """Whether each has a usual name, no other column has, and its content fits."""

    @property
    def spelled(self) -> str:
        """As a plan has it."""
        return ",".join(f"{word}={name}" for word, name in self.columns.items())


def problem(row: Mapping[str, Any], *, compares: bool) -> str | None:
    """What a row lacks: talk, answers or label. None: nothing."""
    there = {name for name, value in row.items() if value is not None}
    if not compares:
        answers = there & set(ANSWERS)
        answers = answers - {"target"} or answers  # task.py reads it only where there is no other
        lists = [name for name in answers if _are_texts(row[name])]  # which of them is the answer?
        asked = there & set(TALKS) or (there & set(QUESTIONS) and answers and not lists)
        return None if asked else "talk"
    if there & set(REJECTED) and there & {*CHOSEN, *TALKS, *ANSWERS}:  # the usual answer may be the chosen one
        return None
    return "label" if there & set(LABELS) and not there & {*CHOSEN, *REJECTED} else "answers"


def rated(row: Mapping[str, Any]) -> str | None:
    """The column that holds several answers with a rating each, as UltraFeedback has them."""
    for name, value in row.items():
        parts = (
            [part.keys() if isinstance(part, Mapping) else set() for part in value] if isinstance(value, list) else []
        )
        if parts and all(names & _RATINGS and not names & {"role", "from"} for names in parts):
            return name
    return None


def named(columns: str) -> dict[str, str]:
    """The column that a plan reads as each word."""
    pairs = re.split(rf",(?=(?:{'|'.join(v.COLUMN_WORDS)})=)", columns)
    return {word: name for word, _, name in (pair.partition("=") for pair in pairs)}


def renamed(row: Mapping[str, Any], columns: str | None) -> dict[str, Any]:
    """A row with its columns under the words that a plan reads them as, as the generated column_names.py gives it."""
    names = named(columns) if columns else {}
    replaced = {*names, *(other for word in names for other in ASIDE.get(word, ()))}
    gone = {name for word in replaced for name in WORDS[word]}
    gone |= {name if name in row else name.partition(".")[0] for name in names.values()}
    rest = {name: value for name, value in row.items() if name not in gone}
    return rest | {word: value for word, name in names.items() if (value := value_at(row, name)) is not None}


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
    texts = {name: path for name, path in texts.items() if _is_spelled(name)}
    found = {word: [name for name in texts if _is_called(name, word)] for word in _OTHERS}
    names = {_plain(name) for name in row}
    found["prompt"] = [name for name in found["prompt"] if names & {*_PAIRED.get(_plain(name), names)}]
    if not found["prompt"] and found["input"]:
        found["prompt"] = found.pop("input")
    talks = [name for name in found.pop("messages") if _is_talk(row[name])]
    answers = ("chosen", "rejected") if compares else ("completion",)
    whole = compares and all(_is_whole(row[name]) for word in answers for name in found[word])
    if talks and not compares:
        return Guess(columns={"messages": talks[0]}, sure=len(talks) == 1)
    found["messages"] = talks
    asked = "messages" if talks and not found["prompt"] else "prompt"  # before answers that are compared
    needed = answers if whole else (asked, *answers)
    if not all(found[word] for word in needed):
        others = [name for name in texts if not any(name in names for names in found.values()) and name not in talks]
        known = [name for word in needed for name in found[word][:1]]
        if compares or len(texts) != 2 or len(known) + len(others) != 2 or any(map(_is_about_row, others)):
            return None
        rest = iter(others)
        guess = {word: texts[found[word][0] if found[word] else next(rest)] for word in needed}
        return Guess(columns=guess, sure=False)
    wanted = {word: found.get(word, []) for word in ("system", *needed[:1], "input", *needed[1:])}
    paths = {word: texts[columns[0]] for word, columns in wanted.items() if columns}
    sure = all(path in row for path in paths.values()) and all(len(columns) < 2 for columns in wanted.values())
    return Guess(columns=paths, sure=sure)


def _is_spelled(name: str) -> bool:
    """Whether a plan can name this column: it takes no lines, and no spaces at the ends."""
    return name.isprintable() and name == name.strip() and named(f"prompt={name}") == {"prompt": name}


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _is_about_row(name: str) -> bool:
    """Whether a column numbers, names or sorts rows, rather than asking or answering."""
    return _ABOUT_ROWS.search(_plain(name)) is not None


def _is_called(name: str, word: str) -> bool:
    plain = _plain(name)
    return plain in _OTHERS[word] or _LANGUAGE.sub("", plain) in _OTHERS[word]


def _is_talk(value: Any) -> bool:
    if isinstance(value, str):  # a table may hold messages as JSON text
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else None
        except (ValueError, RecursionError):
            return False
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _is_whole(value: Any) -> bool:
    """Whether it is a conversation that begins with a question."""
    if not isinstance(value, list) or not _is_talk(value):
        return False
    return value[0].get("role", value[0].get("from")) not in ("assistant", "gpt", "bot", "model")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


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
