"""The data that a training tool's file names, as sources of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwiz.adoption.ledger import Page, place_of
from trainwiz.config import ToolFile
from trainwiz.message import say

_LOADERS = frozenset({"json", "csv", "parquet", "text", "arrow"})
"""Names that stand for a kind of files: the files themselves are in data_files."""
_READ = frozenset({"path", "name", "split", "data_files", "ds_type"})
"""Keys of an entry that a source of a plan has, too."""
_TRAIN, _EVAL = ("pretraining_dataset", "datasets"), ("test_datasets",)
_ROWS_DECIDE = say("columns are matched by name; for other names set data.columns, then check the first row")
_WHOLE_PARTS = say("a plan reads a whole part or its first rows; to limit it, set data.max_rows")
_KEYS = ("data.columns", "data.max_rows")
_NO_SOURCE = say("name the data in data.train and data.eval")


def read(page: Page, tool_file: ToolFile) -> None:
    """Enter the data sets that have a path or an id; what else is said of them is named."""
    for key in _TRAIN:
        _enter(page, tool_file, key, "data.train")
    for key in _EVAL:
        _enter(page, tool_file, key, "data.eval")
    name = tool_file.get("dataset_name")
    if isinstance(name, str) and _is_source(name):
        parts = [tool_file.get("dataset_config"), tool_file.get("dataset_train_split")]
        page.carry("dataset_name", "data.train", _source(name, *parts))
        for key in ("dataset_config", "dataset_train_split"):
            if tool_file.has(key):
                page.same(key)
        part = tool_file.get("dataset_test_split")
        if isinstance(part, str) and part:
            page.carry("dataset_test_split", "data.eval", _source(name, parts[0], part))


def _enter(page: Page, tool_file: ToolFile, key: str, plan_key: str) -> None:
    said = tool_file.get(key)
    entries: Sequence[Any] = said if isinstance(said, list) else [said] if said else []
    found = [_of_entry(entry) for entry in entries]
    if not entries or plan_key in page.ledger.carried:
        return
    if not all(found):
        page.leave(key, "lost", _NO_SOURCE, key=plan_key)
        return
    page.carry(key, plan_key, ", ".join(source for sources in found for source in sources))
    if key == "pretraining_dataset":
        page.carry(key, "task", "causal_lm")
    place = place_of(tool_file.document, key)
    for words in _beside(entries):
        part = words.startswith("split: ")
        page.ledger.add("lost", key, words, place, _WHOLE_PARTS if part else _ROWS_DECIDE, key=_KEYS[part])


def _of_entry(entry: Any) -> list[str]:
    """The sources that an entry stands for; none where one has no name that a plan takes."""
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, Mapping):
        return []
    files = entry.get("data_files")
    paths = files if isinstance(files, list) else [files] if files else []
    if entry.get("path") not in _LOADERS and not paths:
        paths = [entry.get("path")]
        subset, part = entry.get("name"), entry.get("split")
    elif entry.get("path") in _LOADERS:
        subset, part = None, None
    else:
        return []  # some files of a data set of the hub
    if not paths or not all(isinstance(path, str) and _is_source(path) for path in paths):
        return []
    return [_source(path, subset, part) for path in paths]


def _beside(entries: Sequence[Any]) -> Iterator[str]:
    """What the entries say that no source has, each once."""
    rest = {
        f"{key}: {value}": None
        for entry in entries
        if isinstance(entry, Mapping)
        for key, value in entry.items()
        if key not in _READ and value not in (None, "", [], {})
    }
    rest |= {
        f"split: {entry['split']}": None
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("split") and not _is_part(entry["split"])
    }
    yield from rest


def _source(path: str, subset: Any, part: Any) -> str:
    if "/" not in path or path.startswith((".", "/", "~")) or re.search(r"\.\w+$", path):
        return path  # files: their names say which part they are
    words = [path, subset if isinstance(subset, str) else "", part if _is_part(part) and part != "train" else ""]
    return ":".join(words).rstrip(":")


def _is_part(part: Any) -> bool:
    return isinstance(part, str) and re.fullmatch(r"[\w.-]+", part) is not None


def _is_source(path: str) -> bool:
    """Whether a plan can name it: no address of a cloud, and nothing that separates sources."""
    return bool(path) and "://" not in path and not re.search(r"[,:]|\s$|^\s", path)
