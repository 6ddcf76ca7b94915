"""The legal values of a plan's keys, as types. Light: the first question must not wait for pydantic."""

from __future__ import annotations

from typing import Literal, get_args

Task = Literal["causal_lm", "text_classification", "image_classification", "custom"]
Engine = Literal["accelerate"]
Device = Literal["cuda", "cpu", "npu", "xpu", "mlu", "mps"]
StrategyKind = Literal["single", "ddp", "deepspeed", "fsdp"]
OffloadDevice = Literal["none", "cpu", "nvme"]
MixedPrecision = Literal["no", "fp16", "bf16", "fp8"]
TrainStrategy = Literal["epochs", "steps"]
SchedulerType = Literal["constant", "linear", "cosine"]
OptimizerName = Literal["adamw", "sgd"]
Tracker = Literal["none", "tensorboard", "wandb"]

ModelPreset = Literal["tiny", "gpt2-124m", "llama-1b"]

MODEL_PRESETS: tuple[str, ...] = get_args(ModelPreset)
"""Language models."""
PRESETS_OF_TASKS: dict[str, tuple[str, ...]] = {
    "causal_lm": MODEL_PRESETS,
    "text_classification": ("tiny",),
    "image_classification": ("tiny", "resnet18"),
    "custom": (),
}
"""The models that each task can make from a name alone."""
EMBEDDED = "embedded"
"""The data set that every Python carries: no download, no file."""

UNPROVEN_DEVICES: tuple[str, ...] = ("npu", "xpu", "mlu", "mps")
"""Devices that are rendered from accelerate's documentation and were never run here."""
