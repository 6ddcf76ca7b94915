"""Sizes of timm's networks that people often name, for a machine that has not downloaded them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

_PREFIX = "timm/"
_MILLIONS = """
beit_base_patch16_224 86.53, caformer_s18 26.34, coatnet_0_rw_224 27.44, convnext_atto 3.70, convnext_base 88.59,
convnext_femto 5.22, convnext_large 197.77, convnext_nano 15.59, convnext_pico 9.05, convnext_small 50.22,
convnext_tiny 28.59, convnextv2_atto 3.71, convnextv2_base 88.72, convnextv2_large 197.96, convnextv2_nano 15.62,
convnextv2_tiny 28.64, deit3_base_patch16_224 86.59, deit_base_patch16_224 86.57, deit_small_patch16_224 22.05,
deit_tiny_patch16_224 5.72, densenet121 7.98, densenet169 14.15, dm_nfnet_f0 71.49, edgenext_small 5.59,
efficientnet_b0 5.29, efficientnet_b1 7.79, efficientnet_b2 9.11, efficientnet_b3 12.23, efficientnet_b4 19.34,
efficientnetv2_rw_s 23.94, eva02_base_patch14_448 87.12, eva02_large_patch14_448 305.08, fastvit_t8 4.03,
hgnetv2_b4 19.80, inception_v3 23.83, maxvit_base_tf_224 119.47, maxvit_tiny_tf_224 30.92, mixer_b16_224 59.88,
mobilenetv2_100 3.50, mobilenetv3_large_100 5.48, mobilenetv3_small_100 2.54, mobilenetv4_conv_medium 9.72,
mobilenetv4_conv_small 3.77, nfnet_l0 35.07, regnety_016 11.20, regnety_040 20.65, regnety_160 83.59,
repvgg_b0 15.82, resnet101 44.55, resnet152 60.19, resnet18 11.69, resnet26 16.00, resnet34 21.80, resnet50 25.56,
resnext50_32x4d 25.03, rexnet_150 9.73, seresnet50 28.09, swin_base_patch4_window7_224 87.77,
swin_large_patch4_window7_224 196.53, swin_small_patch4_window7_224 49.61, swin_tiny_patch4_window7_224 28.29,
swinv2_tiny_window8_256 28.35, tf_efficientnetv2_l 118.52, tf_efficientnetv2_m 54.14, tf_efficientnetv2_s 21.46,
tiny_vit_21m_224 21.20, vgg16 138.36, vit_base_patch16_224 86.57, vit_base_patch32_224 88.22,
vit_large_patch16_224 304.33, vit_small_patch16_224 22.05, vit_tiny_patch16_224 5.72, wide_resnet50_2 68.88,
xception41 26.97
"""
"""Parameters with a head of 1,000 classes.

Source: https://github.com/huggingface/pytorch-image-models, results/results-imagenet.csv.
"""


def parameters_of_timm(name: str) -> int | None:
    """Of `timm/NAME` or `timm/NAME.WEIGHTS`; None for one that is not in the table."""
    return _table().get(name.removeprefix(_PREFIX).partition(".")[0]) if name.startswith(_PREFIX) else None


@functools.cache
def _table() -> Mapping[str, int]:
    pairs = (each.split() for each in _MILLIONS.replace("\n", " ").split(","))
    return {name: int(float(millions) * 1e6) for name, millions in pairs}
