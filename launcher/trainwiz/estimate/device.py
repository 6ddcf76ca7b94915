"""What one rank of a training needs of its device: state, buffers and activations."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.estimate.activations import arithmetic, forward_bytes
from trainwiz.estimate.adapter import frozen_bytes_per_rank, trained_parameters
from trainwiz.models import Transformer
from trainwiz.models.activations import Checkpointing
from trainwiz.strategies import Strategy, Training

_HALF = ("fp16", "bf16", "fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A model and how it is trained, as far as memory depends on it."""

    parameters: int
    """Of the model, frozen ones included."""
    transformer: Transformer | None
    """Its layers; None for a model that is no transformer."""
    generates: bool = True
    """Whether it writes text: then each token has logits."""
    adapter: str = "none"
    lora_rank: int = 16
    precision: str = "no"
    world: int = 1
    """Ranks over all machines."""
    moment_bytes: int = 8
    """Optimizer moments, in bytes per parameter."""
    weight_bytes: int = 4
    """Bytes of a trained weight where nothing is sharded."""
    optimizer_offloaded: bool = False
    parameters_offloaded: bool = False
    whole_gradients: bool = False
    """Gradients stay whole from one micro-batch to the next."""
    checkpointing: Checkpointing = "none"
    samples: int = 1
    """The micro-batch."""
    length: int = 1
    """Tokens of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Device memory in bytes; the CUDA context and gaps between blocks are not in it."""

    state: int
    """Weights, gradients and optimizer state."""
    buffers: int
    """Casts, gathered weights and buckets, at their peak."""
    activations: int
    """What a micro-batch keeps for its backward pass, and its logits; 0 where the layers are unknown."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.state + self.buffers + self.activations


def training_of(work: Work) -> Training:
    """What a strategy's bytes depend on."""
    shape = work.transformer
    return Training(
        parameters=trained_parameters(work.parameters, work.adapter, work.lora_rank),
        world=work.world,
        half=work.precision in _HALF,
        moment_bytes=work.moment_bytes,
        weight_bytes=work.weight_bytes,
        optimizer_offloaded=work.optimizer_offloaded,
        parameters_offloaded=work.parameters_offloaded,
        model_parameters=work.parameters,
        layer=shape.largest_layer if shape else 0,
        table=shape.largest_table if shape else 0,
        whole_gradients=work.whole_gradients,
    )


def needs(strategy: Strategy, work: Work) -> Needs:
    """What each rank needs under this strategy."""
    training = training_of(work)
    frozen = frozen_bytes_per_rank(
        strategy, parameters=work.parameters - training.parameters, adapter=work.adapter, training=training
    )
    return Needs(
        state=strategy.state_bytes(training) + frozen,
        buffers=strategy.buffer_bytes(training),
        activations=activations(strategy, work),
    )


def activations(strategy: Strategy, work: Work) -> int:
    """What a micro-batch needs under this strategy; 0 where the model's layers are unknown."""
    if work.transformer is None:
        return 0
    return forward_bytes(
        work.transformer,
        arithmetic(strategy, work.precision),
        work.checkpointing,
        samples=work.samples,
        length=work.length,
        generates=work.generates,
    )
