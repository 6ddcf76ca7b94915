"""The protocol of a strategy: everything that the other rooms ask about one, so that none of them asks which it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.vocabulary import Engine, StrategyKind

REDUCE_BUCKET_ELEMENTS = 50_000_000
"""What the generated ds_config.json says; DeepSpeed's own default is 5e8."""
SUB_GROUP_ELEMENTS = 1_000_000_000
"""What the generated ds_config.json says, and DeepSpeed's own default."""
LIVE_ELEMENTS = 1_000_000_000
"""Weights that ZeRO 3 keeps gathered at most: stage3_max_live_parameters of the generated ds_config.json."""
# docs/decisions/checkpoints.md: The loop saves plain state itself, not with `accelerator.save_state`
WHOLE = "whole"
"""The layout of a checkpoint whose model and optimizer lie in one file each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """The quantities that the bytes of training state depend on."""

    parameters: int
    """Trained parameters."""
    world: int
    """Ranks over all machines."""
    half: bool
    """Whether forward and backward compute in 16 bits."""
    weight_bytes: int = 4
    """Of a trained weight as it is stored, and of its gradient, where no engine keeps copies of its own."""
    moment_bytes: int = 8
    """Optimizer moments, in bytes per parameter."""
    fused_step: bool = True
    """The optimizer steps in one kernel, without a copy of the weights that comes and goes."""
    bucket_view: bool = True
    """DDP's buckets are the gradients themselves (`gradient_as_bucket_view`)."""
    bucket: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO reduces at once."""
    sub_group: int = SUB_GROUP_ELEMENTS
    """Elements of a rank's part that ZeRO 3 steps at once."""
    live: int = LIVE_ELEMENTS
    """Elements that ZeRO 3 keeps gathered before it gathers no more ahead."""
    prefetch: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO 3 gathers ahead at once."""
    overlaps: bool = True
    """Buckets are sent while the next one fills."""
    sums_in_half: bool = False
    """ZeRO adds gradients up in 16 bits; the generated ds_config.json says fp32."""
    optimizer_offloaded: bool = False
    """Optimizer state is kept in host memory."""
    parameters_offloaded: bool = False
    """Weights are kept in host memory, too."""
    model_parameters: int = 0
    """All parameters of the model, frozen ones included."""
    layer: int = 0
    """Parameters of the model's largest layer, frozen ones included; 0 where its layers are unknown."""
    packed_layer: int = 0
    """Bytes of the largest layer whose matrices are in four bits; 0 where none are."""
    unpacked_bytes: int = 0
    """Of its largest matrix where that is in four bits, and unpacked to compute with."""
    widest: int = 0
    """Parameters of the largest module in its layers that has weights of its own: a matrix, or all experts."""
    table: int = 0
    """Parameters of the largest module outside its layers: the embeddings or the head."""
    frozen_head: int = 0
    """Parameters of an output layer that is not trained; 0 where it is."""
    root: int = 0
    """Parameters of all modules outside the layers."""
    whole_gradients: bool = False
    """Gradients are kept whole from one micro-batch to the next, and reduced once per update."""

    @property
    def ring_share(self) -> float:
        """What a ring sends of a whole: all but each rank's own part."""
        return (self.world - 1) / self.world

    @property
    def adapted(self) -> bool:
        """Whether most of the model is frozen."""
        return 2 * self.parameters < self.model_parameters

    @property
    def gathered_layer(self) -> int:
        """Bytes of a layer where ranks gather it: in four bits, or in the numbers that it computes with."""
        return self.packed_layer or self.compute_bytes * self.layer

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the forward and backward pass."""
        return 2 if self.half else 4


# docs/decisions/house.md: A strategy and a task are rows
class Strategy:
    """One way to spread training state over the ranks. A subclass or an instance is one row of the table.

    The class attributes are what most strategies have; a row overrides what is different.
    """

    kind: StrategyKind
    """The value of `strategy.kind` in a plan."""
    zero_stage: int | None = None
    """The value of `strategy.zero_stage` in a plan."""
    engine: ClassVar[Engine] = "accelerate"
    """The training loop that it needs."""
    summary: Message
    """One line in the wizard's list."""
    offload_summary: Message | None = None
    """The same for its variant with offload; None where the wizard offers none."""

    one_rank: ClassVar[bool] = False
    """Whether it trains with exactly one rank."""
    speed: int | None = None
    """Position in the search for the fastest strategy that fits, 1 first; None: never recommended."""
    offload_speed: int | None = None
    """The same for its variant with offload."""
    four_bit_speed: ClassVar[int | None] = None
    """The same beside weights in four bits, where it has no `speed`."""

    devices: ClassVar[tuple[str, ...]] = ()
    """The devices that it runs on, the usual one first; empty where it runs on all."""
    precisions: ClassVar[tuple[str, ...]] = ()
    """The precisions that it computes in, the best first; empty where it takes all."""
    default_precision: ClassVar[tuple[str, Message] | None] = None
    """The precision to take whatever the device, and why; None where the device decides."""
    optimizers: ClassVar[tuple[str, ...]] = ()
    """The optimizers that it takes; empty where it takes all that suit its parameters."""
    own_parameters: ClassVar[bool] = False
    """The optimizer updates the model's own parameters: some may be frozen, and averages take their place."""
    whole_parameters: ClassVar[bool] = False
    """The optimizer is given whole parameters, and not a rank's parts of them or flat buffers."""

    uses_deepspeed: ClassVar[bool] = False
    """DeepSpeed's engine trains: ds_config.json is written, and the package is needed."""
    uses_fsdp: ClassVar[bool] = False
    """PyTorch's fully_shard trains, through accelerate."""
    autocasts: ClassVar[bool] = True
    """In 16 bits, autocast keeps a 16-bit copy of fp32 weights beside them."""
    partitions_weights: bool = False
    """Each rank holds only its part of the weights."""
    partitions_moments: bool = False
    """Each rank steps only its part of the parameters."""
    frozen_in_fp32: ClassVar[bool] = False
    """Weights that are not trained stay in fp32, since shards have one type."""
    keeps_inputs_of_frozen_layers: ClassVar[bool] = False
    """With an adapter, what layers pass on stays in memory until the backward pass has ended."""
    packs_experts: bool = False
    """QLoRA rounds routed experts to four bits, too, not only linear layers."""
    keeps_frozen_dtype: ClassVar[bool] = False
    """Frozen weights may be loaded in 16 bits, beside trained ones in fp32."""
    keeps_trained_dtype: ClassVar[bool] = False
    """Trained weights may be kept in 16 bits, too: nothing makes masters of them in fp32."""
    builds_once: ClassVar[bool] = False
    """Rank 0 can build the model, and send the other ranks their parts."""
    compiles_optimizer: ClassVar[bool] = False
    """Its optimizer is compiled with nvcc when it is first used on a GPU."""
    superseded_by: ClassVar[str | None] = None
    """The label of the strategy that does the same and is newer."""
    sums_in_compute_dtype: ClassVar[bool] = False
    """Gradients of micro-batches are added up in the precision that the backward pass computes in."""
    needs_every_gradient: ClassVar[bool] = False
    """A trained parameter without a gradient stops the training at the second update."""
    takes_turns: ClassVar[bool] = False
    """Several optimizers can take turns on parts of one model."""
    runs_exactly: ClassVar[Literal["update", "model", "nothing"]] = "update"
    """What `plan --exact` can run on tensors without memory: the whole update, the model without the engine."""
    needs_process_group: ClassVar[bool] = True
    """Even one rank needs torch.distributed's process group."""
    copies_state: ClassVar[bool] = False
    """A checkpoint in the background is written from a copy of the state, so that the training waits for no writing."""
    saves_ties_twice: ClassVar[bool] = False
    """Whether a checkpoint has weights that are embeddings and head under both names."""
    library_bytes: int = 0
    """Host memory of the engine's own libraries in each rank, beside torch and accelerate."""
    layout: str
    """How a checkpoint spreads the state over files, as its manifest says it."""

    def refused_hooks(self, plan: Plan) -> Mapping[str, Message]:  # noqa: ARG002
        """Functions of a custom project's task.py that it cannot call, and why."""
        return {}

    def tables_on_host(self, *, tied: bool) -> int:  # noqa: ARG002
        """On the CPU: gradients as large as the embeddings that come and go beside the others."""
        return 0

    def computes_in(self, precision: str) -> bool:
        """Whether this precision is one of its own."""
        return not self.precisions or precision in self.precisions

    @property
    def settings(self) -> dict[str, int]:
        """Fields of the generated config dataclass that the strategy decides."""
        return {}

    @property
    def label(self) -> str:
        """The strategy in one word, without its offload."""
        return self.kind

    def state_bytes(self, training: Training) -> int:
        """Device memory for weights, gradients and optimizer state on each rank."""
        raise NotImplementedError

    def buffer_bytes(self, training: Training) -> int:
        """Device memory that comes and goes beside that state: casts, gathered weights, buckets. At its peak."""
        return 2 * training.parameters if training.half and self.autocasts else 0

    def gradient_bytes(self, training: Training) -> int:  # noqa: ARG002
        """Of `state_bytes`, what is in memory only from the backward pass to the step, without accumulation."""
        return 0

    def step_gradient_bytes(self, training: Training) -> int:  # noqa: ARG002
        """Of `gradient_bytes`, what is in memory only in the step, also where gradients accumulate."""
        return 0

    @property
    def fuses_head_loss(self) -> bool:
        """A loss may compute the gradient of the head's weights itself: they are whole where no module is called."""
        return self.engine == "accelerate" and not (self.uses_deepspeed and self.partitions_weights)

    def loss_buffer_bytes(self, training: Training) -> int:
        """Of `buffer_bytes`, what is in memory while the loss is computed."""
        return self.buffer_bytes(training)

    def reduction_bytes(self, training: Training) -> int:  # noqa: ARG002
        """Device memory beside the state when the last gradients are reduced, after all layers."""
        return 0

    def step_bytes(self, training: Training) -> int:
        """Device memory that comes and goes in the optimizer's step: PyTorch's `foreach` makes a copy of the weights.

        Source: 10 bytes per parameter of Mistral 7B in pure bf16, 20 with fp32 shards (docs/forecast.md).
        """
        shards = training.world if self.partitions_weights else 1
        return 0 if training.fused_step else training.weight_bytes * training.parameters // shards

    def link_bytes(self, training: Training, accumulation: int) -> float:  # noqa: ARG002
        """Bytes that each rank sends in one update, in rings."""
        return 0

    def offload_buffer_bytes(self, training: Training) -> int:  # noqa: ARG002
        """Of a rank on the CPU: buffers that an offloaded optimizer has beside `host_bytes_per_parameter`."""
        return 0

    def host_bytes_per_parameter(self, optimizer_device: str, param_device: str) -> int:  # noqa: ARG002
        """Host memory for offloaded state, in bytes per trained parameter, summed over the ranks."""
        return 0

    def checkpoint_copy_bytes(self, half: bool) -> int:  # noqa: ARG002
        """What a checkpoint holds beside fp32 weights and moments, in bytes per trained parameter."""
        return 0

    def any_world(self, plan: Plan) -> bool:  # noqa: ARG002
        """Whether a checkpoint can be loaded by any number of ranks."""
        return False

    def saves_final_weights(self, plan: Plan) -> bool:  # noqa: ARG002
        """Whether the weights can be gathered at the end."""
        return True

    def distributed_type(self, device: str, world: int) -> str:  # noqa: ARG002
        """What accelerate.yaml calls it."""
        return "NO"

    def environment(self, device: str) -> dict[str, str]:  # noqa: ARG002
        """Variables that each rank needs on this device."""
        return {}

    def ops(self, plan: Plan) -> tuple[str, ...]:  # noqa: ARG002
        """DeepSpeed's names of the ops that ranks compile unless another process has."""
        return ()

    def stands_in_for(self, label: str, *, bf16_on_gpu: bool) -> bool:  # noqa: ARG002
        """Whether it is its engine's counterpart of this strategy of accelerate's."""
        return False

    def sharded_in_rehearsal(self, device: str) -> bool:  # noqa: ARG002
        """Whether a rehearsal on CPU ranks must make accelerate shard on the CPU."""
        return False

    @property
    def rehearsable(self) -> bool:
        """Whether it can train on CPU ranks, in a rehearsal."""
        return True

    def rehearsed_precision(self, precision: str) -> str:  # noqa: ARG002
        """The precision of a rehearsal on CPU ranks."""
        return "no"

    def builds_in_parts(self, plan: Plan) -> bool:  # noqa: ARG002
        """Whether no rank ever holds a whole model in host memory."""
        return False

    def regions(self, plan: Plan) -> dict[str, bool]:
        """Regions of the training templates that depend on the strategy, and whether the plan wants each."""
        raise NotImplementedError
