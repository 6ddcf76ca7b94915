"""What the files of all tools that train with transformers' Trainer have in common."""

from __future__ import annotations

from trainwiz.engines.transformers import TRAINER_DEFAULTS

WORDS = {
    name: name
    for name in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
        "adam_epsilon",
        "adam_beta1",
        "adam_beta2",
        "optim",
        "neftune_noise_alpha",
        "warmup_steps",
        "warmup_ratio",
        "lr_scheduler_type",
        "bf16",
        "fp16",
        "deepspeed",
        "fsdp",
        "eval_strategy",
        "eval_steps",
        "save_strategy",
        "save_steps",
        "logging_steps",
        "load_best_model_at_end",
        "gradient_checkpointing",
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "save_total_limit",
        "seed",
        "output_dir",
    )
}
"""Its arguments under their own names."""
DEFAULTS = {
    word: TRAINER_DEFAULTS[word]
    for word in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
        "warmup_steps",
        "lr_scheduler_type",
        "seed",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
    )
}
"""What a Trainer takes for those that are left out."""
