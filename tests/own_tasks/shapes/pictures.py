"""Pictures of squares."""

import torch

from .sizes import SIZE


def squares(count: int, seed: int) -> torch.Tensor:
    """Return pictures (count, 1, SIZE, SIZE), each with a square at another place."""
    generator = torch.Generator().manual_seed(seed)
    pictures = -torch.ones(count, 1, SIZE, SIZE)
    for picture, (row, column) in zip(
        pictures, torch.randint(SIZE - 3, (count, 2), generator=generator).tolist(), strict=True
    ):
        picture[:, row : row + 3, column : column + 3] = 1
    return pictures
