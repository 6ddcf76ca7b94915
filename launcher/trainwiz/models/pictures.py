"""Networks of timm that people often name, for a machine that has not downloaded them: their sizes and activations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trainwiz.models.activations import Checkpointing
from trainwiz.models.kept import Arithmetic

_PREFIX = "timm/"
_MIB = 1 << 20
_NETWORKS = """
beit_base_patch16_224 86.53 147 224 17.6 87 ln, caformer_s18 26.34 150 224 4.13 177 ln,
coatnet_0_rw_224 27.44 170 224 4.43 141 ln, convnext_atto 3.70 50 288 0.91 72 ln,
convnext_base 88.59 366 288 25.4 192 ln, convnext_femto 5.22 60 288 1.3 72 ln,
convnext_large 197.77 548 288 56.9 192 ln, convnext_nano 15.59 108 288 4.06 82 ln,
convnext_pico 9.05 79 288 2.27 72 ln, convnext_small 50.22 275 288 14.4 192 ln,
convnext_tiny 28.59 172 288 7.39 102 ln, convnextv2_atto 3.71 76 288 0.91 84 ln,
convnextv2_base 88.72 572 288 25.4 228 ln, convnextv2_large 197.96 858 288 56.9 228 ln,
convnextv2_nano 15.62 166 288 4.06 96 ln, convnextv2_tiny 28.64 267 288 7.39 120 ln,
deit3_base_patch16_224 86.59 148 224 17.6 111 ln, deit_base_patch16_224 86.57 134 224 17.6 87 ln,
deit_small_patch16_224 22.05 67 224 4.61 87 ln, deit_tiny_patch16_224 5.72 34 224 1.26 87 ln,
densenet121 7.98 124 224 2.87 248, densenet169 14.15 150 224 3.4 344, dm_nfnet_f0 71.49 249 256 12.6 163,
edgenext_small 5.59 111 320 1.97 115 ln, efficientnet_b0 5.29 84 224 0.4 149, efficientnet_b1 7.79 153 256 0.77 210,
efficientnet_b2 9.11 203 288 1.12 210, efficientnet_b3 12.23 332 320 2.01 237, efficientnet_b4 19.34 630 384 4.51 291,
efficientnetv2_rw_s 23.94 451 384 8.72 307, eva02_base_patch14_448 87.12 1348 448 107 136 ln,
eva02_large_patch14_448 305.08 3592 448 362 268 ln, fastvit_t8 4.03 67 256 0.7 134, hgnetv2_b4 19.80 73 224 2.75 219,
inception_v3 23.83 94 299 5.73 193, maxvit_base_tf_224 119.47 756 224 24 617 ln,
maxvit_tiny_tf_224 30.92 298 224 5.6 291 ln, mixer_b16_224 59.88 111 224 12.6 99 ln,
mobilenetv2_100 3.50 75 224 0.31 90, mobilenetv3_large_100 5.48 42 224 0.23 114,
mobilenetv3_small_100 2.54 15 224 0.06 98, mobilenetv4_conv_medium 9.72 45 224 0.84 118,
mobilenetv4_conv_small 3.77 16 224 0.19 79, nfnet_l0 35.07 179 288 7.13 163, regnety_016 11.20 69 224 1.63 279,
regnety_040 20.65 170 288 6.61 229, regnety_160 83.59 318 288 26.4 189, repvgg_b0 15.82 36 224 3.41 87,
resnet101 44.55 121 224 7.83 312, resnet152 60.19 170 224 11.6 465, resnet18 11.69 21 224 1.82 61,
resnet26 16.00 53 224 2.36 87, resnet34 21.80 31 224 3.67 109, resnet50 25.56 82 224 4.11 159,
resnext50_32x4d 25.03 107 224 4.26 159, rexnet_150 9.73 132 224 0.9 150, seresnet50 28.09 103 224 4.11 223,
swin_base_patch4_window7_224 87.77 216 224 15.5 203 ln, swin_large_patch4_window7_224 196.53 324 224 34.5 203 ln,
swin_small_patch4_window7_224 49.61 162 224 8.77 203 ln, swin_tiny_patch4_window7_224 28.29 102 224 4.51 107 ln,
swinv2_tiny_window8_256 28.35 175 256 5.96 143 ln, tf_efficientnetv2_l 118.52 1926 480 56.4 606,
tf_efficientnetv2_m 54.14 1097 480 24.8 439, tf_efficientnetv2_s 21.46 432 384 8.44 305,
tiny_vit_21m_224 21.20 156 224 4.29 141 ln, vgg16 138.36 70 224 15.5 38,
vit_base_patch16_224 86.57 134 224 17.6 87 ln, vit_base_patch32_224 88.22 30 224 4.41 87 ln,
vit_large_patch16_224 304.33 354 224 61.6 171 ln, vit_small_patch16_224 22.05 67 224 4.61 87 ln,
vit_tiny_patch16_224 5.72 34 224 1.26 87 ln, wide_resnet50_2 68.88 107 224 11.4 159, xception41 26.97 310 299 9.28 209
"""
"""Name, millions of parameters with a head of 1,000 classes, MiB kept in fp32 of one picture with so many pixels along
each edge, thousand millions of multiplications of a forward pass, modules that compute, and `ln` for networks with
layer norms.

The parameters are from https://github.com/huggingface/pytorch-image-models, results/results-imagenet.csv, and the
multiplications from its results/benchmark-infer-*.csv. What is kept was counted on meta tensors with timm 1.0.31 and
torch 2.13, with batch norms as the generated script has them. By it, the largest batches that train on an RTX 3090 with
24 GiB (the same repository's results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv, 38 networks below its limit of
512) need 15 to 21 GiB; two NFNets 28.
"""
_HALF = 0.5
"""Of the bytes in fp32, in 16 bits."""
_HALF_WITH_LAYER_NORMS = 0.57
"""Autocast computes layer norms in fp32: 36 bytes for each feature of a block of a ViT, of 64 in fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Bytes of one picture."""

    saved: int
    """Kept by all layers from the forward to the backward pass."""
    live: int = 0
    """Added in the backward pass, where a layer is computed again."""
    moved: tuple[int, ...] = ()
    """What each layer moves to host memory."""


class PictureNetwork(Protocol):
    """A network whose activations depend on the size of the picture."""

    @property
    def modules(self) -> int:
        """Modules that compute in a forward pass, each with its kernels."""
        ...

    @property
    def convolves(self) -> bool:
        """Most of its multiplications are convolutions."""
        ...

    def multiplications(self, size: int) -> float:
        """Of a forward pass of one picture with so many pixels along each edge."""
        ...

    def kept(self, size: int, arithmetic: Arithmetic, checkpointing: Checkpointing) -> Kept:
        """What it keeps of one picture with so many pixels along each edge."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TimmNetwork:
    """A network of timm, as it was counted."""

    kept_bytes: float
    """Kept in fp32 of one picture of `counted_at`."""
    counted_at: int
    """Pixels along each edge."""
    counted_multiplications: float = 0
    """Of a forward pass of one picture of `counted_at`."""
    modules: int = 0
    """Modules that compute in a forward pass."""
    half: float = _HALF
    """The share of those bytes that is kept in 16 bits."""

    @property
    def convolves(self) -> bool:
        """Networks with layer norms are transformers, or are built like them."""
        return self.half != _HALF_WITH_LAYER_NORMS

    def multiplications(self, size: int) -> float:
        """In proportion to the area."""
        return self.counted_multiplications * (size / self.counted_at) ** 2

    def kept(self, size: int, arithmetic: Arithmetic, checkpointing: Checkpointing) -> Kept:  # noqa: ARG002
        """In proportion to the area; what checkpointing saves depends on the network, and is left out."""
        share = 1 if arithmetic == "fp32" else self.half
        return Kept(saved=int(self.kept_bytes * (size / self.counted_at) ** 2 * share))


def parameters_of_timm(name: str) -> int | None:
    """Of `timm/NAME` or `timm/NAME.WEIGHTS`; None for one that is not in the table."""
    found = _named(name)
    return int(float(found[0]) * 1e6) if found else None


def network_of_timm(name: str) -> TimmNetwork | None:
    """What `timm/NAME` or `timm/NAME.WEIGHTS` keeps; None for one that is not in the table."""
    if (found := _named(name)) is None:
        return None
    _, kept, edge, multiplications, modules, *norms = found
    return TimmNetwork(
        kept_bytes=float(kept) * _MIB,
        counted_at=int(edge),
        counted_multiplications=float(multiplications) * 1e9,
        modules=int(modules),
        half=_HALF_WITH_LAYER_NORMS if norms else _HALF,
    )


def _named(name: str) -> list[str] | None:
    return _table().get(name.removeprefix(_PREFIX).partition(".")[0]) if name.startswith(_PREFIX) else None


@functools.cache
def _table() -> Mapping[str, list[str]]:
    rows = (each.split() for each in _NETWORKS.replace("\n", " ").split(","))
    return {name: values for name, *values in rows}
