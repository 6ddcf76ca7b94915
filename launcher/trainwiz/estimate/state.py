"""What a plan needs of memory and disk for its training state: weights, gradients and optimizer moments.

The bytes of state per rank are each strategy's own (`strategies/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz import strategies, tasks
from trainwiz.estimate.activations import arithmetic, cast_bytes
from trainwiz.estimate.adapter import frozen_bytes_per_rank, trained_parameters
from trainwiz.models.activations import activation_bytes
from trainwiz.strategies import Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_HALF = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a plan needs; the loss, buffers and the CUDA context are not in it."""

    parameters: int
    """The model's size, frozen weights included."""
    device_bytes_per_rank: int
    """Device memory for model state on each rank."""
    activation_bytes_per_rank: int
    """What a forward pass of one micro-batch keeps for its backward pass; 0 where the model's layers are unknown."""
    cast_bytes_per_rank: int
    """The 16-bit copy of the weights that autocast keeps."""
    host_bytes_per_machine: int
    """Host memory for offloaded state on each machine."""
    checkpoint_bytes: int
    """Disk for one checkpoint."""


def estimate(plan: Plan, parameters: int) -> Estimate:
    """The bytes that a plan needs for a model with this many parameters."""
    strategy, half = strategies.of(plan), plan.precision.mixed_precision in _HALF
    trained = trained_parameters(parameters, plan.model.adapter, plan.model.lora_rank)
    host = strategy.host_bytes_per_parameter(plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device)
    moments = 8 if plan.optimizer.name == "adamw" else 4
    return Estimate(
        parameters=parameters,
        device_bytes_per_rank=state_bytes_per_rank(
            strategy,
            parameters=parameters,
            adapter=plan.model.adapter,
            training=Training(
                parameters=trained,
                world=plan.machine.num_processes,
                half=half,
                moment_bytes=moments,
                optimizer_offloaded=plan.strategy.offload_optimizer_device != "none",
                parameters_offloaded=plan.strategy.offload_param_device != "none",
            ),
        ),
        activation_bytes_per_rank=_activation_bytes(plan),
        cast_bytes_per_rank=cast_bytes(strategy, parameters, plan.precision.mixed_precision),
        host_bytes_per_machine=host * trained // plan.machine.num_machines,
        checkpoint_bytes=(4 + strategy.checkpoint_copy_bytes(half) + moments) * trained,
    )


def state_bytes_per_rank(strategy: Strategy, *, parameters: int, adapter: str, training: Training) -> int:
    """Device memory for trained state and frozen weights on each rank."""
    frozen = frozen_bytes_per_rank(
        strategy, parameters=parameters - training.parameters, adapter=adapter, training=training
    )
    return strategy.state_bytes(training) + frozen


def _activation_bytes(plan: Plan) -> int:
    shape = tasks.of(plan).transformer(plan.model.name) if tasks.of(plan).generative else None
    if shape is None:
        return 0
    kind = arithmetic(strategies.of(plan), plan.precision.mixed_precision)
    each = activation_bytes(shape.transformer, kind, plan.model.activation_checkpointing)
    return each * plan.batch.per_device_batch_size * plan.batch.sequence_length
