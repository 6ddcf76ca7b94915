"""The tool that a log is of, and what its users call the keys of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.message import Message

_TRAINER: Mapping[str, str | Message] = {
    "batch.gradient_accumulation_steps": "gradient_accumulation_steps",
    "batch.per_device_batch_size": "per_device_train_batch_size",
    "batch.real_batch_size": Message("the global batch size"),
    "batch.sequence_length": "max_length",
    "checkpoint.checkpointing_steps": "save_steps",
    "checkpoint.checkpoints_total_limit": "save_total_limit",
    "checkpoint.output_dir": "output_dir",
    "cluster.setup": Message("the setup commands"),
    "data.num_workers": "dataloader_num_workers",
    "data.chat_template": Message("the chat template"),
    "data.special_tokens": Message("the special tokens"),
    "data.added_tokens": Message("the added tokens"),
    "data.packing": "packing",
    "data.text_column": "dataset_text_field",
    "data.train": Message("the training data"),
    "machine.main_process_ip": "main_process_ip",
    "machine.main_process_port": "main_process_port",
    "machine.num_processes": "num_processes",
    "model.activation_checkpointing": "gradient_checkpointing",
    "evaluation.best_metric": "metric_for_best_model",
    "evaluation.generation_metrics": Message("the metrics of generated text"),
    "evaluation.max_new_tokens": "max_new_tokens",
    "model.compile": "torch_compile",
    "model.frozen": Message("what is frozen"),
    "model.from_scratch": Message("the start from random weights"),
    "model.lora_dora": "use_dora",
    "model.lora_targets": "target_modules",
    "model.modules_to_save": "modules_to_save",
    "model.name": Message("the model's path"),
    "optimizer.gradient_clipping": "max_grad_norm",
    "optimizer.learning_rate": "learning_rate",
    "optimizer.name": "optim",
    "precision.mixed_precision": "bf16/fp16",
    "schedule.n_steps": "max_steps",
    "schedule.n_warmup_steps": "warmup_steps",
    "strategy.kind": Message("the plugin"),
    "strategy.offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "strategy.offload_param_device": "zero_optimization.offload_param.device",
    "strategy.zero_stage": "zero_optimization.stage",
    "tracking.log_with": "report_to",
}
_SCRIPT = {
    **_TRAINER,
    "batch.per_device_batch_size": Message("the DataLoader's batch_size"),
    "batch.sequence_length": Message("the length of samples"),
    "data.num_workers": Message("the DataLoader's num_workers"),
    "model.activation_checkpointing": Message("gradient checkpointing"),
    "model.compile": "torch.compile",
    "optimizer.gradient_clipping": "clip_grad_norm_",
    "optimizer.learning_rate": "lr",
    "precision.mixed_precision": "mixed_precision",
    "schedule.n_steps": Message("the number of updates"),
    "schedule.n_warmup_steps": Message("the warm-up"),
}
_DEEPSPEED = {
    **_SCRIPT,
    "batch.per_device_batch_size": "train_micro_batch_size_per_gpu",
    "optimizer.gradient_clipping": "gradient_clipping",
    "optimizer.learning_rate": "optimizer.params.lr",
    "precision.mixed_precision": "bf16.enabled/fp16.enabled",
}
_AXOLOTL = {
    **_TRAINER,
    "batch.per_device_batch_size": "micro_batch_size",
    "batch.sequence_length": "sequence_len",
    "data.packing": "sample_packing",
    "model.lora_targets": "lora_target_modules",
    "optimizer.gradient_clipping": "max_grad_norm",
    "strategy.zero_stage": Message("deepspeed: deepspeed_configs/zero3_bf16.json, for stage"),
}
_LLAMA_FACTORY = {**_TRAINER, "batch.sequence_length": "cutoff_len", "model.lora_targets": "lora_target"}
_LIGHTNING = {
    **_SCRIPT,
    "batch.gradient_accumulation_steps": "Trainer(accumulate_grad_batches)",
    "optimizer.gradient_clipping": "Trainer(gradient_clip_val)",
    "precision.mixed_precision": "Trainer(precision)",
}
_TOOLS: tuple[tuple[str, re.Pattern[str], Mapping[str, str | Message]], ...] = (
    ("axolotl", re.compile(r"/axolotl/|\baxolotl\.(?:cli|core|train|utils)\b"), _AXOLOTL),
    ("LLaMA-Factory", re.compile(r"/llamafactory/|\bllamafactory[-.](?:cli|train|launcher)", re.I), _LLAMA_FACTORY),
    ("Lightning", re.compile(r"/(?:pytorch_)?lightning/(?:pytorch/)?trainer/"), _LIGHTNING),
    ("Trainer", re.compile(r"/transformers/trainer\.py|/trl/trainer/|/swift/(?:llm|trainers)/"), _TRAINER),
    ("DeepSpeed", re.compile(r"/deepspeed/runtime/engine\.py|\[launch\.py:\d+"), _DEEPSPEED),
)
_OURS = re.compile(
    r"\btrainwiz\b|runs/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d|batches\.py\", line|task\.py\", line \d+, in loss_"
)


def of_log(text: str) -> tuple[str, Mapping[str, str | Message]]:
    """The tool that wrote a log, and its words for a plan's keys; no words for a project of trainwiz's own."""
    if _OURS.search(text):
        return "trainwiz", {}
    return next(((name, words) for name, mark, words in _TOOLS if mark.search(text)), ("", _SCRIPT))
