"""The shapes of the residual networks that classify pictures, and how many parameters each has, by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from trainwiz.models.activations import Checkpointing
from trainwiz.models.kept import Arithmetic
from trainwiz.models.pictures import Kept

_KERNEL = 3 * 3
_COLORS = 3
_STREAM: Mapping[Arithmetic, int] = {"fp32": 4, "autocast": 4, "16-bit": 2}
"""Bytes of a number between the blocks: autocast computes group norms in fp32."""
_CAST: Mapping[Arithmetic, int] = {"fp32": 0, "autocast": 2, "16-bit": 0}
"""Bytes of the copy in 16 bits that each convolution makes of a number in fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkShape:
    """Stages of residual blocks; each stage doubles the width. The fields of the task's own config."""

    width: int
    """Channels of the first stage."""
    stages: int
    """Each but the first halves height and width of the pictures."""
    blocks_per_stage: int
    """Of two convolutions each."""
    outputs: int = 10
    """What an estimate takes for the number of classes: the data decides it, and it hardly matters."""

    @property
    def settings(self) -> dict[str, int]:
        """Its fields as the generated config dataclass has them."""
        return {name: value for name, value in asdict(self).items() if name != "outputs"}

    @property
    def parameters(self) -> int:
        """The exact number of parameters for three colors."""
        before, total = self.width, 3 * self.width * _KERNEL + 2 * self.width
        for stage in range(self.stages):
            after = self.width * 2**stage
            for block in range(self.blocks_per_stage):
                shortcut = before * after if before != after or (stage > 0 and block == 0) else 0
                total += (before + after) * after * _KERNEL + 4 * after + shortcut
                before = after
        return total + (before + 1) * self.outputs

    @property
    def convolves(self) -> bool:
        """All layers but the last one are convolutions."""
        return True

    @property
    def modules(self) -> int:
        """In a block two convolutions, norms and nonlinearities each, where its width changes a third convolution; the
        stem, the mean and the head.
        """
        return 6 * self.stages * self.blocks_per_stage + self.stages - 1 + 5

    def multiplications(self, size: int) -> float:
        """Of each weight of a convolution, one for each place."""
        edge, before = size, self.width
        total = float(_COLORS * self.width * _KERNEL * edge * edge)
        for stage in range(self.stages):
            after = self.width * 2**stage
            for block in range(self.blocks_per_stage):
                shrinks = stage > 0 and block == 0
                edge = (edge + 1) // 2 if shrinks else edge
                shortcut = before * after if before != after or shrinks else 0
                total += ((before + after) * after * _KERNEL + shortcut) * edge * edge
                before = after
        return total + before * self.outputs

    def kept(self, size: int, arithmetic: Arithmetic, checkpointing: Checkpointing) -> Kept:
        """What it keeps of one picture with so many pixels along each edge; counted on fake tensors with torch 2.13.

        A block keeps the inputs of its two norms, and the results of its two nonlinearities; autocast adds a copy of
        the input of each convolution.
        """
        stream, cast = _STREAM[arithmetic], _CAST[arithmetic]
        edge = size
        before, place = self.width, edge * edge
        stem = place * (_COLORS * (cast or stream) + 2 * stream * before)
        blocks, results, inputs = [], [], []
        for stage in range(self.stages):
            after = self.width * 2**stage
            for block in range(self.blocks_per_stage):
                entered, shrinks = before * place, stage > 0 and block == 0
                edge = (edge + 1) // 2 if shrinks else edge
                place = edge * edge
                around = before != after or shrinks
                blocks.append(cast * (1 + around) * entered + (4 * stream + cast) * after * place)
                inputs.append(stream * entered)
                results.append((cast or stream) * (2 + around) * after * place)
                before = after
        if checkpointing == "none":
            return Kept(saved=stem + sum(blocks))
        if checkpointing == "selective":  # keeps the results of convolutions
            again = max(block - kept for block, kept in zip(blocks, results, strict=True))
            return Kept(saved=stem + sum(inputs) + sum(results), live=again)
        if checkpointing == "offload":
            return Kept(saved=stem, live=max(blocks), moved=tuple(inputs))
        return Kept(saved=stem + sum(inputs), live=max(blocks))


NETWORKS: Mapping[str, NetworkShape] = MappingProxyType(
    {
        "tiny": NetworkShape(width=16, stages=3, blocks_per_stage=1),
        # https://arxiv.org/abs/1512.03385, table 1; with a stem for small pictures, and group norm
        "resnet18": NetworkShape(width=64, stages=4, blocks_per_stage=2),
    }
)


def with_outputs(networks: Mapping[str, NetworkShape], outputs: int) -> Mapping[str, NetworkShape]:
    """The same networks with a head of so many outputs."""
    return {name: replace(shape, outputs=outputs) for name, shape in networks.items()}
