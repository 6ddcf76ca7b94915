"""How training pictures are changed: all randomness comes from a generator that the loop seeds for each sample."""

from __future__ import annotations

import torch
from torch import Tensor


# feature: shifted
def shifted(picture: Tensor, generator: torch.Generator) -> Tensor:
    """Return the picture shifted by up to an eighth of its size; what it uncovers is black."""
    _, height, width = picture.shape
    margin = max(1, height // 8)
    top, left = torch.randint(2 * margin + 1, (2,), generator=generator).tolist()
    padded = torch.nn.functional.pad(picture, (margin,) * 4)
    return padded[:, top : top + height, left : left + width]


# end: shifted
# feature: cropped
def cropped(picture: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return a crop of the picture as a square: 35 % to 100 % of its area, with an aspect ratio from 3 : 4 to 4 : 3."""
    _, height, width = picture.shape
    share, lean, down, right = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    area, ratio = (0.35 + 0.65 * share) * height * width, (4 / 3) ** (2 * lean - 1)
    tall, wide = min(height, round((area / ratio) ** 0.5)), min(width, round((area * ratio) ** 0.5))
    top, left = int(down * (height - tall + 1)), int(right * (width - wide + 1))
    part = picture[None, :, top : top + tall, left : left + wide].float()
    part = torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=True)
    return part[0].round().clamp(0, 255).byte()


LARGER = 1.5
"""How much larger than the model's input training pictures are read, so that a crop of them is not blurred."""


# end: cropped
# feature: colored
def colored(picture: Tensor, generator: torch.Generator) -> Tensor:
    """Return the picture with its brightness, contrast and saturation each scaled by 0.6 to 1.4."""
    brightness, contrast, saturation = (0.6 + 0.8 * torch.rand(3, generator=generator)).tolist()
    pixels = picture.float() * brightness
    pixels = pixels.mean() + (pixels - pixels.mean()) * contrast
    grey = pixels.mean(0, keepdim=True)
    return (grey + (pixels - grey) * saturation).round().clamp(0, 255).byte()


# end: colored
