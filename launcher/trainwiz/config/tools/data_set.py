"""The data that a training tool's file names, as a plan would name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz.message import Message, say

TEXT = "text"
"""The word of `DataSet.columns` for the texts of documents; the others are those of a plan's data.columns."""
_FILE = re.compile(r"\.\w+$")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One entry: files, a folder or a dataset of the hub, and what is said of its rows."""

    sources: tuple[str, ...] = ()
    """Its names in a plan; empty if a plan cannot name it."""
    problem: Message | None = None
    """Why a plan cannot name it, where there is more to say."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The column that is read as each word."""
    beside: tuple[str, ...] = ()
    """What else the file says about its columns and messages, as `key: value`."""
    fewer: tuple[str, ...] = ()
    """What the file says about which rows count, as `key: value`."""


@dataclass(frozen=True, kw_only=True)
class NamedData:
    """The datasets under one key of a file."""

    key: str
    """The file's key."""
    evaluates: bool = False
    """Whether they are for evaluation."""
    sets: tuple[DataSet, ...] = ()
    """The datasets, in order."""
    task: str = ""
    """The task that they mean; empty where another key says it."""
    with_keys: tuple[str, ...] = ()
    """Other keys of the file that say more of them."""


def listed(value: Any) -> list[Any]:
    """A value as a list; nothing is an empty one."""
    return value if isinstance(value, list) else [value] if value else []


def of_hub(path: Any, subset: Any = None, part: Any = None, **rest: Any) -> DataSet:
    """A dataset under its id, or a file or folder under its path; a part counts only where it is a name."""
    if not is_source(path):
        return DataSet()
    fewer = () if part is None or part == "" or is_part(part) else (f"split: {part}",)
    return DataSet(sources=(_source(path, subset, part),), fewer=fewer, **rest)


def of_model_scope(name: str) -> DataSet:
    """A dataset of another hub than that of Hugging Face."""
    why = say("{name} is an id of ModelScope; name the data by files, or by an id of the Hugging Face hub", name=name)
    return DataSet(problem=why)


def is_source(path: Any) -> bool:
    """Whether a plan can name it: no address of a cloud, and nothing that separates sources."""
    return isinstance(path, str) and bool(path) and "://" not in path and not re.search(r"[,:]|\s$|^\s", path)


def is_file(path: str) -> bool:
    """Whether it looks like a path, and not like the id of a dataset."""
    return "/" not in path or path.startswith((".", "/", "~")) or _FILE.search(path) is not None


def is_part(part: Any) -> bool:
    """Whether it is the name of a part, and not a piece of one."""
    return isinstance(part, str) and re.fullmatch(r"[\w.-]+", part) is not None


def _source(path: str, subset: Any, part: Any) -> str:
    if is_file(path):
        return path  # files: their names say which part they are
    words = [path, subset if isinstance(subset, str) else "", part if is_part(part) and part != "train" else ""]
    return ":".join(words).rstrip(":")


def said(values: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    """What a mapping says beyond its known keys, as `key: value`."""
    return tuple(f"{key}: {value}" for key, value in values.items() if key not in known and value not in _NOTHING)


_NOTHING: tuple[Any, ...] = (None, "", [], {}, False)
