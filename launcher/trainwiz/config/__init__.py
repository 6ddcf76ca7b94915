"""Plans, and configurations that trainwiz did not write: YAML and JSON, with the position of each value."""

from __future__ import annotations

import re
from typing import Literal

from trainwiz.config import interpolation, json_reader, kinds, shell_reader, yaml_reader
from trainwiz.config.document import Document, Problem
from trainwiz.config.kinds import Accelerate, DeepSpeed, Kind
from trainwiz.config.spelling import nearest
from trainwiz.config.tools import ToolFile, tool_of
from trainwiz.vocabulary import PLAN_SECTIONS

__all__ = [
    "Accelerate",
    "DeepSpeed",
    "Document",
    "Problem",
    "ToolFile",
    "kind_of",
    "meant_as_plan",
    "read",
    "syntax_of",
    "tool_of",
]


def read(path: str, text: str) -> Document:
    """A file's text as a document."""
    readers = {"json": json_reader.read, "shell": shell_reader.read, "yaml": yaml_reader.read}
    syntax = syntax_of(path)
    if syntax == "yaml" and text.lstrip().startswith("{"):
        # DeepSpeed's file is read as JSON whatever its name; in YAML, 2e8 would be a word.
        document = json_reader.read(path, text)
        if document.problem is None and kinds.kind_of(document) == "deepspeed":
            return document
    document = readers[syntax](path, text)
    if syntax == "yaml" and "${" in text and (tool := tool_of(document)) and tool.interpolates:
        return interpolation.resolved(document)
    return document


SHELL_SUFFIXES = (".sh", ".sbatch", ".slurm")
"""What the names of shell scripts end with."""


def syntax_of(path: str) -> Literal["yaml", "json", "shell"]:
    """By the end of a file's name; YAML where it says nothing."""
    if path.endswith(SHELL_SUFFIXES):
        return "shell"
    return "json" if path.endswith(".json") else "yaml"


def kind_of(document: Document) -> Kind:
    """What a document is, by the keys in it."""
    return "tool_file" if tool_of(document) else kinds.kind_of(document)


_OBJECTS = re.compile(r"^[ \t]*(?:- )?[\"']?(?:class_path|_target_)[\"']?[ \t]*:", re.MULTILINE)


def meant_as_plan(document: Document) -> bool:
    """Whether a YAML file of no known kind can only be a plan with mistakes: most of its keys are a plan's, or near.

    One that names classes to be built (Lightning's command line, litgpt, Hydra) is another program's.
    """
    if _OBJECTS.search(document.text):
        return False
    keys = [key for key in document.values if isinstance(key, str)]
    near = sum(nearest(key, PLAN_SECTIONS) is not None for key in keys)
    return document.syntax == "yaml" and document.problem is None and near * 2 > len(keys)
