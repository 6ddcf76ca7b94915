"""The legal values of a plan's keys, as types. Light: the first question must not wait for pydantic."""

from __future__ import annotations

from typing import Any, Literal

Task = Literal[
    "causal_lm",
    "sft",
    "preference",
    "reward_model",
    "text_classification",
    "text_regression",
    "text_multilabel",
    "image_classification",
    "image_regression",
    "image_multilabel",
    "custom",
]
Engine = Literal["accelerate", "colossalai"]
Device = Literal["cuda", "cpu", "npu", "xpu", "mlu", "mps"]
StrategyKind = Literal[
    "single", "ddp", "deepspeed", "fsdp", "colossal_ddp", "colossal_zero1", "colossal_zero2", "gemini", "colossal_fsdp"
]
OffloadDevice = Literal["none", "cpu", "nvme"]
MixedPrecision = Literal["no", "fp16", "bf16", "fp8"]
TrainStrategy = Literal["epochs", "steps"]
SchedulerType = Literal["constant", "linear", "cosine", "polynomial", "wsd"]
DecayType = Literal["linear", "cosine", "1-sqrt"]
OptimizerName = Literal["adamw", "sgd", "lion", "muon", "adafactor", "adamw_8bit", "paged_adamw_8bit"]
Adapter = Literal["none", "lora", "qlora"]
Kernels = Literal["none", "liger"]
LOSS_CHUNK = 1024
"""Tokens whose logits are in memory at once, where a plan does not say it."""
Attention = Literal["auto", "sdpa", "eager", "flash_attention_2", "flex_attention"]
WeighBy = Literal["tokens", "samples"]
TrainOn = Literal["answers", "all"]
ChatTemplate = Literal["chatml"]
"""Templates that have a name; any other word is a file."""
WeightDtype = Literal["float32", "bfloat16"]
OutputDtype = Literal["source", "float32", "bfloat16", "float16"]
BestMode = Literal["auto", "min", "max"]
Tracker = Literal["none", "tensorboard", "wandb", "mlflow", "swanlab", "trackio"]
NumaBinding = Literal["auto", "always", "never"]
# docs/decisions/loop.md: Only the inputs of layers are offloaded
ActivationCheckpointing = Literal["none", "selective", "full", "offload"]
PreferenceLoss = Literal["dpo", "ipo", "orpo", "kto", "simpo"]
Augmentation = Literal["none", "shift", "flip", "crop", "color"]
OnHang = Literal["wait", "stop"]
OnFailedSave = Literal["continue", "stop"]
ClusterKind = Literal["none", "slurm", "kubernetes", "skypilot"]
Workload = Literal["trainjob", "jobset", "job"]

TRACKERS: dict[str, tuple[str, ...]] = {
    "accelerate": ("tensorboard", "wandb", "mlflow", "swanlab", "trackio"),
    "colossalai": ("tensorboard", "wandb"),
}
"""The trackers that each engine's loop writes to."""
TOKEN_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
"""What a special token can be to a tokenizer."""
MORE_SPECIAL_TOKENS = "additional_special_tokens"
"""The word for those without a role."""
COLUMN_WORDS = (
    "messages",
    "system",
    "tools",
    "history",
    "prompt",
    "input",
    "completion",
    "chosen",
    "rejected",
    "label",
)
"""What a column of conversations or preferences can be read as."""
USUAL_TASK: Task = "causal_lm"
"""The default task of a plan and of the first question, which cannot wait for pydantic."""

ALL_LINEAR = "all-linear"
"""The word for all layers that can have an adapter."""
EMBEDDED = "embedded"
"""The dataset that every Python carries: no download, no file."""

DECIDED_SETTINGS = {
    "train_batch_size": "batch.real_batch_size",
    "train_micro_batch_size_per_gpu": "batch.per_device_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "gradient_clipping": "optimizer.gradient_clipping",
    "zero_optimization.stage": "strategy.zero_stage",
    "zero_optimization.offload_optimizer.device": "strategy.offload_optimizer_device",
    "zero_optimization.offload_optimizer.nvme_path": "strategy.nvme_path",
    "zero_optimization.cpu_offload": "strategy.offload_optimizer_device",
    "zero_optimization.offload_param.device": "strategy.offload_param_device",
    "zero_optimization.cpu_offload_param": "strategy.offload_param_device",
    "zero_optimization.offload_param.nvme_path": "strategy.nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "strategy.zero3_save_16bit_model",
    "bf16.enabled": "precision.mixed_precision",
    "fp16.enabled": "precision.mixed_precision",
}
"""Settings of DeepSpeed that are keys of the plan, by their path in its file."""
FREE_SETTINGS = (
    "zero_optimization.",
    "activation_checkpointing.",
    "aio.",
    "bf16.",
    "comms_logger.",
    "data_types.",
    "flops_profiler.",
    "fp16.",
    "timers.",
    "communication_data_type",
    "disable_allgather",
    "dump_state",
    "fp32_allreduce",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)
"""Settings of DeepSpeed that a plan may give beside its own keys: a path in its file, or what such a path begins with.
Left out is what another loop would have to be written for: other optimizers, pipelines, tensor parallelism."""

UNPROVEN_DEVICES: tuple[str, ...] = ("npu", "xpu", "mlu", "mps")
"""Devices that are rendered from accelerate's documentation and were never run here."""


def spelled(value: Any) -> str:
    """A value as plans and command lines spell it: `true`, `null`, `0.001`."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


PLAN_SECTIONS = (
    "version",
    "task",
    "engine",
    "seed",
    "model",
    "data",
    "machine",
    "strategy",
    "precision",
    "batch",
    "schedule",
    "optimizer",
    "preference",
    "evaluation",
    "checkpoint",
    "tracking",
    "supervision",
    "cluster",
    "deepspeed",
    "ignore",
)
"""The keys at the top of a plan, for code that reads a file without the plan's model."""
