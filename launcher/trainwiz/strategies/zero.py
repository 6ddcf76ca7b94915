"""DeepSpeed's ZeRO, stages 0 to 3, through accelerate.

State in bytes per rank, with P parameters, N ranks, b bytes of a number in the forward and backward pass:

| stage | bytes per rank | what is partitioned |
|---|---|---|
| 0 | 20 P | nothing; gradients have a copy for the reduction |
| 1 | 8 P + 12 P / N in 16 bits, 8 P + 16 P / N in fp32 | the optimizer |
| 2 | b P + (16 + b) P / N | gradients, too |
| 3 | (16 + b) P / N + bucket | weights, too; the reduce bucket and the gradients' buffer in fp32 stay allocated |

At stage 1 in 16 bits, `BF16_Optimizer` keeps whole gradients in fp32 beside those in 16 bits, since gradients add up in
fp32 (seen with DeepSpeed 0.19.8 on gloo ranks: 14.0 and 11.0 bytes per parameter at N = 2 and 4).

Adam keeps 8 bytes of moments and, where b is 2, a master copy in fp32. An offloaded optimizer takes the master weights,
the moments and the gradients along; but at stages 1 and 2 in 16 bits, gradients add up in fp32 on the GPU: 4 P / N
bytes, and at stage 1 whole ones in 4 P bytes (seen with 0.19.8 on two ranks). Sources: ZeRO
(https://arxiv.org/abs/1910.02054, section 3) and DeepSpeed's stage_1_and_2.py, stage3.py, bf16_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from trainwiz.message import Message, say
from trainwiz.strategies.strategy import Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_HOST_BYTES_OPTIMIZER = 18
_HOST_BYTES_WITH_PARAMETERS = 20
"""Per parameter: https://github.com/deepspeedai/DeepSpeed, runtime/zero (estimate_zero*_model_states_mem_needs)."""
_LIBRARY_BYTES = 50 * 2**20
"""Seen with torch 2.13 and DeepSpeed 0.19 on CPU ranks; without its optimizers, stage 0 needs nothing beside torch."""
_SUMMARIES = (
    say("DeepSpeed without sharding; for comparison"),
    say("DeepSpeed: shards optimizer state across the ranks"),
    say("DeepSpeed: also shards gradients"),
    say("DeepSpeed: also shards weights; gathers them layer by layer"),
)
_OFFLOAD_SUMMARIES = {
    2: say("DeepSpeed: optimizer state in host memory, computed on the CPU"),
    3: say("DeepSpeed: weights and optimizer state in host memory; slowest"),
}


class Zero(Strategy):
    """One stage of ZeRO."""

    kind = "deepspeed"
    uses_deepspeed: ClassVar[bool] = True
    autocasts: ClassVar[bool] = False
    # docs/decisions/deepspeed.md: Beside an adapter, DeepSpeed too is given frozen weights in 16 bits
    keeps_frozen_dtype: ClassVar[bool] = True
    runs_exactly: ClassVar[Literal["update", "model", "nothing"]] = "model"

    def __init__(self, stage: int, *, speed: int | None, offload_speed: int | None = None) -> None:
        self.stage = self.zero_stage = stage
        self.speed, self.offload_speed = speed, offload_speed
        self.summary: Message = _SUMMARIES[stage]
        self.offload_summary = _OFFLOAD_SUMMARIES.get(stage)
        self.partitions_weights, self.partitions_moments = stage == 3, stage > 0
        self.packs_experts = stage < 3
        self.library_bytes = _LIBRARY_BYTES if stage else 0
        self.layout = self.label

    def refused_hooks(self, plan: Plan) -> Mapping[str, Message]:  # noqa: ARG002
        """What the optimizer and the weights of its own make impossible."""
        return {
            "build_optimizers": say("DeepSpeed takes over the optimizer, and replaces it when offloading"),
            "after_update": say("DeepSpeed keeps its own copy of the weights that it updates, in fp32 or sharded"),
        }

    @property
    def label(self) -> str:
        """zero0 to zero3."""
        return f"zero{self.stage}"

    def state_bytes(self, training: Training) -> int:
        """By the table above."""
        p, n, b, fixed = training.parameters, training.world, training.compute_bytes, 8 + training.moment_bytes
        away = training.optimizer_offloaded
        sums = 4 if away and training.half and not training.sums_in_half else 0
        match self.stage:
            case 0:
                return (fixed + 4) * p
            case 1 if training.half and not away:
                return 8 * p + (fixed - 4) * p // n
            case 1:
                whole = 4 if sums else b
                return (b + whole) * p + (sums if away else fixed) * p // n
            case 2:
                return b * p + (sums if away else fixed + b) * p // n
        weights = 0 if training.parameters_offloaded else b
        sums = b if training.sums_in_half else 4
        bucket = min(p, training.bucket) * b
        return (weights + (0 if away else sums + 4 + training.moment_bytes)) * p // n + bucket

    def gradient_bytes(self, training: Training) -> int:
        """At stage 2, gradients and their copies in fp32 are there from the backward pass to the step.

        Stage 3 has one buffer for them from the start (`grad_partitions_flat_buffer`).
        """
        if self.stage != 2 or training.optimizer_offloaded:
            return 0
        return (training.compute_bytes + 4) * training.parameters // training.world

    def step_gradient_bytes(self, training: Training) -> int:
        """Copies in fp32 of gradients that add up in 16 bits."""
        in_step_only = self.stage == 2 and training.sums_in_half and not training.optimizer_offloaded
        return 4 * training.parameters // training.world if in_step_only else 0

    def step_bytes(self, training: Training) -> int:
        """DeepSpeed's Adam steps in one kernel; stages 1 and 2 then gather the weights bucket by bucket.

        Stage 3 joins the gradients of a part into one tensor, whose cast to fp32 is one more where they add up in 16
        bits. Source: `_prepare_fp32_grad_for_sub_group` of stage3.py (4 and 6 bytes were seen of each element with
        0.19), and 6.86 billion parameters on four ranks: 5.64 GiB beside what stays allocated (docs/forecast.md).
        """
        if not self.partitions_weights:
            return self.buffer_bytes(training) if self.stage else 0
        joined = training.compute_bytes if training.sums_in_half else 4
        cast = 4 if joined != 4 else 0
        part = min(training.sub_group, training.parameters // training.world)
        return 0 if training.optimizer_offloaded else (joined + cast) * part

    def buffer_bytes(self, training: Training) -> int:
        """Buckets of elements that are reduced or gathered; at stage 3 the weights that are alive at a time.

        Each call of a module, also of one without weights, gathers a prefetch bucket more, and so the gathers run ahead
        until `stage3_max_live_parameters` is reached. The parameter that crosses a limit is gathered as a whole, as the
        head behind an adapter's; a bucket of several parameters is copied where they are waited for. Source:
        partitioned_param_coordinator.py and AllGatherCoalescedHandle in partition_parameters.py.
        """
        b = training.compute_bytes
        if not self.partitions_weights:
            copies = 3 if training.overlaps else 1
            return copies * b * min(training.parameters, training.bucket) if self.stage else 0
        last = max(training.table, training.widest)
        copied = min(training.model_parameters, training.prefetch + last)
        return b * (min(training.model_parameters, training.live + last) + copied)

    def loss_buffer_bytes(self, training: Training) -> int:
        """Stages 1 and 2 have their buckets when the backward pass begins, and copy one when it is full.

        Source: `setup_buckets` (0.14: `backward`) and `allreduce_bucket` of stage_1_and_2.py.
        """
        copy = self.stage in (1, 2) and training.overlaps
        return self.buffer_bytes(training) - (training.compute_bytes * min(training.parameters, training.bucket) * copy)

    def tables_on_host(self, *, tied: bool) -> int:  # noqa: ARG002
        """Stage 3 gathers embeddings and head, and has their gradients whole before it cuts them."""
        return 4 if self.partitions_weights else 0

    def link_bytes(self, training: Training, accumulation: int) -> float:
        """Gradients are reduced, at stage 2 in each micro-batch; weights are gathered after the step, or at stage 3
        twice in each micro-batch.
        """
        b, model = training.compute_bytes, training.model_parameters or training.parameters
        if self.partitions_weights:
            return training.ring_share * b * accumulation * (2 * model + training.parameters)
        reductions = accumulation if self.stage == 2 else 1
        return training.ring_share * b * training.parameters * (reductions + 1)

    def offload_buffer_bytes(self, training: Training) -> int:
        """At stages 1 and 2: what carries a gradient or weights between the devices, which are one here.

        Weights are copied in the type of the forward pass, of which the 18 bytes count 2; the largest gradient has room
        on both devices, filled with zeros; and a bucket is reduced in a flat copy while none of it has moved to the
        host. Source: stage_1_and_2.py of DeepSpeed 0.19 (`param_buffer_of_bit16_for_cpu_offload_groups`,
        `temp_grad_buffer_for_cpu_offload`, `allreduce_bucket`), and the resident memory of a rank step by step.
        """
        if self.stage not in (1, 2):
            return 0
        b = training.compute_bytes
        copied = (b - 2) * training.parameters // training.world
        return copied + 2 * b * training.table + b * min(training.parameters, training.bucket)

    def host_bytes_per_parameter(self, optimizer_device: str, param_device: str) -> int:
        """Master weights, moments and gradients, and the weights where those are offloaded, too."""
        if optimizer_device != "cpu":
            return 2 if param_device == "cpu" else 0
        return _HOST_BYTES_WITH_PARAMETERS if param_device == "cpu" else _HOST_BYTES_OPTIMIZER

    def checkpoint_copy_bytes(self, half: bool) -> int:
        """DeepSpeed writes the weights that it computes with, too, where its optimizer has copies of them.

        Stage 3 cuts those copies into shards and writes only these; stage 0 in fp32 makes none. Seen with 0.19.
        """
        if self.partitions_weights or (self.stage == 0 and not half):
            return 0
        return 2 if half else 4

    # docs/decisions/checkpoints.md: ZeRO checkpoints load on any number of ranks, through DeepSpeed's converter
    def any_world(self, plan: Plan) -> bool:
        """DeepSpeed's converter, which train.py calls, knows Adam's state, in memory; at stage 0 nothing is cut."""
        on_nvme = "nvme" in (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device)
        return self.stage == 0 or (plan.optimizer.name == "adamw" and not on_nvme)

    def builds_in_parts(self, plan: Plan) -> bool:
        """At stage 3 with `zero.Init`, weights are cut while the model is built."""
        return self.partitions_weights and plan.strategy.zero3_init

    def saves_final_weights(self, plan: Plan) -> bool:
        """At stage 3 only where gathering them is asked for."""
        return self.stage != 3 or plan.strategy.zero3_save_16bit_model

    def distributed_type(self, device: str, world: int) -> str:  # noqa: ARG002
        """accelerate's word for DeepSpeed."""
        return "DEEPSPEED"

    def environment(self, device: str) -> dict[str, str]:
        """DeepSpeed takes a GPU that it finds unless it is told otherwise."""
        return {"DS_ACCELERATOR": "cpu"} if device == "cpu" else {}

    def ops(self, plan: Plan) -> tuple[str, ...]:
        """Adam on the host, which replaces AdamW where its state is offloaded; nvme; shared memory between CPU ranks.

        Source: build_shm_op in deepspeed/comm/torch.py, DeepSpeedCPUAdam, and runtime/swap_tensor/ (0.19).
        """
        away = {plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device}
        wanted = {
            "cpu_adam": plan.strategy.offload_optimizer_device != "none" and plan.optimizer.name == "adamw",
            "async_io": "nvme" in away,
            "deepspeed_shm_comm": plan.machine.device == "cpu",
        }
        return tuple(op for op, needed in wanted.items() if needed)

    def sharded_in_rehearsal(self, device: str) -> bool:
        """A script that is rendered for the CPU asks for it itself."""
        return device != "cpu"

    def rehearsed_precision(self, precision: str) -> str:
        """The script of stage 0 in 16 bits measures gradients where only 16 bits have them."""
        return "bf16" if self.stage == 0 and precision != "no" else "no"

    def regions(self, plan: Plan) -> dict[str, bool]:
        """The engine's path of the accelerate loop; stage 0 and nvme have details of their own."""
        in_fp32 = self.stage == 0 and plan.precision.mixed_precision == "no"
        on_nvme = plan.strategy.offload_param_device == "nvme"
        recut = self.stage != 0 and self.any_world(plan)
        return {
            "deepspeed": True,
            "recut": recut,
            "as_saved": not recut,
            "deepspeed_cpu": plan.machine.device == "cpu",
            "engine_backward": not in_fp32,
            "engine_casts": plan.precision.mixed_precision != "no",
            "zero0_fp32": in_fp32,
            "zero0_16bit": self.stage == 0 and not in_fp32,
            "zero3": self.stage == 3 and not on_nvme,
            "whole_weights": self.stage != 3,
            # Parameters on nvme are not in memory to be measured.
            "weight_norm": not (self.stage == 3 and on_nvme),
        }


STRATEGIES = (
    Zero(0, speed=None),
    # docs/decisions/deepspeed.md: ZeRO 2 comes before ZeRO 1
    # In 16 bits, stage 1 keeps whole gradients in fp32, and so it needs more than stage 2 wherever it fits.
    Zero(1, speed=3),
    Zero(2, speed=2, offload_speed=5),
    Zero(3, speed=4, offload_speed=6),
)
