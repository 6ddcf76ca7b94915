"""Files of accelerate and DeepSpeed, and plans: found in a folder, read with whatever is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainwiz import config, files
from trainwiz.config import Document, Problem
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.quantities import size as in_units

SUFFIXES = (".yaml", ".yml", ".json", *config.SHELL_SUFFIXES)
_LARGEST = 1_000_000
"""Bytes; no configuration is that long, and a dataset may be."""
_MARKS = (
    "distributed_type:",
    "deepspeed_config:",
    "fsdp_config:",
    '"zero_optimization"',
    '"train_micro_batch_size_per_gpu"',
)
"""Words that only these files contain, even if they are cut off."""
_PASSED_BY = {"node_modules", "runs", "site-packages", "__pycache__", "wandb", "checkpoints"}
_DEEPEST = 6


def read(path: str) -> Document:
    """The document in a file, with its problem where it cannot be read. Raises `UsageError` for no such file."""
    try:
        size = os.stat(path).st_size
        if size > _LARGEST:
            problem = Problem(say("the file has {size}, too large for a configuration", size=in_units(size)))
            return Document(path=path, text="", syntax=config.syntax_of(path), problem=problem)
        return _decoded(path, files.read_bytes(path))
    except OSError as error:
        raise UsageError(say("{file} cannot be read: {problem}", file=path, problem=error.strerror)) from None


def _decoded(path: str, raw: bytes) -> Document:
    try:
        return config.read(path, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = raw.decode("utf-8", errors="replace")
        problem = Problem(
            say("byte {byte} is not valid UTF-8", byte=f"0x{raw[error.start]:02x}"),
            len(raw[: error.start].decode("utf-8", errors="replace")),
            say("save the file as UTF-8"),
        )
        return Document(path=path, text=text, syntax=config.syntax_of(path), problem=problem)


def readable(document: Document) -> Document:
    """The document. Raises `UsageError`, with the line, where it cannot be read."""
    if document.problem is None:
        return document
    place = document.at_character(document.problem.at)
    message = say(
        "{file}:{line}:{column}: {problem}",
        file=document.path,
        line=place.line,
        column=place.column,
        problem=document.problem.message,
    )
    raise UsageError(message, document.problem.fix, place=place)


def find(folder: str, plan_file: str, read: Callable[[str], Document] = read) -> tuple[list[str], list[Document]]:
    """The projects below a folder, and the configurations outside them, by what is in them.

    A project's own files follow from its plan. Hidden folders and those of runs are left out.
    """
    projects, found = [], []
    for here, folders, names in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        if plan_file in names:
            projects.append(os.path.normpath(here))
            folders[:], names = [], []
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _PASSED_BY and depth < _DEEPEST)
        for name in sorted(names):
            path = os.path.normpath(os.path.join(here, name))
            if name.endswith(SUFFIXES) and not name.startswith(".") and _may_be_one(path):
                document = read(path)
                if config.kind_of(document) in ("accelerate", "deepspeed", "tool_file") or _broken(document):
                    found.append(document)
    return projects, found


def _broken(document: Document) -> bool:
    """Whether a file cannot be read and is still plainly meant for accelerate or DeepSpeed."""
    return document.problem is not None and any(mark in document.text for mark in _MARKS)


def default_path() -> str:
    """Where accelerate looks for its file by default."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    folder = os.path.join(home, "accelerate")
    yaml_file, json_file = (os.path.join(folder, f"default_config.{suffix}") for suffix in ("yaml", "json"))
    return json_file if os.path.exists(json_file) and not os.path.exists(yaml_file) else yaml_file


def resolve(named: str, by: str) -> str | None:
    """The file that a configuration names, as seen from here, from beside that configuration, or from above it.

    A repository's files name each other from its root, and nobody needs to check them from there.
    """
    above = [str(parent / named) for parent in files.resolved(by).parents]
    beside = os.path.join(os.path.dirname(by), named)
    return next((path for path in (named, beside, *above) if os.path.isfile(path)), None)


def text_of(named: str, by: str) -> tuple[str, str] | None:
    """A file that a configuration names, with its text; None where there is none that can be read."""
    found = resolve(named, by)
    try:
        return (found, files.read_text(found)) if found and _may_be_one(found) else None
    except (OSError, UnicodeDecodeError):
        return None


def _may_be_one(path: str) -> bool:
    try:
        return os.path.isfile(path) and os.path.getsize(path) <= _LARGEST
    except OSError:
        return False
