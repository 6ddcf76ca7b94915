"""Which columns hold texts, images and labels, guessed from their names and from the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz import columns
from trainwiz.decide.decision import Decision
from trainwiz.message import say
from trainwiz.quantities import size
from trainwiz.tasks import chat_columns

TEXTS = ("text", "content", "document", "sentence", "review", "body", "article", "comment", "question", "code", "story")
IMAGES = ("image", "file_name", "filename", "image_path", "filepath", "path", "file", "img", "picture", "id")
LABELS = (
    "label",
    "labels",
    "class",
    "category",
    "target",
    "score",
    "rating",
    "stars",
    "sentiment",
    "topic",
    "y",
    "tags",
    "age",
)
"""Usual names, the best first."""
_SHOWN = 60


def decide_columns(d: Decision) -> None:
    """The names of the columns, with what stands there in the first row."""
    _decide_words(d)
    if not d.first or not (d.task.text_column or d.task.backbones):
        for key in ("data.text_column", "data.image_column", "data.label_column"):
            d.settle_default(key, say("the usual name"))
        return
    own, names = ("data.image_column", IMAGES) if d.task.backbones else ("data.text_column", TEXTS)
    other = "data.text_column" if d.task.backbones else "data.image_column"
    d.settle_default(other, say("the usual name"))
    rest = {name: value for name, value in d.first.items() if name != d.answers.get(own)}
    label = called(rest, LABELS) or d.defaults["data.label_column"]
    texts: dict[str, Any] = {name: value for name, value in d.first.items() if isinstance(value, str) and name != label}
    if d.task.backbones:  # tables of datasets hold pictures themselves
        held = {name: value for name, value in d.first.items() if isinstance(value, Mapping) and "bytes" in value}
        texts = held or texts
    text = (
        d.answers.get(own)
        or called(texts, names)
        or max(texts, key=lambda name: len(texts[name]), default=d.defaults[own])
    )
    if d.task.labeled and label not in d.first:
        others = [name for name in d.first if name != text]
        label = others[0] if len(others) == 1 else label
    for key, name in ((own, text), ("data.label_column", label)):
        words = shown(d.first.get(name)) if key == own or d.task.labeled else None
        reason = say("in the first row: {value}", value=words) if words else say("the usual name")
        d.settle(key, name, reason, kind="found" if words else "default")


def _decide_words(d: Decision) -> None:
    """What columns are read as, if their names are not those that task.py knows."""
    guess = chat_columns.guessed(d.first, compares=not d.task.talks) if d.first and d.task.chats else None
    if not guess or not guess.sure or chat_columns.problem(d.first, compares=not d.task.talks) is None:
        d.settle_default("data.columns", say("names that task.py knows, such as prompt and completion"))
        return
    words = "; ".join(f"{name}: {shown(chat_columns.value_at(d.first, name))}" for name in guess.columns.values())
    d.settle("data.columns", guess.spelled, say("in the first row: {value}", value=words), kind="found")


def shown_columns(d: Decision) -> tuple[tuple[str, str], ...]:
    """The columns of the first row, with what stands there."""
    return tuple((name, shown(value) or "") for name, value in d.first.items())


def called(first: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The column with the best of some names; None where none has one."""
    return next((column for name in names for column in first if column.lower() == name), None)


def shown(value: Any) -> str | None:
    """The beginning of a value, on one line."""
    if value is None:
        return None
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):  # a picture, as tables of datasets hold it
        value = f"{value.get('path') or ''} ({size(len(value['bytes']))})"
    text = columns.one_line(str(value)).strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
