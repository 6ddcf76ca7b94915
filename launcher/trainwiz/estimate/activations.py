"""Activations: what the forward pass keeps for its backward pass, and the logits that the loss is computed from."""

from __future__ import annotations

from trainwiz.models import Transformer
from trainwiz.models.activations import Arithmetic, Checkpointing, activation_bytes
from trainwiz.strategies import Strategy

LOGIT_CHUNK = 1024
"""Tokens whose logits are in memory at once: `loss_chunk` of the generated task.py."""
_HALF = ("fp16", "bf16", "fp8")
_LOGIT_BYTES = {"fp32": 12, "autocast": 14, "16-bit": 14}
"""Of each token and word: logits, in 16 bits also a copy in fp32, their softmax and their gradient.

Unfused cross-entropy holds 12 to 14 bytes per logit at its peak (seen on fake tensors with torch 2.13).
"""


def arithmetic(strategy: Strategy, precision: str) -> Arithmetic:
    """How a strategy computes in this precision: what its activations depend on."""
    if precision not in _HALF:
        return "fp32"
    return "autocast" if strategy.autocasts else "16-bit"


def forward_bytes(
    model: Transformer, kind: Arithmetic, checkpointing: Checkpointing, *, samples: int, length: int, generates: bool
) -> int:
    """Bytes of a micro-batch at its peak: activations of all layers, and the logits of one chunk.

    A model that `generates` has logits for each token; others have a few numbers for each sample.
    """
    tokens = samples * length
    at_once = tokens if model.changed_logits else min(tokens, LOGIT_CHUNK)
    logits = _LOGIT_BYTES[kind] * at_once * model.vocab_size if generates else 0
    return tokens * activation_bytes(model, kind, checkpointing) + logits
