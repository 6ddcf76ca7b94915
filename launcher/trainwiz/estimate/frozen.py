"""How many parameters `model.frozen` leaves out of the training, by the names that transformers gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from trainwiz.models import Transformer
from trainwiz.models.transformer import Block

_Names = Mapping[str, Sequence[str]]
_LLAMA: _Names = {
    "table": ("model.embed_tokens.weight",),
    "layer": ("model.layers",),
    "attention": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "output": ("self_attn.o_proj.weight",),
    "mlp": ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"),
    "norm": ("input_layernorm.weight",),
    "head": ("lm_head.weight",),
    "last": ("model.norm.weight",),
}
_GPT2: _Names = {
    "table": ("transformer.wte.weight", "transformer.wpe.weight"),
    "layer": ("transformer.h",),
    "attention": ("attn.c_attn.weight",),
    "output": ("attn.c_proj.weight",),
    "mlp": ("mlp.c_fc.weight", "mlp.c_proj.weight"),
    "norm": ("ln_1.weight",),
    "head": ("lm_head.weight",),
    "last": ("transformer.ln_f.weight",),
}
_BERT: _Names = {
    "table": ("bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight"),
    "layer": ("bert.encoder.layer",),
    "attention": ("attention.self.query.weight", "attention.self.key.weight", "attention.self.value.weight"),
    "output": ("attention.output.dense.weight",),
    "mlp": ("intermediate.dense.weight", "output.dense.weight"),
    "norm": ("output.LayerNorm.weight",),
    "head": ("classifier.weight",),
    "last": ("bert.pooler.dense.weight",),
}
_FAMILIES: Mapping[str, _Names] = {"gpt2": _GPT2, "bert": _BERT}
"""By `model_type`; all others have Llama's names."""


def frozen_parameters(model: Transformer, patterns: Sequence[str]) -> int:
    """The parameters whose names have one of these parts, `*` standing for anything, as the generated frozen.py does.

    A part that is in no name of this family counts as nothing: the estimate is then too high, never too low.
    """
    return sum(count for name, count in named(model) if _freezes(patterns, name))


def head_is_frozen(model: Transformer, patterns: Sequence[str]) -> bool:
    """Whether the output layer is among them; where it shares the embedding's weights, it has their name."""
    names = _FAMILIES.get(model.model_type, _LLAMA)
    return _freezes(patterns, names["table" if model.tied else "head"][0])


def _freezes(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, f"*{pattern.strip()}*") for pattern in patterns)


def named(model: Transformer) -> Iterator[tuple[str, int]]:
    """Names of parameters with their numbers; what is small in a layer has one name."""
    names = _FAMILIES.get(model.model_type, _LLAMA)
    tokens, *positions = names["table"]
    learned = (model.max_position_embeddings or 0) * model.hidden_size if positions else 0
    yield tokens, model.embedding_weights - learned
    yield from ((name, learned) for name in positions)
    number = 0
    for block in model.blocks:
        for _ in range(block.count):
            for name, count in _of_layer(model, block, names):
                yield f"{names['layer'][0]}.{number}.{name}", count
            number += 1
    yield names["last"][0], model.small_weights
    yield names["head"][0], model.head_weights


def _of_layer(model: Transformer, block: Block, names: _Names) -> Iterator[tuple[str, int]]:
    sizes = [block.query_size, block.key_value_size, block.key_value_size]
    inputs, output = names["attention"], model.hidden_size * block.query_size
    rest = max(0, block.attention_weights - output)
    parts = sizes if len(inputs) == len(sizes) else [1]
    for name, part in zip(inputs, parts, strict=True):
        yield name, rest * part // sum(parts)
    yield names["output"][0], min(output, block.attention_weights)
    for name in names["mlp"]:
        yield name, block.mlp_weights // len(names["mlp"])
    yield names["norm"][0], block.small_weights
