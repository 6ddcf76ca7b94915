"""What a GPU's power leaves of its datasheet."""

from __future__ import annotations

import pytest

from trainwiz.estimate.datasheets import GpuModel
from trainwiz.estimate.gpus import gpu_model


def sustained(name: str) -> GpuModel:
    found = gpu_model(name)
    assert found
    return found


MULTIPROCESSORS = {
    "H100": 132,
    "H100-PCIe": 114,
    "H100-NVL": 132,
    "L40S": 142,
    "L4": 58,
    "RTX-6000-Ada": 142,
    "RTX-5000-Ada": 100,
    "RTX-4500-Ada": 60,
    "RTX-4000-Ada": 48,
    "RTX-2000-Ada": 22,
}


@pytest.mark.parametrize(
    ("name", "measured", "close"),
    [
        ("H100-PCIe", "H100", 0.05),  # measured, too
        ("H100-NVL", "H100", 0.01),
    ],
)
def test_products_follow_the_watts_of_a_multiprocessor(name: str, measured: str, close: float) -> None:
    one, other = sustained(name), sustained(measured)
    each = [gpu.half_flops * gpu.matrix_share / MULTIPROCESSORS[gpu.name] for gpu in (one, other)]
    watts = [gpu.watts / MULTIPROCESSORS[gpu.name] for gpu in (one, other)]
    assert each[0] / each[1] == pytest.approx((watts[0] / watts[1]) ** (2 / 3), rel=close)


@pytest.mark.parametrize("name", [name for name in MULTIPROCESSORS if "Ada" in name] + ["L4"])
def test_cards_of_one_generation_have_the_share_that_their_watts_leave(name: str) -> None:
    """An L4 was measured, and agrees with what an L40S was measured at."""
    one, other = sustained(name), sustained("L40S")
    watts = [gpu.watts / MULTIPROCESSORS[gpu.name] for gpu in (one, other)]
    share = other.matrix_share * (watts[0] / watts[1]) ** (2 / 3)
    assert one.matrix_share == pytest.approx(share, rel=0.02)
