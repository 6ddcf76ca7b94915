"""Finds a machine's GPU, or a named one, in the table; one that is not listed stays unknown."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from trainwiz.estimate.datasheets import MODELS, GpuModel

if TYPE_CHECKING:
    from trainwiz.machine import Machine

_ALL_REDUCE = 0.8
"""The share of a link's bandwidth that NCCL reaches alone: 370 of 450 GB/s on Hopper.

Source: https://github.com/NVIDIA/nccl-tests/issues/212
"""


def gpu_of(machine: Machine) -> GpuModel | None:
    """The machine's first GPU, with its links and its power limit as they were measured; None without one, or for one
    that is not listed.

    Switches that add numbers up (NVLink SHARP) make an all-reduce faster than the wire, which others do not exceed.
    """
    model = gpu_model(machine.gpus[0].name) if machine.gpus else None
    if model is None:
        return None
    model, measured = model.limited(machine.gpus[0].power_watts), machine.bus_bandwidth
    return replace(model, link=min(model.link, measured / _ALL_REDUCE)) if measured else model


def gpu_model(name: str) -> GpuModel | None:
    """The GPU that a name means, as NVML or a person spells it; None for one that is not listed."""
    plain = re.sub(r"[\s_-]|nvidia|geforce|rtx|tesla|amd|instinct", "", name.lower())
    return next((model for model in MODELS if re.match(model.pattern, plain)), None)
