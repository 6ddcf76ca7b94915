"""Attention within the documents of long rows, without a mask of all pairs of positions.

Such a mask has positions × positions numbers for each row of a micro-batch: 1 GiB for 32,768 positions, and four times
as much if it is added to the scores. The code here processes blocks or single documents at a time.
"""

from __future__ import annotations

import os

# feature: long_cpu
from itertools import pairwise

# end: long_cpu
from typing import Any

import torch
import transformers
from torch import Tensor, nn

# feature: long_gpu
from attention import agrees, shapes_of

# end: long_gpu
LONGEST_MASK = 4096
"""Positions of a row up to which a mask is small, and cheaper than another kernel."""
# feature: long_cpu
QUERIES = 1024
"""Positions that attend at once, if a window lets each see only some of those before it."""
# end: long_cpu
# feature: long_gpu
BLOCK = 128
"""Positions on each side of a block of flex attention."""
# end: long_gpu


def avoid_mask(model: Any, length: int, needs_mask: bool) -> None:
    """Make a model attend without a mask if its rows are long. Print why if it cannot.

    Where transformers has no kernel for a family (Gemma 2, GPT-OSS), scores of all pairs are there in any row.
    """
    config = model.config.get_text_config()
    is_long = length > LONGEST_MASK
    if not is_long and config._attn_implementation != "eager":
        return
    if config._attn_implementation in ("flash_attention_2", "by_document"):
        return
    dropout = getattr(config, "attention_dropout", 0) or getattr(config, "attn_pdrop", 0)
    replaceable = not dropout and not needs_mask
    # feature: long_cpu
    if config._attn_implementation == "sdpa" and model._supports_attention_backend and replaceable:
        transformers.AttentionInterface.register("each_document", attend_each)
        config._attn_implementation = "each_document"
        return
    # end: long_cpu
    # feature: long_gpu
    if model._supports_flex_attn and replaceable and torch.cuda.is_available() and flex_agrees(config):
        config._attn_implementation = "flex_attention"
        return
    # end: long_gpu
    if is_long and os.environ.get("RANK", "0") == "0":
        size = length**2 * (4 if config._attn_implementation == "eager" else 1) / 2**30
        why = f"attention dropout {dropout}" if dropout else f"{config._attn_implementation} attention"
        print(
            f"{type(model).__name__} ({why}) needs a mask of {length:,} × {length:,} places, {size:.1f} GiB, for each"
            " row of a micro-batch; a smaller sequence_length or flash-attn on a GPU avoids that",
            flush=True,
        )


# feature: long_cpu
def document_bounds(positions: Tensor) -> Tensor:
    """Return where documents begin, counted over all rows, and where the last one ends."""
    starts = (positions.flatten() == 0).nonzero().flatten()
    return nn.functional.pad(starts, (0, 1), value=positions.numel())


def attend_each(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    **told: Any,
) -> tuple[Tensor, None]:
    """Attend within one document after another. Shapes: (1, heads, positions, width) each."""
    window, found = told.get("sliding_window") or query.shape[2], []
    for begin, end in pairwise(told["cu_seq_lens_q"].tolist()):
        if end - begin <= window:
            found.append(attend(query, key, value, begin, end, begin, told))
            continue
        for first in range(begin, end, QUERIES):
            seen = max(begin, first - window + 1)  # the first position that any of these sees
            last = min(first + QUERIES, end)
            place = torch.arange(seen, last)
            before = place[first - seen :, None] - place
            found.append(attend(query, key, value, first, last, seen, told, (before >= 0) & (before < window)))
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None  # as transformers' own


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
    """Make the positions from `first` to `last` attend to those from `seen`."""
    used = query[:, :, first:last], key[:, :, seen:last], value[:, :, seen:last]
    return nn.functional.scaled_dot_product_attention(
        *used, mask, is_causal=mask is None, scale=told.get("scaling"), enable_gqa=query.shape[1] != key.shape[1]
    )


# end: long_cpu
# feature: long_gpu
def block_mask(begin: Tensor, window: int | None = None) -> Any:
    """Return the blocks that flex attention computes: (rows, positions / 128, positions / 128).

    `begin` (rows, positions) says where each position's document begins. Nothing here waits for the device.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = begin.shape[1]
    window = window or length
    block = torch.arange(-(-length // BLOCK), device=begin.device)
    first, last = block * BLOCK, (block * BLOCK + BLOCK - 1).clamp(max=length - 1)
    seen = begin[:, first].maximum(first - window + 1)[:, :, None]  # by the first position of a block, the smallest
    touched = (block <= block[:, None]) & (last >= seen)
    full = (block < block[:, None]) & (first >= begin[:, last][:, :, None]) & (last[:, None] - first < window)

    def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (key >= begin[row, query]) & (query - key < window)

    return BlockMask.from_kv_blocks(
        *listed(touched & ~full),
        *listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(length, length),
    )


def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks are chosen for each row of blocks, and their numbers, the chosen ones first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1).int()[:, None], order.int()[:, None]


def flex_agrees(config: Any, device: str = "cuda") -> bool:
    """Return whether flex attention can be compiled here, and gives the same result as a mask on two documents."""
    begin = (torch.arange(256, device=device) >= 100) * 100

    def kernel(*parts: Tensor) -> Tensor:
        found: Tensor = transformers.AttentionInterface()["flex_attention"](
            nn.Identity(), *parts, block_mask(begin[None])
        )[0]
        return found

    try:
        return all(agrees(kernel, shape, begin) for shape in set(shapes_of(config)))
    except Exception as error:  # of the compiler, Triton, or a GPU that is too old
        print(f"flex attention does not work here: {type(error).__name__}: {error}"[:300], flush=True)
        return False


# end: long_gpu
