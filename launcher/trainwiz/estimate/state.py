"""Model state: weights, gradients and optimizer moments, in bytes per rank.

P parameters, N ranks, b bytes of a number in the forward and backward pass (2 in fp16 and bf16, else 4). Adam keeps
8 bytes of moments and, where b is 2, a master copy in fp32.

| strategy | bytes per rank | source |
|---|---|---|
| single | 16 P | fp32 weights, gradients, two moments; autocast keeps weights in fp32 |
| ddp | 20 P | and buckets as large as the gradients (no `gradient_as_bucket_view`) |
| zero0 | 20 P | as ddp |
| zero1 | 2 b P + 16 P / N | at the step, with the fp32 copy of the gradients |
| zero2 | b P + (16 + b) P / N | gradients are partitioned, too |
| zero3 | (12 + 2 b) P / N + bucket | everything is; the reduce bucket (5e7 elements at most) stays allocated |
| fsdp | 16 P / N | fp32 shards; gathered parameters come on top |
| gemini | (12 + 2 b) P / N + chunk | accumulated gradients are kept beside the weights; one chunk is gathered |
| colossal_ddp, colossal_zero1, colossal_zero2, colossal_fsdp | as ddp, zero1, zero2, fsdp | the same parts are cut |

Sources: ZeRO (https://arxiv.org/abs/1910.02054, section 3) and DeepSpeed's stage_1_and_2.py, stage3.py; PyTorch's
DistributedDataParallel notes for the buckets. Activations, the loss and the CUDA context are not model state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz.estimate.adapter import frozen_bytes_per_rank, trained_parameters

if TYPE_CHECKING:
    from trainwiz.plan import Plan

REDUCE_BUCKET_ELEMENTS = 50_000_000
"""What the generated ds_config.json says (`render.deepspeed.BUCKET_ELEMENTS`); DeepSpeed's own default is 5e8."""
CHUNK_ELEMENTS = 32 * 2**20
"""The smallest chunk that Gemini looks for (`min_chunk_size_m` of its plugin)."""
_HOST_BYTES_OPTIMIZER = 18
_HOST_BYTES_WITH_PARAMETERS = 20
"""Per parameter: https://github.com/deepspeedai/DeepSpeed, runtime/zero (estimate_zero*_model_states_mem_needs)."""


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


def estimate(plan: Plan, parameters: int) -> Estimate:
    """The bytes that a plan needs for a model with so many parameters."""
    trained = trained_parameters(parameters, plan.model.adapter, plan.model.lora_rank)
    half = plan.precision.mixed_precision in ("fp16", "bf16")
    frozen = frozen_bytes_per_rank(
        plan.strategy.label,
        parameters=parameters - trained,
        adapter=plan.model.adapter,
        world=plan.machine.num_processes,
        half=half,
        away=plan.strategy.offload_param_device != "none",
    )
    return Estimate(
        parameters=parameters,
        device_bytes_per_rank=frozen
        + state_bytes_per_rank(
            plan.strategy.label,
            parameters=trained,
            world=plan.machine.num_processes,
            half=half,
            optimizer_away=plan.strategy.offload_optimizer_device != "none",
            parameters_away=plan.strategy.offload_param_device != "none",
            moment_bytes=_moment_bytes(plan),
        ),
        host_bytes_per_machine=_host_bytes(plan, trained),
        checkpoint_bytes=checkpoint_bytes(plan, trained),
    )


def state_bytes_per_rank(
    label: str,
    *,
    parameters: int,
    world: int,
    half: bool,
    optimizer_away: bool = False,
    parameters_away: bool = False,
    moment_bytes: int = 8,
) -> int:
    """Device memory for model state on each rank, by the table above.

    `label` is `Strategy.label`; the `away` flags say what is offloaded, which only ZeRO can. An offloaded optimizer
    takes the master weights, the moments and the fp32 gradients along; 16-bit gradients stay.
    """
    p, b, fixed = parameters, 2 if half else 4, 8 + moment_bytes
    match label.removeprefix("colossal_"):
        case "zero1":
            return 2 * b * p if optimizer_away else 2 * b * p + fixed * p // world
        case "zero2":
            return b * p + (b if optimizer_away else fixed + b) * p // world
        case "zero3":
            bucket = min(p, REDUCE_BUCKET_ELEMENTS) * b
            weights = 0 if parameters_away else b
            return (weights + b + (0 if optimizer_away else 4 + moment_bytes)) * p // world + bucket
        case "fsdp":
            return fixed * p // world
        case "gemini":
            return (2 * b + 4 + moment_bytes) * p // world + min(p, CHUNK_ELEMENTS) * b
        case "single":
            return fixed * p
    return (fixed + 4) * p


def checkpoint_bytes(plan: Plan, parameters: int) -> int:
    """Disk for one checkpoint: fp32 weights and moments; DeepSpeed in 16 bits writes the 16-bit weights as well."""
    half = plan.precision.mixed_precision in ("fp16", "bf16")
    copies = 2 if half and plan.strategy.kind == "deepspeed" else 0
    return (4 + copies + _moment_bytes(plan)) * parameters


def _host_bytes(plan: Plan, parameters: int) -> int:
    if plan.strategy.kind != "deepspeed" or plan.strategy.offload_optimizer_device != "cpu":
        only_parameters = plan.strategy.kind == "deepspeed" and plan.strategy.offload_param_device == "cpu"
        per_parameter = 2 if only_parameters else 0
    elif plan.strategy.offload_param_device == "cpu":
        per_parameter = _HOST_BYTES_WITH_PARAMETERS
    else:
        per_parameter = _HOST_BYTES_OPTIMIZER
    return per_parameter * parameters // plan.machine.num_machines


def _moment_bytes(plan: Plan) -> int:
    return 8 if plan.optimizer.name == "adamw" else 4
