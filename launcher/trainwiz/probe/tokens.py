"""The tokens that a plan adds: which of them the model's tokenizer lacks, and what they make of the model's size."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz import files
from trainwiz.probe.cache import HubCache
from trainwiz.probe.data import located
from trainwiz.project import ModelFacts

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "added_tokens.json", "tokenizer_config.json")
"""Where tokenizers list their tokens."""
_LARGEST = 1 << 28
"""Bytes of such a file; Gemma 3's has 33 MB."""
_LISTS = ("tokenizer.json", "vocab.json", "vocab.txt")
"""Those that list all but some that were added; without one of them nothing is known."""


def missing(plan: Plan, root: Path, cache: HubCache) -> tuple[str, ...]:
    """The tokens of the plan that are in no file of the tokenizer; none where its files are not here."""
    wanted = plan.data.all_tokens
    if not wanted:
        return ()
    folder = located(root, plan.model.name)
    places = [folder / name if folder.is_dir() else cache.file("models", plan.model.name, name) for name in _FILES]
    found = {place.name: text for place in places if place and (text := _text(place))}
    if found.keys().isdisjoint(_LISTS):
        return ()
    return tuple(
        token for token in wanted if not any(form in text for text in found.values() for form in _forms(token))
    )


def _text(place: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"\n{files.read_text(place, most=_LARGEST)}\n"
    return ""


def _forms(token: str) -> tuple[str, ...]:
    """How files write a token: in JSON with or without escapes, or alone in a line."""
    return json.dumps(token), json.dumps(token, ensure_ascii=False), f"\n{token}\n"


def enlarged(model: ModelFacts, tokens: int) -> ModelFacts:
    """The model with a row for each new token in its embeddings, and in its head where that is another table."""
    shape = model.transformer
    if not tokens or shape is None or model.parameters is None:
        return model
    rows = tokens * shape.hidden_size
    head = rows if shape.head_weights else 0
    larger = replace(
        shape,
        vocab_size=shape.vocab_size + tokens,
        embedding_weights=shape.embedding_weights + rows,
        head_weights=shape.head_weights + head,
    )
    return replace(model, transformer=larger, parameters=model.parameters + rows + head)
