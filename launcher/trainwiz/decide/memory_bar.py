"""A rank's memory at its peak as a bar of characters: under the rows of `trainwiz plan`, and in the wizard."""

from __future__ import annotations

from trainwiz.estimate.device import Needs
from trainwiz.message import say

_LENGTH = 20
"""Characters of a bar that stands for a device's whole memory."""
PARTS = (
    ("state", "█", say("weights, gradients, optimizer")),
    ("buffers", "▓", say("gathered and cast weights, buckets")),
    ("activations", "▒", say("activations, logits")),
)
"""The parts of memory: their names, their signs in a bar, and what they are."""


def bar(need: Needs, memory_bytes: int) -> str:
    """The parts of the peak, in proportion to the device's memory; `·` is left."""
    parts = need.moments[need.peak]
    drawn, total = "", 0
    for name, sign, _ in PARTS:
        total += parts.get(name, 0)
        drawn += sign * (min(_LENGTH, round(_LENGTH * total / memory_bytes)) - len(drawn))
    return drawn + "·" * (_LENGTH - len(drawn))
