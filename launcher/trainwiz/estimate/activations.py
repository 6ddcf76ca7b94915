"""Activations: what the forward pass keeps for its backward pass, and the logits that the loss is computed from."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.models import Transformer
from trainwiz.models.activations import (
    Checkpointing,
    input_bytes,
    live_bytes,
    saved_bytes,
    score_gradient_bytes,
)
from trainwiz.models.adapted import Adapters
from trainwiz.models.kept import Arithmetic
from trainwiz.strategies import Strategy
from trainwiz.vocabulary import LOSS_CHUNK

_HALF = ("fp16", "bf16", "fp8")
_LOGIT_BYTES = 12
"""For each token and word: the softmax of the logits and two gradients in fp32, or in 16 bits the logits, a copy in
fp32, its softmax and the last chunk's gradient. The generated loss has as many in each of its forms
(tests/train_templates/test_head_loss.py counts them).
"""
_CAPPED = {"fp32": 4, "autocast": 2, "16-bit": 2}
"""More of them where the model changes its logits: a cap keeps what the hyperbolic tangent made (Gemma 2)."""
_BEHIND_LAYERS = 6
"""Bytes per feature of the last norm: its input in fp32 and its result in 16 bits, beside the logits."""
_IN_FLIGHT = 4
"""Bytes per feature of the gradients that enter and leave a layer in 16 bits while it is computed again."""

_COMPILED = 0.75
"""Of the bytes that only eager layers keep (beside the results of matrix products and attention), what compiled ones
keep: the compiler computes again what is cheap. Chosen between 0 (torchtune's Llama-3.2-3B), 0.6 (litgpt's Llama-2-7B)
and 0.9 (torchtitan's Llama-3.1-8B), on the side of too much.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """How the loss is computed from the last layer's output."""

    logit_bytes: int | None = None
    """Bytes of each token and word of the vocabulary at the peak; None: those of an unfused cross-entropy."""
    tokens_at_once: int | None = LOSS_CHUNK
    """Tokens whose logits are in memory at once; None: all of the micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes of a micro-batch."""

    saved: int = 0
    """Kept by all layers from the forward to the backward pass."""
    logits: int = 0
    """Added where the loss is computed."""
    live: int = 0
    """Added in the backward pass of a layer: where it is computed again, and the gradients of eager attention's scores.
    """
    host: int = 0
    """Host memory for what is offloaded: pinned blocks, whose sizes are powers of two."""

    @property
    def peak(self) -> int:
        """The larger of both moments."""
        return self.saved + max(self.logits, self.live)


def arithmetic(strategy: Strategy, precision: str) -> Arithmetic:
    """How a strategy computes in this precision: what its activations depend on."""
    if precision not in _HALF:
        return "fp32"
    return "autocast" if strategy.autocasts else "16-bit"


# docs/decisions/tasks.md: Families without a kernel of PyTorch's attend by blocks
def keeps_scores(attention: str, model: Transformer | None, *, by_blocks: bool) -> bool:
    """Whether each head's scores of all pairs of tokens are in memory, with this value of `model.attention`.

    `by_blocks`: the generated script may use flex_attention.
    """
    if attention != "auto" or model is None:
        return attention == "eager"
    return model.kernels == "none" or (model.kernels == "blocks" and not by_blocks)


def footprint(
    model: Transformer,
    kind: Arithmetic,
    checkpointing: Checkpointing,
    *,
    tokens: int,
    generates: bool,
    loss: Loss,
    stream_bytes: int | None = None,
    adapters: Adapters | None = None,
    scored: int = 0,
    compiled: bool = False,
    fused: bool = False,
) -> Footprint:
    """What a micro-batch needs, by moment.

    A model that `generates` has logits for each token; others have a few numbers for each sample. With eager attention,
    each token has a score in each head for the `scored` tokens of its row, and a place in the mask, which all layers
    share. Of a model that is `compiled`, or whose layers have `fused` kernels, layers keep less.
    """
    at_once = min(tokens, loss.tokens_at_once or tokens)
    each = loss.logit_bytes if loss.logit_bytes is not None else _LOGIT_BYTES + _CAPPED[kind] * model.changed_logits
    logits = each * at_once * model.vocab_size if generates else 0
    number = 2 if kind == "fp32" else 1
    pinned = 0
    if checkpointing == "offload":
        pinned = model.num_hidden_layers * pinned_bytes(tokens * input_bytes(model, kind, stream_bytes))
    again = (
        0
        if checkpointing == "none"
        else live_bytes(model, kind, scored, adapters=adapters, fused=fused) + number * _IN_FLIGHT * model.hidden_size
    )
    layers = saved_bytes(model, kind, checkpointing, stream_bytes, adapters=adapters, scored=scored, fused=fused)
    if compiled and checkpointing == "none":
        products = saved_bytes(model, kind, "selective", stream_bytes, scored=scored)
        layers -= int((1 - _COMPILED) * max(0, layers - products))
    mask = scored * input_bytes(model, kind, stream_bytes) // model.hidden_size  # in the type of the residual stream
    return Footprint(
        saved=tokens * (layers + mask),
        logits=logits + tokens * _BEHIND_LAYERS * model.hidden_size,
        live=tokens * (again + score_gradient_bytes(model, scored)),
        host=pinned,
    )


def pinned_bytes(size: int) -> int:
    """The block that PyTorch's allocator of pinned memory takes for a size."""
    return 1 << max(0, size - 1).bit_length()
