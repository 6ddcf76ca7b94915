"""The sizes that nearly every config.json gives, whatever its family calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

_NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "key_value_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
    "head_size": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
}
_LARGEST = 10**9
"""Of any of them. What a config.json says beyond is no size, and computing with it has no end."""
_MOST_LAYERS = 10_000
_NEEDED = ("hidden_size", "layers", "heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of features, layers, heads, tokens and positions."""

    hidden_size: int
    """Features of the residual stream."""
    layers: int
    """Transformer layers."""
    heads: int
    """Attention heads of a layer."""
    key_value_heads: int
    """Of a layer; fewer than `heads` where several queries share a key."""
    head_size: int
    """Features of one head."""
    intermediate_size: int
    """Width of the MLP; four times the hidden size where config.json does not say."""
    vocab_size: int
    """Rows of the embedding."""
    positions: int | None
    """The longest sequence, in tokens; None: config.json sets no limit."""

    @property
    def query_size(self) -> int:
        """Width of all queries of a token together."""
        return self.heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all keys of a token together."""
        return self.key_value_heads * self.head_size


def sizes(config: Config) -> Sizes | None:
    """The sizes in a config.json; None where one is missing, or is not a positive number that a model can have."""
    found = {name: _number(config, keys) for name, keys in _NAMES.items()}
    if not all(found[name] for name in _NEEDED) or (found["layers"] or 0) > _MOST_LAYERS:
        return None
    hidden, heads = found["hidden_size"] or 0, found["heads"] or 0
    key_value_heads = found["key_value_heads"] or heads
    if "multi_query" in config and not config.get("new_decoder_architecture"):
        # Falcon and StarCoder: all heads share one key and one value, or none do.
        key_value_heads = 1 if config["multi_query"] else heads
    return Sizes(
        hidden_size=hidden,
        layers=found["layers"] or 0,
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=found["head_size"] or hidden // heads,
        intermediate_size=found["intermediate_size"] or 4 * hidden,
        vocab_size=found["vocab_size"] or 0,
        positions=found["positions"],
    )


def _number(config: Config, names: tuple[str, ...]) -> int | None:
    found = (config[name] for name in names if type(config.get(name)) is int)
    return next((number for number in found if 0 < number <= _LARGEST), None)
