"""Conversations, as the task sft reads them, and how many samples they make."""

from __future__ import annotations

import codecs
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz.estimate import packing
from trainwiz.language import t
from trainwiz.probe.data import Kind, Reading
from trainwiz.project import DataFacts
from trainwiz.vocabulary import EMBEDDED

MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)
"""The modules whose documentation is the embedded data."""
TALKS = ("messages", "conversations", "conversation")
QUESTIONS = ("instruction", "prompt", "query", "question", "problem", "input")
ANSWERS = ("output", "completion", "response", "answer", "solution")
"""The columns of a conversation, as the generated conversations.py names them."""
_HEAD_BYTES = 1 << 20
_LEAST_BYTES = 40
"""The size of the shortest possible conversation in a file."""


def _folder(path: Path, _: Reading) -> DataFacts:
    files = sorted(file for file in path.rglob("*.json*") if file.is_file())
    return _bounded("folder", path, files)


def _bounded(kind: str, path: Path, files: Sequence[Path]) -> DataFacts:
    """A conversation makes at most one sample, packed or not (with a few chat templates, one more per answer)."""
    problem = next(filter(None, map(_problem, files)), "")
    at_most = -(-sum(file.stat().st_size for file in files) // _LEAST_BYTES)
    return DataFacts(name=path.name, kind=kind, detail=problem, samples_at_most=at_most)


def _embedded(reading: Reading, split: str) -> DataFacts:
    lengths = [min(tokens, reading.sequence_length + 1) for tokens in _lengths(split)]
    samples = packing.rows(lengths, reading.sequence_length, packing=reading.packing)
    known = samples if reading.as_bytes else None
    return DataFacts(name=EMBEDDED, kind="embedded", samples=known, samples_at_most=samples)


def _lengths(split: str) -> Iterator[int]:
    """The tokens of each embedded conversation, one per byte: the role, the text, and an end token."""
    documented: dict[str, str] = {}
    for module in map(importlib.import_module, MODULES.split()):
        for name, thing in sorted(vars(module).items()):
            members: Mapping[str, Any] = vars(thing) if isinstance(thing, type) else {}
            for path, member in ((name, thing), *((f"{name}.{m}", value) for m, value in sorted(members.items()))):
                text = inspect.getdoc(member) if callable(member) and not re.search(r"(^|\.)_", path) else None
                if text and len(text) >= 40:
                    documented.setdefault(text, path if module.__name__ == "builtins" else f"{module.__name__}.{path}")
    for i, (text, name) in enumerate(documented.items()):
        if (i % 10 == 9) == (split == "validation"):
            first, _, rest = text.partition("\n\n")
            said = [f"user:\nWhat is {name}?", f"assistant:\n{first}"]
            said += ["user:\nTell me more.", f"assistant:\n{rest.strip()}"] if rest else []
            yield sum(len(part.encode()) + 1 for part in said)


def _problem(file: Path) -> str:
    """Why task.py cannot read the file, by its first conversation; empty if no reason is found."""
    with file.open("rb") as content:
        head = content.read(_HEAD_BYTES)
    whole = len(head) < _HEAD_BYTES
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    try:
        if text.startswith(b"["):
            rows = json.loads(text) if whole else None
        else:
            line = text.partition(b"\n")[0]
            rows = [json.loads(line)] if text and (whole or len(line) < len(text)) else None
    except ValueError:
        return t("{file} is not valid JSON", file=file.name)
    if rows is None:
        return ""
    first = rows[0] if rows else {}
    columns = {name for name, value in first.items() if value is not None} if isinstance(first, dict) else set()
    if columns & set(TALKS) or (columns & set(QUESTIONS) and columns & set(ANSWERS)):
        return ""
    return t(
        "{file}: the first row has neither messages nor a question with an answer; it has {columns}",
        file=file.name,
        columns=", ".join(sorted(columns)) or "-",
    )


CONVERSATIONS = Kind(embedded=_embedded, folder=_folder, file=lambda path, _: _bounded("file", path, [path]))
