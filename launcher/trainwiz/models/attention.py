"""The attention of a layer: its matrices, and the norms over queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.models.sizes import Config, Sizes


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one layer. Sizes are numbers of features, weights are numbers of parameters."""

    query_size: int
    """Width of all queries of a token together."""
    key_value_size: int
    """Width of all keys of a token together."""
    weights: int
    """Of its matrices."""
    small: int = 0
    """Of the norms inside it."""


def grouped(sizes: Sizes) -> Attention:
    """Four matrices; several heads may share a key and a value."""
    queries, keys = sizes.query_size, sizes.key_value_size
    return Attention(queries, keys, 2 * sizes.hidden_size * (queries + keys))


def latent(config: Config, sizes: Sizes) -> Attention:
    """DeepSeek's: keys and values are projected down to a latent vector and up again, and queries may be."""
    heads, hidden = sizes.heads, sizes.hidden_size
    down, rotary = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    plain, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    query, query_down = heads * (plain + rotary), int(config.get("q_lora_rank") or 0)
    queries = query_down * (hidden + query) if query_down else hidden * query
    keys = hidden * (down + rotary) + down * heads * (plain + value)
    weights = queries + keys + heads * value * hidden
    return Attention(query, heads * (plain + rotary), weights, down + query_down)
