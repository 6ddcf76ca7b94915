"""Attention within the documents of long rows, without a mask of all pairs of places.

Such a mask has places × places numbers for each row of a micro-batch: 1 GiB for 32,768 places, and four times as much
where it is added to the scores. No more than blocks or single documents are looked at here.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor, nn

LONGEST_MASK = 4096
"""Places of a row up to which a mask is small, and cheaper than another kernel."""
QUERIES = 1024
"""Places that attend at once, where a window lets each see only some of those before it."""


def avoid_mask(model: Any, length: int) -> None:
    """Let a model attend without a mask if its rows are long. Say so where it cannot."""
    config = model.config.get_text_config()
    if length <= LONGEST_MASK or config._attn_implementation in ("flash_attention_2", "by_document"):
        return
    dropout = getattr(config, "attention_dropout", 0) or getattr(config, "attn_pdrop", 0)
    if config._attn_implementation == "sdpa" and model._supports_attention_backend and not dropout:
        transformers.AttentionInterface.register("each_document", attend_each)
        config._attn_implementation = "each_document"
        return
    if os.environ.get("RANK", "0") == "0":
        size = length**2 * (4 if config._attn_implementation == "eager" else 1) / 2**30
        why = f"attention dropout {dropout}" if dropout else f"{config._attn_implementation} attention"
        print(
            f"{type(model).__name__} ({why}) needs a mask of {length:,} × {length:,} places, {size:.1f} GiB, for each"
            " row of a micro-batch; a smaller sequence_length or flash-attn on a GPU avoids that",
            flush=True,
        )


def document_bounds(positions: Tensor) -> Tensor:
    """Return where documents begin, over all rows, and where the last one ends."""
    starts = (positions.flatten() == 0).nonzero().flatten()
    return nn.functional.pad(starts, (0, 1), value=positions.numel())


def attend_each(
    _module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: None, **told: Any
) -> tuple[Tensor, None]:
    """Attend within one document after another. Shapes: (1, heads, places, width) each."""
    window, found = told.get("sliding_window") or query.shape[2], []
    for begin, end in pairwise(told["cu_seq_lens_q"].tolist()):
        if end - begin <= window:
            found.append(attend(query, key, value, begin, end, begin, told))
            continue
        for first in range(begin, end, QUERIES):
            seen = max(begin, first - window + 1)  # the first place that any of these sees
            last = min(first + QUERIES, end)
            place = torch.arange(seen, last)
            before = place[first - seen :, None] - place
            found.append(attend(query, key, value, first, last, seen, told, (before >= 0) & (before < window)))
    return torch.cat(found, dim=2).transpose(1, 2), None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first: int,
    last: int,
    seen: int,
    told: dict[str, Any],
    mask: Tensor | None = None,
) -> Tensor:
    """Let the places from `first` to `last` attend to those from `seen`."""
    used = query[:, :, first:last], key[:, :, seen:last], value[:, :, seen:last]
    return nn.functional.scaled_dot_product_attention(
        *used, mask, is_causal=mask is None, scale=told.get("scaling"), enable_gqa=query.shape[1] != key.shape[1]
    )
