"""Bytes that a layer keeps of a token, as numbers of its widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trainwiz.models.transformer import Block

Arithmetic = Literal["fp32", "autocast", "16-bit"]
"""All in fp32; fp32 weights computed in 16 bits under autocast; or 16-bit weights."""
LOGARITHMS = 4
"""Bytes per head: the logarithm of the softmax's sum, in fp32."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one token for each feature of the residual stream, the queries, the keys, and the MLP."""

    hidden: int
    """For each feature of the residual stream."""
    query: int
    """For each feature of the queries."""
    key_value: int
    """For each feature of the keys, values included."""
    inner: int
    """For each intermediate feature of the MLP."""

    def of(self, block: Block, hidden_size: int) -> int:
        """Bytes of one token in a layer."""
        attention = self.query * block.query_size + self.key_value * block.key_value_size + LOGARITHMS * block.heads
        return self.hidden * hidden_size + attention + self.inner * block.intermediate_size


Row = Mapping[Arithmetic, Kept]
