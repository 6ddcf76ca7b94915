"""What is read from the first row of the data, and which columns are only a guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainwiz.decide.columns import IMAGES, LABELS, TEXTS, called, shown
from trainwiz.decide.decision import Decision
from trainwiz.decide.first_sample import turns
from trainwiz.message import Message, say
from trainwiz.tasks import chat_columns
from trainwiz.vocabulary import EMBEDDED

_NUMBERS = ("id", "idx", "index", "nr", "no", "number", "unnamed: 0", "")
"""Names of columns that number the rows."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a column is read as."""

    role: Message | str
    """A word of this program (text, label), of the data (user) or of data.columns (prompt)."""
    column: str
    """Empty for a message of a conversation."""
    text: str
    """The beginning of what stands there; empty where the first row lacks it."""


def parts(d: Decision) -> tuple[Part, ...]:
    """What is read from the first row of a person's own data; nothing where it is unknown or cannot be read."""
    if not d.first or d.values["data.train"] == EMBEDDED:
        return ()
    if d.task.chats:
        return _of_talk(d)
    return tuple(
        Part(role=role, column=column, text=shown(d.first.get(column)) or "")
        for key, role in _roles(d).items()
        for column in _named(d, key)
    )


def guessed(d: Decision) -> frozenset[str]:
    """The keys of columns whose names say nothing, so that the user should see how they are read."""
    if not d.first or d.values["data.train"] == EMBEDDED:
        return frozenset()
    if d.task.chats:
        lacks = chat_columns.problem(d.first, compares=not d.task.talks)
        return frozenset({"data.columns"} if lacks in ("talk", "answers") else ())
    usual = {"data.text_column": TEXTS, "data.image_column": IMAGES, "data.label_column": LABELS}
    keys = _roles(d)
    return frozenset(key for key in keys if len(d.first) > len(keys) - 1 and called(d.first, usual[key]) is None)


def proposed(d: Decision) -> Mapping[str, str]:
    """What the keys of columns may be where nothing says so for sure: the user decides."""
    keys = guessed(d)
    if "data.columns" in keys and not d.values["data.columns"]:
        guess = chat_columns.guessed(d.first, compares=not d.task.talks)
        return {"data.columns": guess.spelled} if guess else {}
    if "data.label_column" in keys and (labels := _labels(d)):
        return {"data.label_column": labels}
    return {}


def _labels(d: Decision) -> str:
    """The last column, as in most tables, or all columns of 0 and 1; empty where the plan names one that exists."""
    if all(name in d.first for name in _named(d, "data.label_column")):
        return ""
    own = {d.values[key] for key in _roles(d) if key != "data.label_column"}
    others = [name for name in d.first if name not in own and name.lower() not in _NUMBERS]
    flags = [name for name in others if d.task.several_columns and str(d.first[name]) in ("0", "1", "True", "False")]
    return ",".join(flags or others[-1:])


def _roles(d: Decision) -> Mapping[str, Message]:
    """The keys of the columns that the task reads."""
    read: dict[str, Message] = {}
    if d.task.backbones:
        read["data.image_column"] = say("image")
    elif d.task.text_column:
        read["data.text_column"] = say("text")
    if read and d.task.labeled:
        read["data.label_column"] = say("label")
    return read


def _named(d: Decision, key: str) -> list[str]:
    name = d.values[key]
    several = key == "data.label_column" and d.task.several_columns and name not in d.first
    return [each.strip() for each in name.split(",")] if several else [name]


def _of_talk(d: Decision) -> tuple[Part, ...]:
    spelled = d.values["data.columns"]
    row = chat_columns.renamed(d.first, spelled)
    if d.task.talks and (talk := turns(row)) and not spelled:
        return tuple(Part(role=f"{turn.role}{'*' * turn.learned}", column="", text=turn.text) for turn in talk)
    if chat_columns.problem(row, compares=not d.task.talks) is not None and not spelled:
        return ()
    named = chat_columns.named(spelled) if spelled else dict(_usual(row))
    return tuple(
        Part(role=word, column=name, text=shown(chat_columns.value_at(d.first, name)) or "")
        for word, name in named.items()
    )


def _usual(row: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for word, names in chat_columns.WORDS.items():
        if name := next((name for name in names if row.get(name) is not None), None):
            yield word, name
