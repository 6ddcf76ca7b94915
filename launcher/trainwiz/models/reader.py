"""From a config.json to a `Transformer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainwiz.models import attention, mlps
from trainwiz.models.families import FAMILIES, Family
from trainwiz.models.sizes import Config, Sizes, sizes
from trainwiz.models.transformer import Block, Transformer

_LOGIT_SETTINGS = (
    *("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"),
    *("logits_mup_width_multiplier", "logits_soft_cap", "output_logit_soft_cap", "unpadded_vocab_size"),
)
"""As in logits.py of a generated project."""

MOST_PARAMETERS = 10**14
"""As a plan takes them (`model.parameters`)."""


def of_config(config: Config) -> Transformer | None:
    """The transformer that a config.json describes; None where it gives no sizes.

    Of a model that reads pictures or sound, too, the language model alone. A family without a row counts as Llama's,
    which is what most are close to, with experts and latent attention where its keys say so; `exact` says that. Of an
    encoder with a decoder neither is read.
    """
    if config.get("is_encoder_decoder") is True:
        return None
    text = config["text_config"] if isinstance(config.get("text_config"), Mapping) else config
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = FAMILIES.get(model_type)
    try:
        row = family or _unnamed(text)
    except (TypeError, ValueError, OverflowError):
        return None
    values = {**row.defaults, **{key: value for key, value in text.items() if value is not None}} if family else text
    found = sizes(values)
    if found is None:
        return None
    try:
        made = _transformer(model_type, values, found, row, exact=family is not None and text is config)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return made if made.parameters <= MOST_PARAMETERS else None


def _unnamed(config: Config) -> Family:
    """A family without a row."""
    return replace(
        FAMILIES["llama"],
        latent=bool(config.get("kv_lora_rank")),
        experts=mlps.unnamed(config),
        dense_layer=mlps.any_layout,
    )


def _transformer(model_type: str, config: Config, found: Sizes, row: Family, *, exact: bool) -> Transformer:
    hidden, tied = found.hidden_size, row.tied(config)
    positions = row.positions(found.positions or 0) if row.positions else 0
    head = 0 if tied or row.head == "none" else hidden * found.vocab_size
    return Transformer(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=found.vocab_size,
        max_position_embeddings=found.positions,
        blocks=_blocks(config, found, row),
        embedding_weights=(found.vocab_size + positions + row.segments(config)) * hidden,
        head_weights=head + (found.vocab_size if row.head == "bias" else 0),
        small_weights=row.final_norms * row.norm_numbers * hidden + (hidden * (hidden + 1) if row.pooler else 0),
        tied=tied,
        learned_positions=row.positions is not None,
        exact=exact,
        kernels=row.kernels,
        changed_logits=any(config.get(name) not in (None, 1.0) for name in _LOGIT_SETTINGS),
    )


def _blocks(config: Config, found: Sizes, row: Family) -> tuple[Block, ...]:
    counted: dict[Block, int] = {}
    for layer in range(found.layers):
        block = _block(config, found, row, layer)
        counted[block] = counted.get(block, 0) + 1
    return tuple(replace(block, count=count) for block, count in counted.items())


def _block(config: Config, found: Sizes, row: Family, layer: int) -> Block:
    gated = row.gated(config)
    if row.experts and not row.dense_layer(config, layer):
        mlp = row.experts.mlp(config, found)
    else:
        mlp = mlps.dense(found, gated=gated, bias=row.mlp_bias(config))
    attended = attention.latent(config, found) if row.latent else attention.grouped(found)
    norms = row.norms(config) * row.norm_numbers * found.hidden_size
    return Block(
        count=1,
        heads=found.heads,
        query_size=attended.query_size,
        key_value_size=attended.key_value_size,
        intermediate_size=mlp.width,
        gated=gated,
        attention_weights=attended.weights,
        mlp_weights=mlp.weights,
        active_mlp_weights=mlp.active,
        routed=mlp.routed,
        joined_weights=mlp.joined,
        joined_features=mlp.joined_features,
        small_weights=norms + attended.small + mlp.biases + _attention_small(config, found, row),
        window=_window(config, row, layer),
    )


def _attention_small(config: Config, found: Sizes, row: Family) -> int:
    """Biases of the attention, its norms over queries and keys, and its sinks."""
    biases = (found.query_size + 2 * found.key_value_size) * row.qkv_bias(config)
    biases += found.hidden_size * row.output_bias(config)
    normed = {
        "": 0,
        "head": 2 * found.head_size,
        "heads": found.query_size + found.key_value_size,
        "width": found.query_size + found.key_value_size,
    }[row.query_key_norm]
    return biases + normed * row.has_query_key_norm(config) + found.heads * row.sinks


def _window(config: Config, row: Family, layer: int) -> int | None:
    size: Any = config.get("sliding_window")
    if type(size) is not int or size <= 0:
        return None
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return size if kinds[layer] == "sliding_attention" else None
    return size if row.window(config, layer) else None
