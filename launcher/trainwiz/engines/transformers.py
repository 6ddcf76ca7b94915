"""transformers: the defaults of its Trainer."""

from __future__ import annotations

from typing import Any

TRAINER_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "warmup_steps": 0,
    "lr_scheduler_type": "linear",
    "seed": 42,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
}
"""What TrainingArguments (5.23) takes for arguments that are left out; a test compares."""
