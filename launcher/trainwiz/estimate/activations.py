"""Activations: what the forward pass of a transformer keeps for its backward pass, in bytes."""

from __future__ import annotations

from trainwiz.strategies import Strategy
from trainwiz.tasks.shapes import ModelShape


def activation_bytes_per_token(shape: ModelShape, *, half: bool) -> int:
    """Bytes of one token over all layers, with fused attention and nothing computed twice; 0 where nobody measured.

    h hidden, k key and value, i intermediate size. Under autocast in 16 bits a Llama block keeps 30 h + 4 k + 8 i +
    4 heads bytes (10 h less where the weights are 16 bits, too), in fp32 32 h + 8 k + 16 i + 4 heads; a GPT-2 block
    with its dropout 64 h and 120 h. Source: the tensors that autograd saves, counted with transformers 5.23
    (tests/estimate/test_estimate.py). The loss is computed in chunks and is not in it.
    """
    hidden, inner, heads = shape.hidden_size, shape.intermediate_size, shape.num_attention_heads
    key_value = hidden // heads * shape.num_key_value_heads
    match shape.model_type:
        case "llama" if half:
            block = 30 * hidden + 4 * key_value + 8 * inner + 4 * heads
        case "llama":
            block = 32 * hidden + 8 * key_value + 16 * inner + 4 * heads
        case "gpt2":
            block = (64 if half else 120) * hidden
        case _:
            block = 0
    return shape.num_hidden_layers * block


def cast_bytes(strategy: Strategy, parameters: int, precision: str) -> int:
    """Bytes of the 16-bit copy of the weights that autocast keeps beside fp32 ones on each rank."""
    return 2 * parameters if precision != "no" and strategy.autocasts else 0
