"""What in an untrusted model folder would hang the program that loads it, fill its memory, or have it fetch code.

No weight is read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.language import t
from trainwiz.probe.headers import header
from trainwiz.quantities import size

MOST_NAMES = 4 << 20
"""Bytes of a header beside any tensors; beyond them, at most one byte in sixteen. As in the generated trust.py."""
_SHARE = 16
MOST_VOCABULARY = 256 << 20
"""Bytes of a vocabulary; the largest ones have 40 MB."""
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "merges.txt", "vocab.txt", "spiece.model")
_LAYERS = ("layers", "layer")
_NAMES_CODE = ("attn_implementation", "experts_implementation")
"""What transformers takes for a repository of the hub if it has a slash: it downloads and runs the code there."""
_BUILDS_NOTHING = "max_window_layers"
"""Of Qwen's families: the layer from which attention has a window; 28 by default, also in smaller models."""


def problem(folder: Path) -> str:
    """Why the folder should not be loaded; empty if no reason is found."""
    try:
        return next(_problems(folder), "")
    except (OSError, ValueError, TypeError, AttributeError, struct.error) as error:
        return str(error)


def _problems(folder: Path) -> Iterator[str]:
    tensors = 0
    for name in sorted(os.listdir(folder)):
        file = folder / name
        if file.is_dir():
            continue
        if not file.is_file():
            yield t("{file} is not a regular file", file=name)
        length = file.stat().st_size
        if name in _VOCABULARIES and length > MOST_VOCABULARY:
            yield t("{file} is larger than any vocabulary ({size})", file=name, size=size(length))
        elif file.suffix == ".safetensors":
            with files.opened(file) as content:
                names = int.from_bytes(content.read(8), "little")
            if names > MOST_NAMES + length // _SHARE:
                yield t("the names at the start of {file} take {size}", file=name, size=size(names))
            tensors += len(header(file))
        elif file.suffix == ".json" and name not in _VOCABULARIES:
            files.read_json(file)
    config = files.read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    for path, value in _values(config):
        key = path[-1]
        if isinstance(value, str) and "/" in value and any(name.endswith(_NAMES_CODE) for name in path):
            yield t(
                "{key} in config.json names code on the hub: {value}", key=".".join(filter(None, path)), value=value
            )
        elif tensors and type(value) is int and key.endswith(_LAYERS) and key != _BUILDS_NOTHING and value > tensors:
            yield t(
                "{key} is {n} in config.json, but the weight files contain {tensors} tensors",
                key=key,
                n=value,
                tensors=tensors,
            )


def _values(config: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values in a configuration and those inside it, each with the keys that lead to it."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _values(value, (*above, str(key)))
        else:
            yield (*above, str(key)), value
