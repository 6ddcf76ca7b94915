"""The frequencies of rotary positions, which stay in fp32 when a model is cast to 16 bits as a whole.

A frequency times a position is an angle. Rounded to bf16, a frequency is up to 0.2 % off, and the angle at position
1,000 by more than a radian: the model would learn other positions than those that it is used with later.
"""

from __future__ import annotations

from torch import Tensor, nn

Frequencies = list[tuple[nn.Module, str, Tensor]]
"""Modules, the name of a buffer, and a copy of it."""


def frequencies_of(model: nn.Module) -> Frequencies:
    """Return copies of all rotary frequencies of a model, before it is cast."""
    return [
        (module, name, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if name.endswith("inv_freq") and buffer is not None
    ]


def put_back(frequencies: Frequencies) -> None:
    """Give the modules their frequencies as they were, on the device where these are now."""
    for module, name, buffer in frequencies:
        module._buffers[name] = buffer.to(module._buffers[name].device)  # type: ignore[union-attr]
