"""`ds_config.json`: every value that DeepSpeed would otherwise choose, written out. Checked against 0.19.8.

Micro-batch and accumulation are given and never the product, which DeepSpeed would check against its own idea of
the world. Optimizer and schedule belong to train.py. Sizes of buckets and thresholds count elements, not bytes.
"""

from __future__ import annotations

from typing import Any

from trainwiz.plan import Plan
from trainwiz.strategies.strategy import LIVE_ELEMENTS, REDUCE_BUCKET_ELEMENTS, SUB_GROUP_ELEMENTS

NVME_BUFFER_ELEMENTS = 300_000_000
"""Must hold a rank's largest tensor: llama-1b's embedding has 263 million elements, which DeepSpeed's 1e8 refuses."""
_NVME = {
    # Adam's four states of a parameter: weight, gradient, both moments.
    "offload_optimizer": {"buffer_count": 4, "fast_init": False, "pipeline_read": False, "pipeline_write": False},
    "offload_param": {"buffer_count": 5, "buffer_size": NVME_BUFFER_ELEMENTS, "max_in_cpu": 1_000_000_000},
}
"""The settings of offloading to nvme besides its path."""


# docs/decisions/deepspeed.md: ds_config.json has no `auto` and smaller buckets
def config(plan: Plan) -> dict[str, Any]:
    """The values of the file. Nothing is `auto`: inside `zero_optimization` DeepSpeed reads that as its default."""
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.batch.per_device_batch_size,
        "gradient_accumulation_steps": plan.batch.gradient_accumulation_steps,
        # Absent, it means 1.0 in DeepSpeed 0.19 and off in 0.16.
        "gradient_clipping": float(plan.optimizer.gradient_clipping),
        "zero_optimization": _zero(plan),
        "bf16": {"enabled": plan.precision.mixed_precision in ("bf16", "fp8")},
        "fp16": _fp16(plan),
        # A torch optimizer that DeepSpeed has not tested itself (SGD) is refused under ZeRO without this.
        "zero_allow_untested_optimizer": plan.optimizer.name != "adamw",
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
        # docs/decisions/deepspeed.md: DeepSpeed's throughput timer is off
        "timers": {"throughput": {"enabled": False}},
    }
    if _stage(plan) > 0:
        # Otherwise gradients add up in bf16. Stage 0 knows no other type than the model's and stops.
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.strategy.offload_optimizer_device != "none":
        # True replaces any optimizer by DeepSpeedCPUAdam, silently: right for AdamW, wrong for SGD.
        values["zero_force_ds_cpu_optimizer"] = plan.optimizer.name == "adamw"
    if "nvme" in (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device):
        values["aio"] = {
            "block_size": 1_048_576,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
        }
    for path, value in plan.deepspeed.items():
        _put(values, path, value)
    return values


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set one of the plan's own settings of DeepSpeed; None takes it out, so that DeepSpeed chooses."""
    *blocks, name = path.split(".")
    for block in blocks:
        if not isinstance(values.get(block), dict):
            values[block] = {}  # even in place of a number: a rule judges whether DeepSpeed accepts it
        values = values[block]
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def _stage(plan: Plan) -> int:
    return plan.strategy.zero_stage or 0


def _zero(plan: Plan) -> dict[str, Any]:
    stage, strategy = _stage(plan), plan.strategy
    values: dict[str, Any] = {"stage": stage}
    if stage > 0:
        values |= {
            # The CPU has no streams to overlap on.
            "overlap_comm": plan.machine.device != "cpu",
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": REDUCE_BUCKET_ELEMENTS,
        }
    if stage in (1, 2):
        values |= {
            "allgather_partitions": True,
            "allgather_bucket_size": REDUCE_BUCKET_ELEMENTS,
            "round_robin_gradients": False,
        }
    if stage == 3:
        values |= {
            "stage3_prefetch_bucket_size": REDUCE_BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": LIVE_ELEMENTS,
            "stage3_max_reuse_distance": 1_000_000_000,
            # One step of the optimizer at a time; from nvme in smaller pieces, since each is buffered in memory.
            "sub_group_size": 100_000_000 if strategy.offload_optimizer_device == "nvme" else SUB_GROUP_ELEMENTS,
            "stage3_gather_16bit_weights_on_model_save": strategy.zero3_save_16bit_model,
        }
    devices = {"offload_optimizer": strategy.offload_optimizer_device, "offload_param": strategy.offload_param_device}
    for name, device in devices.items():
        if device != "none":
            values[name] = {"device": device, "pin_memory": plan.machine.device != "cpu"}
        if device == "nvme":
            values[name] |= ({"nvme_path": strategy.nvme_path} if strategy.nvme_path else {}) | _NVME[name]
    return values


def _fp16(plan: Plan) -> dict[str, Any]:
    if plan.precision.mixed_precision != "fp16":
        return {"enabled": False}
    return {
        "enabled": True,
        # Inputs in fp32 would meet weights in fp16: `mat1 and mat2 must have the same dtype`.
        "auto_cast": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }
