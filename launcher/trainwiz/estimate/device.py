"""What one rank of a training needs of its device, moment by moment: state, buffers and activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from trainwiz.estimate import dora, experts
from trainwiz.estimate.activations import Footprint, Loss, arithmetic, footprint, pinned_bytes
from trainwiz.estimate.adapter import four_bit_bytes, frozen_bytes_per_rank, trained_parameters
from trainwiz.models import Transformer
from trainwiz.models.activations import Checkpointing
from trainwiz.models.adapted import EVERYWHERE, Adapters, adapters
from trainwiz.models.kept import Arithmetic
from trainwiz.models.pictures import PictureNetwork
from trainwiz.strategies import Strategy, Training
from trainwiz.strategies.strategy import LIVE_ELEMENTS, REDUCE_BUCKET_ELEMENTS, SUB_GROUP_ELEMENTS

_HALF = ("fp16", "bf16", "fp8")

_DROPPED_BYTES: Mapping[Arithmetic, int] = {"fp32": 5, "autocast": 1, "16-bit": 3}
"""For each feature with dropout: its mask, and its result where that is not cast.

Under autocast, adapters are in fp32, and each keeps a copy of its input in 16 bits with dropout and without.
"""
Moment = Literal["loss", "backward", "reduction", "step"]
"""The loss at the end of the forward pass; a layer's backward pass; the last gradients; the optimizer's step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A model and how it is trained, as far as memory depends on it."""

    parameters: int
    """Of the model, frozen ones included."""
    transformer: Transformer | None
    """Its layers; None for a model that is not a transformer."""
    network: PictureNetwork | None = None
    """Its layers, of a network for pictures; None: it is none, or unknown."""
    picture_size: int = 0
    """Pixels along each edge of a picture."""
    generates: bool = True
    """Whether it generates text: then each token has logits."""
    adapter: str = "none"
    """none, lora or qlora."""
    lora_rank: int = 16
    """Rows of each of the adapter's matrices."""
    trained: int | None = None
    """Parameters that are trained; None: all, or the adapter's on every linear layer."""
    adapted_features: int | None = None
    """Features that enter and leave all matrices with adapters; None: those of every linear layer."""
    frozen_head: bool = False
    """The output layer is not trained, and has no gradient."""
    targets: str = EVERYWHERE
    """The layers that adapters are for, as `model.lora_targets` names them."""
    keeps_frozen_inputs: bool = False
    """Frozen matrices keep their inputs, as those in four bits did in older versions of bitsandbytes."""
    frozen_experts: bool = False
    """The adapter leaves out the routed experts."""
    dropped_features: int = 0
    """Input features of a layer's matrices that an adapter drops at random: it keeps a copy and a mask of each."""
    measured: bool = False
    """DoRA measures the rows of all matrices in each forward pass."""
    precision: str = "no"
    """no, fp16, bf16 or fp8."""
    fused_casts: bool = False
    """Numbers are cast to fp8 by the kernels that make them, as Transformer Engine does."""
    weight_bytes: int = 4
    """Of a trained weight as it is stored, and of its gradient; 2 where all of training is in 16 bits."""
    frozen_bytes: int | None = None
    """Of a weight that is not trained and not in four bits; None: what the strategy makes of it."""
    world: int = 1
    """Ranks over all machines."""
    moment_bytes: int = 8
    """Optimizer moments, in bytes per parameter."""
    fused_step: bool = True
    """The optimizer steps in one kernel; otherwise a copy as large as the weights comes and goes."""
    bucket_view: bool = True
    """DDP's buckets are the gradients themselves."""
    bucket: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO reduces at once."""
    sub_group: int = SUB_GROUP_ELEMENTS
    """Elements of a rank's part that ZeRO 3 steps at once."""
    live: int = LIVE_ELEMENTS
    """Elements that ZeRO 3 keeps gathered before it gathers no more ahead."""
    prefetch: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO 3 gathers ahead at once."""
    saves_gathered: bool = False
    """Linear layers under ZeRO 3 keep their gathered weights for the backward pass (`memory_efficient_linear` off)."""
    overlaps: bool = True
    """Buckets are sent while the next one fills, as on GPUs."""
    sums_in_half: bool = False
    """ZeRO adds gradients up in 16 bits."""
    optimizer_offloaded: bool = False
    """Optimizer state is kept in host memory."""
    parameters_offloaded: bool = False
    """Weights are kept in host memory, too."""
    whole_gradients: bool = False
    """Gradients stay whole from one micro-batch to the next."""
    accumulates: bool = False
    """An update has several micro-batches: gradients are there while the next one is computed."""
    checkpointing: Checkpointing = "none"
    """Which activations are computed again in the backward pass."""
    compiled: bool = False
    """torch.compile makes the layers' kernels."""
    fused_layers: bool = False
    """The layers' norms and gated MLPs are one kernel each, as those of liger-kernel."""
    stream_bytes: int | None = None
    """Of a number of the residual stream; None: the usual one of this arithmetic."""
    arithmetic: Arithmetic | None = None
    """How it computes; None: as the strategy does in this precision."""
    loss: Loss = field(default_factory=Loss)
    """How logits become a loss, and how many of them are there at once."""
    samples: int = 1
    """The micro-batch."""
    fused_head: bool = False
    """The loss of chunks is computed together with the gradient of the head, which is in memory beside the logits."""
    rows: int = 1
    """Rows of tokens of each sample: two where a loss compares two answers."""
    length: int = 1
    """Tokens of a row."""
    keeps_scores: bool = False
    """Attention is eager: each head's scores of all pairs of tokens in a row are in memory, and a mask of the pairs."""

    @property
    def layers_known(self) -> bool:
        """Whether activations are counted."""
        return self.transformer is not None or self.network is not None

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.samples * self.rows * self.length

    @property
    def adapted(self) -> int:
        """Features that enter and leave all matrices with adapters."""
        if self.adapter == "none":
            return 0
        if self.adapted_features is not None:
            return self.adapted_features
        return trained_parameters(self.parameters, self.adapter, self.lora_rank) // self.lora_rank

    @property
    def tied_head(self) -> bool:
        """The head's weights are those of the embeddings, and are trained."""
        shape = self.transformer
        return shape is not None and self.generates and not shape.head_weights and self.adapter == "none"

    @property
    def scored(self) -> int:
        """The tokens that each one has scores for in memory."""
        return self.length if self.keeps_scores else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Device memory in bytes, moment by moment; the CUDA context and gaps between blocks are not in it."""

    state: int
    """Weights, gradients and optimizer state together, as they are in the optimizer's step."""
    moments: Mapping[Moment, Mapping[str, int]]
    """The parts that are in memory at each moment: `state`, `buffers`, `activations`."""

    @property
    def total(self) -> int:
        """The peak."""
        return self.at(self.peak)

    @property
    def peak(self) -> Moment:
        """The moment of the peak."""
        return max(self.moments, key=self.at)

    @property
    def activations(self) -> int:
        """What a micro-batch needs where that and what is beside it is the most; 0 where the layers are unknown."""
        return self.moments[self._computing]["activations"]

    @property
    def beside(self) -> int:
        """What is in memory beside those activations: state, casts, gathered weights and buckets."""
        return self.at(self._computing) - self.activations

    @property
    def buffers(self) -> int:
        """Of that, what comes and goes."""
        return self.moments[self._computing]["buffers"]

    @property
    def _computing(self) -> Moment:
        return max(("loss", "backward"), key=self.at)

    def at(self, moment: Moment) -> int:
        """All that is in memory at a moment."""
        return sum(self.moments[moment].values())


def training_of(work: Work) -> Training:
    """What a strategy's bytes depend on."""
    shape = work.transformer
    trained = (
        trained_parameters(work.parameters, work.adapter, work.lora_rank, shape, frozen_experts=work.frozen_experts)
        if work.trained is None
        else work.trained
    )
    widest = experts.widest(shape) if shape else 0
    return Training(
        parameters=trained,
        world=work.world,
        half=work.precision in _HALF,
        weight_bytes=work.weight_bytes,
        moment_bytes=work.moment_bytes,
        fused_step=work.fused_step,
        bucket_view=work.bucket_view,
        bucket=work.bucket,
        sub_group=work.sub_group,
        live=work.live,
        prefetch=work.prefetch,
        overlaps=work.overlaps,
        sums_in_half=work.sums_in_half,
        optimizer_offloaded=work.optimizer_offloaded,
        parameters_offloaded=work.parameters_offloaded,
        model_parameters=work.parameters,
        layer=shape.largest_layer if shape else 0,
        packed_layer=_packed_layer(work),
        unpacked_bytes=_half_or_single(work) * widest if work.adapter == "qlora" else 0,
        widest=widest,
        table=shape.largest_table if shape else 0,
        frozen_head=shape.vocab_size * shape.hidden_size if shape and work.frozen_head else 0,
        root=shape.parameters - sum(b.count * b.parameters for b in shape.blocks) if shape else 0,
        whole_gradients=work.whole_gradients,
    )


def _packed_layer(work: Work) -> int:
    """Bytes of the largest layer in four bits, its routed experts too."""
    if work.transformer is None or work.adapter != "qlora":
        return 0
    dense = _half_or_single(work)
    return max(four_bit_bytes(block.parameters, block.matrix_weights, dense) for block in work.transformer.blocks)


def _half_or_single(work: Work) -> int:
    """Bytes of a number that is computed with."""
    return 2 if work.precision in _HALF else 4


def whole_four_bits(strategy: Strategy, work: Work) -> int:
    """Weights in four bits that each rank has on its device before they are cut (TW329); 0 where none has all."""
    if work.adapter != "qlora" or not (strategy.uses_deepspeed and strategy.partitions_weights):
        return 0
    return four_bit_bytes(work.parameters, work.transformer.linear_weights if work.transformer else None)


def needs(strategy: Strategy, work: Work) -> Needs:
    """What each rank needs under this strategy, at each moment and at the peak."""
    training = training_of(work)
    frozen = _frozen(strategy, work, training)
    found = micro_batch(strategy, work)
    state, gradients = strategy.state_bytes(training), strategy.gradient_bytes(training)
    early = state + frozen - (strategy.step_gradient_bytes(training) if work.accumulates else gradients)
    saved_again = found.saved if work.adapter != "none" and strategy.keeps_inputs_of_frozen_layers else 0
    late = {"state": state + frozen}
    gathered = _saved_gathered(strategy, work, training)
    moments: dict[Moment, Mapping[str, int]] = {
        "loss": {
            "state": early,
            "buffers": strategy.loss_buffer_bytes(training) + _head_gradient_bytes(strategy, work, training) + gathered,
            "activations": found.saved + found.logits,
        },
        "backward": {
            "state": early,
            "buffers": strategy.buffer_bytes(training) + _unpacked_experts(strategy, work) + gathered,
            "activations": found.saved + saved_again + found.live,
        },
        "reduction": {**late, "buffers": strategy.reduction_bytes(training)},
        "step": {**late, "buffers": strategy.step_bytes(training)},
    }
    return Needs(state=state + frozen, moments=moments)


def offloaded_activations(strategy: Strategy, work: Work) -> int:
    """Host memory that each rank's activations take."""
    return micro_batch(strategy, work).host


def offloaded_frozen(strategy: Strategy, work: Work) -> int:
    """Host memory that each rank's part of offloaded weights takes that are not trained."""
    if not (strategy.partitions_weights and work.parameters_offloaded):
        return 0
    return _frozen(strategy, work, replace(training_of(work), parameters_offloaded=False))


def _frozen(strategy: Strategy, work: Work, training: Training) -> int:
    return frozen_bytes_per_rank(
        strategy,
        parameters=work.parameters - training.parameters,
        matrices=_matrices(strategy, work),
        adapter=work.adapter,
        training=training,
        each=work.frozen_bytes,
    )


def _matrices(strategy: Strategy, work: Work) -> int | None:
    """The weights that four bits are for, of as many parameters as the model has."""
    shape = work.transformer
    return work.parameters * experts.rounded_weights(strategy, shape) // shape.parameters if shape else None


def _saved_gathered(strategy: Strategy, work: Work, training: Training) -> int:
    """The matrices of all layers, where autograd holds what a linear layer was computed with."""
    shape, kept = work.transformer, work.checkpointing == "none" and strategy.zero_stage == 3
    if not (kept and work.saves_gathered) or shape is None:
        return 0
    return training.compute_bytes * work.parameters * shape.linear_weights // shape.parameters


def _unpacked_experts(strategy: Strategy, work: Work) -> int:
    """The routed experts of a layer, which are whole while it computes; FSDP counts them with its layers."""
    packed = work.adapter == "qlora" and strategy.packs_experts and not strategy.partitions_weights
    return _half_or_single(work) * experts.joined(work.transformer) if packed and work.transformer else 0


def _head_gradient_bytes(strategy: Strategy, work: Work, training: Training) -> int:
    """The gradient of the head's weights, in their type, where the loss computes it chunk by chunk."""
    shape, chunk = work.transformer, work.loss.tokens_at_once
    has_gradient = work.adapter == "none" and not work.frozen_head
    fused = work.fused_head and work.generates and has_gradient and strategy.fuses_head_loss
    if shape is None or shape.changed_logits or not fused or chunk is None or work.tokens <= chunk:
        return 0
    each = training.weight_bytes if strategy.autocasts else training.compute_bytes
    return each * shape.vocab_size * shape.hidden_size


def stream_bytes(strategy: Strategy, work: Work) -> int | None:
    """Frozen weights in 16 bits leave the residual stream in 16 bits, under autocast, too."""
    autocast_beside_half = strategy.autocasts and strategy.keeps_frozen_dtype and work.precision in _HALF
    return 2 if work.adapter != "none" and autocast_beside_half else None


def _adapters(work: Work) -> Adapters | None:
    """What is trained in each layer, where that is only adapters."""
    if work.adapter == "none" or work.transformer is None:
        return None
    return adapters(work.transformer, work.targets, inputs_kept=work.keeps_frozen_inputs)


def micro_batch(strategy: Strategy, work: Work) -> Footprint:
    """What a micro-batch needs under this strategy; nothing where the model's layers are unknown."""
    kind = work.arithmetic or arithmetic(strategy, work.precision)
    if work.network is not None:
        kept = work.network.kept(work.picture_size, kind, work.checkpointing)
        host = sum(pinned_bytes(work.samples * moved) for moved in kept.moved)
        return Footprint(saved=work.samples * kept.saved, live=work.samples * kept.live, host=host)
    if work.transformer is None:
        return Footprint()
    found = footprint(
        work.transformer,
        kind,
        work.checkpointing,
        tokens=work.tokens,
        generates=work.generates,
        loss=work.loss,
        stream_bytes=work.stream_bytes or stream_bytes(strategy, work),
        adapters=_adapters(work),
        scored=work.scored,
        compiled=work.compiled,
        fused=work.fused_layers,
    )
    layers, dropped = work.transformer.num_hidden_layers, _DROPPED_BYTES[kind] * work.tokens * work.dropped_features
    beside = dora.working_bytes(work.transformer) if work.measured else 0
    if work.measured:
        number = 2 if work.precision in _HALF else 4
        dropped += work.tokens * dora.kept_bytes(work.transformer, number) // layers
    if work.adapter != "none" and not work.frozen_experts:
        number = _half_or_single(work)
        summed = experts.layer_bytes(work.transformer, number)
        beside += summed  # the gradient of the sum
        if work.checkpointing == "none":
            found = replace(found, saved=found.saved + experts.saved_bytes(work.transformer, number))
        else:
            beside += summed
    if work.checkpointing == "none":
        return replace(found, saved=found.saved + layers * dropped, live=found.live + beside)
    return replace(found, live=found.live + dropped + beside)
