"""What one layer keeps of a token for the backward pass, in bytes, by family.

Fused attention (scaled_dot_product_attention or flash-attn) keeps no scores; eager attention keeps those of each head
and pair of tokens (`scored` is the number of tokens that each one has scores for; 0: attention is fused). Source: the
tensors that autograd saves, counted with transformers 5.23 and fitted over nine sizes of each family;
tests/models/test_activations.py counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trainwiz.models import adapted
from trainwiz.models.adapted import Adapters
from trainwiz.models.kept import LOGARITHMS, Arithmetic, Kept, Row
from trainwiz.models.transformer import Block, Transformer

Checkpointing = Literal["none", "selective", "full", "offload"]
"""Of `offload`, each layer keeps its input alone, as of `full`, and host memory holds it until the backward pass."""
_ROUTED: Mapping[Arithmetic, int] = {"fp32": 12, "autocast": 12, "16-bit": 6}
"""Bytes per feature of each copy of a token that an expert is given: what enters it, what leaves it, and that times the
router's weight.
"""
_SCORES: Mapping[Arithmetic, int] = {"fp32": 4, "autocast": 6, "16-bit": 6}
"""Bytes per head and pair of tokens: the softmax in fp32, and what is cast to 16 bits of it."""
_SOFTMAX_AS_IT_COMES = ("gpt2", "bert", "roberta", "xlm-roberta")
"""Families whose eager attention does not ask for a softmax in fp32: it is in 16 bits where the weights are."""
_FUSED_NORM = 4
"""Bytes per feature that a norm in one kernel does not keep: the input in fp32 beside its own in 16 bits, or in fp32
the normalized numbers beside the input.
"""
_FUSED_FROZEN_NORM: Mapping[Arithmetic, int] = {"fp32": 0, "autocast": 2, "16-bit": 2}
"""The same of a norm that is not trained: its input in 16 bits, and not in fp32."""
_FUSED_GATE: Mapping[Arithmetic, int] = {"fp32": 4, "autocast": 2, "16-bit": 2}
"""Bytes per intermediate feature that a gated MLP in one kernel does not keep: the gate behind its nonlinearity.

Source of both: `save_for_backward` in ops/rms_norm.py and ops/swiglu.py of liger-kernel 0.8.
"""
_NORMS_OF_HEADS = ("qwen3",)
"""Families of those with fused kernels that normalize queries and keys, too."""
_SCORES_IN_BACKWARD = 8
"""Bytes per head and pair of tokens: the gradient behind the softmax and the one before it, in fp32."""


def _row(fp32: Kept, autocast: Kept, half: Kept) -> Row:
    return {"fp32": fp32, "autocast": autocast, "16-bit": half}


_LLAMA = _row(Kept(24, 8, 8, 16), Kept(26, 4, 4, 8), Kept(16, 4, 4, 8))
_QWEN3 = _row(Kept(24, 16, 16, 16), Kept(26, 10, 10, 8), Kept(16, 10, 10, 8))
_GEMMA = _row(Kept(24, 8, 8, 16), Kept(26, 4, 4, 8), Kept(20, 4, 4, 8))
_GEMMA3 = _row(Kept(40, 16, 16, 16), Kept(42, 12, 12, 8), Kept(36, 12, 12, 8))
_GLM4 = _row(Kept(40, 12, 8, 16), Kept(36, 6, 4, 8), Kept(28, 6, 4, 8))
_OLMO2 = _row(Kept(24, 16, 16, 16), Kept(26, 12, 12, 8), Kept(20, 12, 12, 8))
_GPT_NEOX = _row(Kept(32, 8, 0, 8), Kept(18, 4, 0, 4), Kept(16, 4, 0, 4))
_BERT = _row(Kept(32, 8, 0, 8), Kept(24, 4, 0, 4), Kept(16, 4, 0, 4))

_ROWS: Mapping[str, Row] = {
    "llama": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma": _GEMMA,
    "gemma2": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4": _GLM4,
    "olmo": _row(Kept(16, 8, 8, 16), Kept(18, 4, 4, 8), Kept(12, 4, 4, 8)),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "phi3": _row(Kept(28, 12, 12, 16), Kept(22, 6, 6, 8), Kept(18, 6, 6, 8)),
    "cohere": _row(Kept(16, 8, 8, 16), Kept(22, 4, 4, 8), Kept(14, 4, 4, 8)),
    "stablelm": _row(Kept(20, 8, 8, 16), Kept(20, 4, 4, 8), Kept(10, 4, 4, 8)),
    "starcoder2": _row(Kept(16, 8, 8, 8), Kept(16, 4, 4, 4), Kept(8, 4, 4, 4)),
    "phi": _row(Kept(20, 8, 0, 20), Kept(18, 4, 0, 10), Kept(10, 4, 0, 10)),
    "gpt2": _row(Kept(32, 8, 0, 20), Kept(20, 4, 0, 10), Kept(16, 4, 0, 10)),
    "gpt_neox": _GPT_NEOX,
    "opt": _row(Kept(32, 8, 0, 4), Kept(24, 4, 0, 2), Kept(16, 4, 0, 2)),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}


def layer_bytes(
    model: Transformer,
    block: Block,
    arithmetic: Arithmetic,
    scored: int = 0,
    *,
    fused: bool = False,
    adapters: Adapters | None = None,
) -> int:
    """Bytes that one layer keeps of one token when nothing is computed again.

    A family that nobody counted is taken for Llama, or for GPT-NeoX if its MLP has no gate. `fused`: its norms and its
    gated MLP are one kernel each. `adapters`: nothing else is trained.
    """
    row = _ROWS.get(model.model_type) or (_LLAMA if block.gated else _GPT_NEOX)
    if adapters is None:
        kept = row[arithmetic].of(block, model.hidden_size)
    else:
        kept = adapted.kept_bytes(model, block, arithmetic, adapters)
    kept += _routed_bytes(model, block, arithmetic, adapters)
    spared = _spared_bytes(model, block, arithmetic, frozen=adapters is not None) if fused else 0
    return kept + _eager_bytes(model, block, arithmetic, scored) - spared


def _spared_bytes(model: Transformer, block: Block, arithmetic: Arithmetic, *, frozen: bool) -> int:
    """What fused kernels do not keep of one token: two norms of the residual stream, those of the heads, the gate."""
    heads = block.query_size + block.key_value_size if model.model_type in _NORMS_OF_HEADS else 0
    gate = _FUSED_GATE[arithmetic] * block.intermediate_size if block.gated else 0
    norm = _FUSED_FROZEN_NORM[arithmetic] if frozen else _FUSED_NORM
    return norm * (2 * model.hidden_size + heads) + gate


def _routed_bytes(model: Transformer, block: Block, arithmetic: Arithmetic, adapters: Adapters | None) -> int:
    """Of experts that are not trained only what leaves them is kept, for the router's weights."""
    third = 1 if adapters is not None and not adapters.on_mlp else 3
    return _ROUTED[arithmetic] * block.routed * model.hidden_size * third // 3


def _eager_bytes(model: Transformer, block: Block, arithmetic: Arithmetic, scored: int) -> int:
    """What eager attention adds: scores, and keys and values that were repeated for each head of their queries."""
    if not scored:
        return 0
    number = 4 if arithmetic == "fp32" else 2
    as_it_comes = arithmetic == "16-bit" and model.model_type in _SOFTMAX_AS_IT_COMES
    each = number if as_it_comes else _SCORES[arithmetic]
    return each * block.heads * scored + 2 * number * (block.query_size - block.key_value_size)


def saved_bytes(
    model: Transformer,
    arithmetic: Arithmetic,
    checkpointing: Checkpointing,
    stream_bytes: int | None = None,
    *,
    adapters: Adapters | None = None,
    scored: int = 0,
    fused: bool = False,
) -> int:
    """Bytes of one token that the forward pass leaves behind, over all layers.

    `stream_bytes` is the size of a number of the residual stream where it is not the usual one of this arithmetic:
    weights in 16 bits leave it in 16 bits under autocast, too. `adapters`: nothing else is trained.
    """
    if checkpointing == "none":
        return sum(
            block.count * layer_bytes(model, block, arithmetic, scored, fused=fused, adapters=adapters)
            for block in model.blocks
        )
    stream = input_bytes(model, arithmetic, stream_bytes)
    if checkpointing == "offload":  # of the layer that is computed
        return stream if model.blocks else 0
    extra = 0 if checkpointing == "full" else 1
    return sum(block.count * (stream + extra * _selected(model, block, arithmetic, scored)) for block in model.blocks)


def input_bytes(model: Transformer, arithmetic: Arithmetic, stream_bytes: int | None = None) -> int:
    """Bytes of one token that enter a layer."""
    return (stream_bytes or (2 if arithmetic == "16-bit" else 4)) * model.hidden_size


def live_bytes(
    model: Transformer,
    arithmetic: Arithmetic,
    scored: int = 0,
    *,
    adapters: Adapters | None = None,
    fused: bool = False,
) -> int:
    """Bytes of one token that the largest layer takes while it is computed again.

    Beside `adapters` it keeps less, as everywhere, but the gradients on their way through its MLP take about as much:
    254,000 bytes of a token in a layer of Mistral 7B, by the slope between micro-batches of fms-acceleration's rows,
    where a trained layer keeps 258,000 and one with adapters on attention 188,000.
    """
    kept = (
        layer_bytes(model, block, arithmetic, scored, fused=fused)
        - _routed_bytes(model, block, arithmetic, None)
        + _routed_bytes(model, block, arithmetic, adapters)
        for block in model.blocks
    )
    return max(kept, default=0)


def score_gradient_bytes(model: Transformer, scored: int) -> int:
    """Bytes of one token for the gradients of the scores, in the backward pass of the largest layer."""
    return _SCORES_IN_BACKWARD * scored * max((block.heads for block in model.blocks), default=0)


def _selected(model: Transformer, block: Block, arithmetic: Arithmetic, scored: int) -> int:
    """What `selective` checkpointing keeps beside a layer's input."""
    number = 4 if arithmetic == "fp32" else 2
    # Queries, keys, values, and what attention makes of them.
    attention = 2 * block.query_size + 2 * block.key_value_size
    projected = 2 * model.hidden_size + block.intermediate_size * (2 if block.gated else 1)
    return number * (attention + projected + scored * block.heads) + LOGARITHMS * block.heads
