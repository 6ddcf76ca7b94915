"""Model state: weights, gradients and optimizer moments, in bytes per rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a plan needs. Activations are not in it yet.

    `parameters` is the model's size; the other numbers are bytes: device memory for model state on each rank,
    host memory on each machine for offloaded state, and disk for one checkpoint.
    """

    parameters: int
    device_bytes_per_rank: int
    host_bytes_per_machine: int
    checkpoint_bytes: int
