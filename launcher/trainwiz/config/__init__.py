"""Configurations that trainwiz did not write: accelerate's YAML and DeepSpeed's JSON, with positions."""

from __future__ import annotations

from trainwiz.config.document import Document, Trouble
from trainwiz.config.kinds import Accelerate, DeepSpeed, kind_of

__all__ = ["Accelerate", "DeepSpeed", "Document", "Trouble", "kind_of", "read"]


def read(path: str, text: str) -> Document:
    """A file's text as a document, by its suffix: JSON for `.json`, else YAML."""
    from trainwiz.config import json_reader, yaml_reader

    return json_reader.read(path, text) if path.endswith(".json") else yaml_reader.read(path, text)
