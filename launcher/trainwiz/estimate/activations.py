"""Activations: what the forward pass keeps for its backward pass, and the 16-bit copies that autocast makes."""

from __future__ import annotations

from trainwiz.models.activations import Arithmetic
from trainwiz.strategies import Strategy

_HALF = ("fp16", "bf16")


def arithmetic(strategy: Strategy, precision: str) -> Arithmetic:
    """How a strategy computes in this precision: what its activations depend on."""
    if precision not in _HALF:
        return "fp32"
    return "autocast" if strategy.autocasts else "16-bit"


def cast_bytes(strategy: Strategy, parameters: int, precision: str) -> int:
    """Bytes of the 16-bit copy of the weights that autocast keeps beside fp32 ones on each rank."""
    return 2 * parameters if precision != "no" and strategy.autocasts else 0
