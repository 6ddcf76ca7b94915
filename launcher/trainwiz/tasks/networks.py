"""The shapes of the residual networks that classify pictures, and how many parameters each has, by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

_CLASSES = 10
"""What an estimate takes for the number of classes: the data decides it, and it hardly matters."""
_KERNEL = 3 * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkShape:
    """Stages of residual blocks; each stage doubles the width. The fields of the task's own config."""

    width: int
    stages: int
    blocks_per_stage: int

    @property
    def settings(self) -> dict[str, int]:
        """Its fields as the generated config dataclass has them."""
        return asdict(self)

    @property
    def parameters(self) -> int:
        """The exact number of parameters for three colours and ten classes."""
        before, total = self.width, 3 * self.width * _KERNEL + 2 * self.width
        for stage in range(self.stages):
            after = self.width * 2**stage
            for block in range(self.blocks_per_stage):
                shortcut = before * after if before != after or (stage > 0 and block == 0) else 0
                total += (before + after) * after * _KERNEL + 4 * after + shortcut
                before = after
        return total + (before + 1) * _CLASSES


NETWORKS: Mapping[str, NetworkShape] = MappingProxyType(
    {
        "tiny": NetworkShape(width=16, stages=3, blocks_per_stage=1),
        # https://arxiv.org/abs/1512.03385, table 1; with a stem for small pictures, and group norm
        "resnet18": NetworkShape(width=64, stages=4, blocks_per_stage=2),
    }
)
