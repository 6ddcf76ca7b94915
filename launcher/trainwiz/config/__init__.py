"""Plans, and configurations that trainwiz did not write: YAML and JSON, with the position of each value."""

from __future__ import annotations

from typing import Literal

from trainwiz.config import json_reader, yaml_reader
from trainwiz.config.document import Document, Trouble
from trainwiz.config.kinds import Accelerate, DeepSpeed, kind_of

__all__ = ["Accelerate", "DeepSpeed", "Document", "Trouble", "kind_of", "read", "syntax_of"]


def read(path: str, text: str) -> Document:
    """A file's text as a document."""
    return json_reader.read(path, text) if syntax_of(path) == "json" else yaml_reader.read(path, text)


def syntax_of(path: str) -> Literal["yaml", "json"]:
    """JSON for a file whose name ends in `.json`, else YAML."""
    return "json" if path.endswith(".json") else "yaml"
