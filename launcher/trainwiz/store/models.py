"""Folders with a trained model: what their configuration says, without loading any weight."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import files

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_WEIGHTS = {_CONFIG: ("model.safetensors", "model.safetensors.index.json"), _ADAPTER: ("adapter_model.safetensors",)}
"""The files that transformers reads, without pickles, by what the folder holds."""
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of transformers' class names for models that generate text."""


def is_model(folder: Path) -> bool:
    """Whether `from_pretrained` finds something in the folder: a model, or an adapter."""
    kind = next((name for name in (_ADAPTER, _CONFIG) if (folder / name).is_file()), None)
    return kind is not None and any((folder / name).is_file() for name in _WEIGHTS[kind])


def adapter(folder: Path) -> Mapping[str, Any]:
    """The settings of an adapter; empty for a folder that holds none."""
    return _read(folder / _ADAPTER)


def classes(folder: Path) -> tuple[str, ...]:
    """The classes of transformers that the folder's configuration names."""
    named = _read(folder / _CONFIG).get("architectures")
    return tuple(map(str, named)) if isinstance(named, list) else ()


def writes_text(folder: Path) -> bool:
    """Whether its model writes text: one of a class for that, or an adapter of one."""
    settings = adapter(folder)
    if settings:
        return settings.get("task_type") in (None, "CAUSAL_LM")
    return any(name.endswith(_WRITERS) for name in classes(folder))


def _read(file: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        value = files.read_json(file)
        return value if isinstance(value, dict) else {}
    return {}
