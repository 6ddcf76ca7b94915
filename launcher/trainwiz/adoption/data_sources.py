"""The data that a training tool's file names, as sources and columns of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainwiz.adoption.ledger import Page, place_of
from trainwiz.config import ToolFile
from trainwiz.config.tools.data_set import TEXT, DataSet, NamedData
from trainwiz.message import say
from trainwiz.tasks.chat_columns import WORDS

SOURCES = ("data.train", "data.eval")
"""The plan's keys, of data for training and for evaluation."""
_ROWS_DECIDE = say("columns are matched by name; for other names set data.columns, then check the first row")
_WHOLE_PARTS = say("a plan reads a whole part or its first rows; to limit it, set data.max_rows")
_NO_SOURCE = say("name the data in data.train and data.eval")
_SAME_COLUMNS = say("a plan reads the same columns of all its data; give the files the same names")


def read(page: Page, tool_file: ToolFile) -> None:
    """Enter the datasets that have a path or an id, and their columns; everything else about them is reported."""
    found = [named for named in tool_file.tool.data(tool_file) if named.sets]
    for named in found:
        _enter(page, tool_file, named)
    _columns(page, tool_file, found)


def is_same(written: object, planned: object) -> bool:
    """Whether a plan's sources are those of a file, although a plan's paths are relative to another folder."""
    if not isinstance(written, str) or not isinstance(planned, str):
        return False
    pairs = list(zip(written.split(", "), planned.split(", "), strict=False))
    return written.count(", ") == planned.count(", ") and all(
        plan == name or plan.endswith(f"/{name.removeprefix('./').lstrip('./~')}") for name, plan in pairs
    )


def _enter(page: Page, tool_file: ToolFile, named: NamedData) -> None:
    plan_key = SOURCES[named.evaluates]
    if plan_key in page.ledger.carried:
        return
    if not all(each.sources for each in named.sets):
        problem = next((each.problem for each in named.sets if each.problem), None)
        page.leave(named.key, "lost", problem or _NO_SOURCE, key=plan_key)
        return
    page.carry(named.key, plan_key, ", ".join(source for each in named.sets for source in each.sources))
    if named.task and not named.evaluates:
        page.carry(named.key, "task", named.task)
    for key in named.with_keys:
        if tool_file.has(key):
            page.same(key)
    place = place_of(tool_file.document, named.key)
    for words in _once(each.beside for each in named.sets):
        page.ledger.add("lost", named.key, words, place, _ROWS_DECIDE, key="data.columns")
    for words in _once(each.fewer for each in named.sets):
        page.ledger.add("lost", named.key, words, place, _WHOLE_PARTS, key="data.max_rows")


def _columns(page: Page, tool_file: ToolFile, found: Sequence[NamedData]) -> None:
    """Enter the columns, which a plan has once for all data; those that are recognized by default need no entry."""
    sets = [each for named in found for each in named.sets if each.sources]
    if not sets:
        return
    key = found[0].key
    texts = {each.columns.get(TEXT, "") for each in sets}
    if len(texts) == 1 and any(texts):
        page.carry(key, "data.text_column", texts.pop())
        return
    for usual in (1, None):  # the first of the names that are read, and any of them
        left = {tuple(_untold(each, usual).items()) for each in sets}
        if len(left) == 1:
            if columns := dict(left.pop()):
                page.carry(key, "data.columns", ",".join(f"{word}={name}" for word, name in columns.items()))
            return
    place = place_of(tool_file.document, key)
    for words in _once([",".join(f"{word}={name}" for word, name in each.columns.items())] for each in sets):
        page.ledger.add("lost", key, words, place, _SAME_COLUMNS, key="data.columns")


def _untold(data: DataSet, usual: int | None) -> Mapping[str, str]:
    return {
        word: name
        for word, name in sorted(data.columns.items(), key=lambda pair: list(WORDS).index(pair[0]))
        if name not in WORDS[word][:usual]
    }


def _once(words: Iterable[Sequence[str]]) -> list[str]:
    return [word for word in dict.fromkeys(word for each in words for word in each) if word]
