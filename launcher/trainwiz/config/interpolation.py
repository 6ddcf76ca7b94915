"""`${key}` in a value, as OmegaConf reads it: another value of the same file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config.document import Document

_USE = re.compile(r"\$\{([\w.]+)\}")
_DEPTH = 8
"""A value that leads through more keys than this leads in a circle."""


def resolved(document: Document) -> Document:
    """The document with every `${key}` replaced whose key is in it; the others stay as they are written."""
    return replace(document, values=_block(document, document.values))


def _block(document: Document, values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _block(document, value) for key, value in values.items()}
    if isinstance(values, list):
        return [_block(document, value) for value in values]
    return _value(document, values, _DEPTH) if isinstance(values, str) else values


def _value(document: Document, text: str, depth: int) -> Any:
    """A value with what it refers to; alone, a reference keeps its type."""
    whole = _USE.fullmatch(text)
    if whole and depth and document.has(whole[1]):
        value = document.get(whole[1])
        return _value(document, value, depth - 1) if isinstance(value, str) else value

    def of_key(use: re.Match[str]) -> str:
        value = document.get(use[1])
        if not depth or not document.has(use[1]) or isinstance(value, (Mapping, list)):
            return use[0]
        return str(_value(document, value, depth - 1) if isinstance(value, str) else value)

    return _USE.sub(of_key, text)
