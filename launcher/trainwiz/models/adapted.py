"""What one layer keeps of a token where only adapters (LoRA) are trained, in bytes, by family.

A frozen norm keeps its input alone and a frozen matrix nothing, since neither needs a gradient of its weights; each
adapter keeps its input. Source: the tensors that autograd saves, counted with transformers 5.23 and peft 0.21 and
fitted over five sizes of each family; tests/models/test_adapted.py counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainwiz.models.kept import Arithmetic, Kept, Row
from trainwiz.models.transformer import Block, Transformer

EVERYWHERE = "all-linear"
"""The value of `model.lora_targets` that means each linear layer."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """How many matrices of a layer have an adapter, by what they read."""

    attention: int
    """The residual stream, for attention: queries, keys and values, or all in one."""
    output: int
    """What attention makes."""
    inner: int
    """The residual stream, for the MLP: its gate, and the other."""
    down: int
    """What the MLP makes inside."""
    inputs_kept: bool = False
    """Frozen matrices keep their inputs all the same."""

    @property
    def on_mlp(self) -> bool:
        """Whether a matrix of the MLP has one."""
        return self.inner + self.down > 0


def _row(fp32: Kept, autocast: Kept, half: Kept) -> Row:
    return {"fp32": fp32, "autocast": autocast, "16-bit": half}


_LLAMA = _row(Kept(8, 8, 8, 12), Kept(8, 4, 4, 6), Kept(8, 4, 4, 6))
_GPT_NEOX = _row(Kept(20, 8, 0, 4), Kept(12, 4, 0, 2), Kept(10, 4, 0, 2))
_GEMMA3 = _row(Kept(16, 12, 12, 12), Kept(16, 8, 8, 6), Kept(16, 8, 8, 6))
_QWEN3 = _row(Kept(8, 12, 12, 12), Kept(8, 8, 8, 6), Kept(8, 8, 8, 6))
_BERT = _row(Kept(24, 8, 0, 4), Kept(16, 4, 0, 2), Kept(12, 4, 0, 2))
_FROZEN: Mapping[str, Row] = {
    "llama": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma2": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4": _row(Kept(16, 8, 8, 12), Kept(16, 4, 4, 6), Kept(16, 4, 4, 6)),
    "olmo2": _QWEN3,
    "olmo3": _QWEN3,
    "phi3": _row(Kept(8, 12, 12, 12), Kept(8, 6, 6, 6), Kept(8, 6, 6, 6)),
    "stablelm": _row(Kept(8, 8, 8, 12), Kept(8, 4, 4, 6), Kept(4, 4, 4, 6)),
    "starcoder2": _row(Kept(8, 8, 8, 4), Kept(8, 4, 4, 2), Kept(4, 4, 4, 2)),
    "phi": _row(Kept(12, 8, 0, 16), Kept(8, 4, 0, 8), Kept(6, 4, 0, 8)),
    "gpt2": _row(Kept(24, 8, 0, 16), Kept(16, 4, 0, 8), Kept(12, 4, 0, 8)),
    "gpt_neox": _GPT_NEOX,
    "opt": _BERT,
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}
"""Without the inputs of adapters. Under autocast, with frozen weights in fp32: a LayerNorm in 16 bits keeps 4 bytes of
each feature less.
"""

_JOINED: Mapping[str, tuple[int, int]] = {"phi3": (1, 1), "glm4": (3, 1), "gpt2": (1, 1), "gpt_neox": (1, 1)}
"""Families with one matrix for queries, keys and values, or for the gate and the other."""
_SHARED: Mapping[str, tuple[int, int, int]] = {
    "cohere": (1, 0, 1),
    "phi": (1, 1, 1),
    "phi3": (2, 1, 1),
    "glm4": (2, 1, 1),
    "stablelm": (2, 1, 1),
    "gpt_neox": (2, 1, 1),
    "opt": (2, 0, 0),
}
"""Inputs that are not kept anyway, where no adapter makes a copy of its own: of norms that matrices read, of what
attention makes, and of what the MLP makes inside.
"""
_OTHERS = (2, 0, 1)
_ROLES: Mapping[str, tuple[str, ...]] = {
    "q": ("q_proj", "query", "q_a_proj", "q_b_proj"),
    "k": ("k_proj", "key", "kv_a_proj_with_mqa"),
    "v": ("v_proj", "value", "kv_b_proj"),
    "joined": ("qkv_proj", "query_key_value", "c_attn", "Wqkv"),
    "o": ("o_proj", "out_proj", "dense"),
    "gate": ("gate_proj", "w1"),
    "up": ("up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "w3"),
    "down": ("down_proj", "fc2", "dense_4h_to_h", "w2"),
}
"""Names of linear layers; any other may be every one of a layer's."""


def adapters(model: Transformer, targets: str, *, inputs_kept: bool = False) -> Adapters:
    """The matrices of a layer that adapters on `targets` (`model.lora_targets`) are for."""
    gated = any(block.gated for block in model.blocks)
    attention, inner = _JOINED.get(model.model_type, (3, 2 if gated else 1))
    names = {name.strip().rpartition(".")[2] for name in targets.split(",")}
    roles = {role for role, known in _ROLES.items() if names & set(known)}
    if targets != EVERYWHERE and names <= {name for known in _ROLES.values() for name in known}:
        attention = 1 if "joined" in roles else min(attention, len(roles & {"q", "k", "v"}))
        inner = min(inner, len(roles & {"gate", "up"}))
        return Adapters(attention, "o" in roles, inner, "down" in roles, inputs_kept)
    return Adapters(attention, 1, inner, 1, inputs_kept)


def kept_bytes(model: Transformer, block: Block, arithmetic: Arithmetic, found: Adapters) -> int:
    """Bytes that one layer keeps of one token, without the copies that are given to experts."""
    row = _FROZEN.get(model.model_type) or (_LLAMA if block.gated else _GPT_NEOX)
    return row[arithmetic].of(block, model.hidden_size) + _input_bytes(model, block, arithmetic, found)


def _input_bytes(model: Transformer, block: Block, arithmetic: Arithmetic, found: Adapters) -> int:
    """Under autocast, each adapter keeps a copy of its own in 16 bits; otherwise they share one of what they read."""
    number = 4 if arithmetic == "fp32" else 2
    every = Adapters(1, 1, 1, 1)
    if arithmetic != "autocast":
        return number * _shared(model, block, every if found.inputs_kept else found)
    read = model.hidden_size * (found.attention + found.inner)
    own = read + block.query_size * found.output + block.intermediate_size * found.down
    return number * (own + (_shared(model, block, every) if found.inputs_kept else 0))


def _shared(model: Transformer, block: Block, found: Adapters) -> int:
    """Features of the inputs that are kept for adapters alone."""
    norms, output, down = _SHARED.get(model.model_type, _OTHERS)
    read = min(norms, (found.attention > 0) + (found.inner > 0))
    inside = block.intermediate_size * min(down, found.down)
    return model.hidden_size * read + block.query_size * min(output, found.output) + inside
