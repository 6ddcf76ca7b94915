"""The message about a value that no plan can have: key, value, and what is legal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic_core import ErrorDetails

from trainwiz import vocabulary as v
from trainwiz.message import Message, say
from trainwiz.plan.model import Plan, fields

OTHER_WORDS = {
    "batch.real_batch_size": ("batch_size", "global_batch_size", "effective_batch_size", "train_batch_size"),
    "batch.per_device_batch_size": (
        "micro_batch",
        "micro_batch_size",
        "microbatch",
        "per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
    ),
    "batch.gradient_accumulation_steps": ("accumulation", "accumulation_steps", "gradient_accumulation"),
    "batch.sequence_length": ("block_size", "context_length", "max_length", "max_seq_length", "seq_len"),
    "machine.num_processes": ("gpus", "nproc_per_node", "ranks", "world_size"),
    "model.frozen": ("freeze",),
    "model.neftune_alpha": ("neftune", "neftune_noise_alpha"),
    "model.lora_rslora": ("use_rslora", "peft_use_rslora"),
    "model.lora_dora": ("use_dora", "peft_use_dora"),
    "optimizer.learning_rate": ("lr",),
    "optimizer.name": ("optim",),
    "optimizer.beta1": ("adam_beta1", "momentum"),
    "optimizer.beta2": ("adam_beta2",),
    "optimizer.ema_decay": ("ema",),
    "optimizer.epsilon": ("adam_epsilon", "eps"),
    "optimizer.gradient_clipping": ("clip_grad_norm", "grad_clip", "max_grad_norm"),
    "precision.weights": ("master_weights", "pure_bf16"),
    "precision.mixed_precision": ("bf16", "dtype", "fp16"),
    "schedule.n_epochs": ("epochs", "num_epochs", "num_train_epochs"),
    "schedule.n_steps": ("max_steps", "num_steps", "steps", "updates"),
    "schedule.min_lr_ratio": ("lr_end", "min_lr", "min_lr_rate"),
    "schedule.warmup_ratio": ("warmup_fraction",),
    "schedule.polynomial_power": ("power",),
    "schedule.n_warmup_steps": ("num_warmup_steps", "warmup", "warmup_steps"),
    "schedule.lr_scheduler_type": ("scheduler",),
    "evaluation.evaluation_steps": ("eval_every", "eval_interval", "eval_steps"),
    "evaluation.best_metric": ("load_best_model_at_end", "metric_for_best_model"),
    "evaluation.best_mode": ("greater_is_better",),
    "evaluation.generation_metrics": ("predict_with_generate",),
    "evaluation.patience": ("early_stopping", "early_stopping_patience"),
    "checkpoint.checkpointing_steps": ("save_steps", "save_every"),
    "checkpoint.checkpoints_total_limit": ("save_total_limit",),
    "cluster.time_limit": ("time", "walltime", "wall_time"),
    "cluster.kind": ("launcher",),
    "cluster.image": ("container", "container_image", "docker_image"),
    "cluster.spot": ("use_spot", "preemptible"),
    "cluster.shared_memory": ("shm", "shm_size"),
    "tracking.project": ("project_name", "wandb_project"),
    "tracking.run_name": ("experiment_name",),
    "tracking.log_with": ("report_to", "wandb"),
}
"""What other tools call a key of the plan."""
_EXAMPLES = {
    "data.source_weights": "3,1",
    "data.special_tokens": "<|im_start|>,eos_token=<|im_end|>",
    "data.added_tokens": "<tool_call>,</tool_call>",
    "evaluation.generation_metrics": "exact_match,bleu",
    "model.modules_to_save": "embed_tokens,lm_head",
    "model.push_to_hub": "my-name/my-model",
    "cluster.job_name": "train-7b",
    "cluster.gpu_type": "a100",
    "cluster.memory": "64G",
    "cluster.shared_memory": "16Gi",
    "cluster.folder": "/shared/project",
    "cluster.partition": "gpu",
    "cluster.account": "team-a",
    "cluster.qos": "normal",
    "cluster.queue": "team-a",
    "cluster.namespace": "team-a",
    "cluster.image": "registry.example.com/train:1.0",
    "cluster.volume": "project-data",
    "cluster.infra": "aws/us-east-1",
}
_OF_KUBERNETES = ("cluster.job_name", "cluster.queue", "cluster.namespace", "cluster.volume")
"""Names of RFC 1123: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""
_ZERO = re.compile(r"(?:deepspeed[-_ ]*)?zero[-_ ]*(?:stage)?[-_ ]*([0-3])(?:\+offload)?", re.IGNORECASE)
"""How a person names a stage, and lists show it."""
_KEY_OF = {word: key for key, words in OTHER_WORDS.items() for word in words}


def unknown_key(key: str) -> Message:
    """The message about an unknown key, with the nearest known one."""
    known, last = [*fields(), *Plan.model_fields], key.rpartition(".")[2]
    word = last.replace("-", "_").lower()
    near = [
        *([_KEY_OF[word]] if word in _KEY_OF else []),
        *difflib.get_close_matches(key, known, n=1, cutoff=0.6),
        *(k for k in known if k.rpartition(".")[2] == last),
    ]
    if near:
        return say("{key}: unknown key; did you mean {near}?", key=key, near=near[0])
    return say("{key}: unknown key; list all keys with `trainwiz explain keys`", key=key)


def missing(keys: Sequence[str]) -> Message:
    """The message about missing keys without a default. `key` is the first one, for its place."""
    return say("required keys are missing: {keys}", keys=", ".join(keys), key=keys[0])


def not_a_section(key: str, value: object) -> Message:
    """The message about a value in place of a group of keys."""
    return say("{key}: must be a section of keys, not {value}", key=key, value=_shown(value))


def problem(error: ErrorDetails) -> Message:
    """What is wrong with one value, by the error that pydantic found."""
    key = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    value, context = _shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(key)
        case "literal_error":
            if key == "strategy.kind" and (zero := _ZERO.fullmatch(str(error["input"]).strip())):
                return say(
                    "strategy.kind: {value} is two keys: strategy.kind=deepspeed and strategy.zero_stage={stage}",
                    key=key,
                    value=value,
                    stage=zero[1],
                )
            return say("{key}: {value} is not one of {legal}", key=key, value=value, legal=context["expected"])
        case "greater_than":
            return say("{key}: {value} must be greater than {limit}", key=key, value=value, limit=context["gt"])
        case "greater_than_equal":
            return say("{key}: {value} must be at least {limit}", key=key, value=value, limit=context["ge"])
        case "less_than":
            return say("{key}: {value} must be less than {limit}", key=key, value=value, limit=context["lt"])
        case "less_than_equal":
            return say("{key}: {value} must be at most {limit}", key=key, value=value, limit=context["le"])
        case "int_parsing" | "int_type" | "int_from_float":
            return say("{key}: {value} is not an integer", key=key, value=value)
        case "float_parsing" | "float_type" | "finite_number":
            return say("{key}: {value} is not a number", key=key, value=value)
        case "bool_parsing" | "bool_type":
            return say("{key}: {value} is neither true nor false", key=key, value=value)
        case "model_type" | "dict_type" | "model_attributes_type":
            return not_a_section(key, error["input"])
        case "string_type":
            return say("{key}: {value} is not a string", key=key, value=value)
        case "string_too_long":
            return say("{key}: the value is longer than {limit} characters", key=key, limit=context["max_length"])
        case "string_pattern_mismatch" if key == "model.lora_targets":
            return say(
                "{key}: {value} is neither all-linear nor a list of module names (q_proj,v_proj)", key=key, value=value
            )
        case "string_pattern_mismatch" if key == "model.frozen":
            return say(
                "{key}: {value} is not a list of parts of parameter names (embed,layers.0.)", key=key, value=value
            )
        case "string_pattern_mismatch" if key in ("optimizer.rates", "optimizer.decays"):
            return say("{key}: {value} does not have the form head=10,embed=0.1", key=key, value=value)
        case "string_pattern_mismatch" if key == "evaluation.best_metric":
            return say("{key}: {value} is not the name of a metric (eval_loss)", key=key, value=value)
        case "time_limit" | "string_pattern_mismatch" if key == "cluster.time_limit":
            return say(
                '{key}: {value} is not a time limit; examples: 90m, 12h, 2d, or "12:00:00" in quotes',
                key=key,
                value=value,
            )
        case "too_long" | "string_too_long":
            return say("{key}: {value} is longer than {n} characters", key=key, value=value, n=context["max_length"])
        case "string_pattern_mismatch" if key in _OF_KUBERNETES:
            return say(
                "{key}: {value} is not a valid Kubernetes name: lowercase letters, digits and -; example: {example}",
                key=key,
                value=value,
                example=_EXAMPLES[key],
            )
        case "string_pattern_mismatch" if key == "cluster.image":
            return say(
                "{key}: {value} is not an image: only its registry and its tag may have capitals; example: {example}",
                key=key,
                value=value,
                example=_EXAMPLES[key],
            )
        case "string_pattern_mismatch" if key in _EXAMPLES:
            return say(
                "{key}: {value} does not have the right form; example: {example}",
                key=key,
                value=value,
                example=_EXAMPLES[key],
            )
        case "string_pattern_mismatch":
            return say("ignore: {value} is neither a rule id (TW401) nor a prefix of one (TW4)", value=value)
        case "setting_decided":
            return say("deepspeed: {value} is set by {key}; set that key instead", value=value, key=context["decides"])
        case "setting_foreign":
            return say("deepspeed: the training loop does not support the setting {value}", value=value)
        case "column_words":
            return say(
                "{key}: {value} does not have the form prompt=question,completion=answer, with each of {words} at "
                "most once",
                key=key,
                value=value,
                words=", ".join(v.COLUMN_WORDS),
            )
        case "source_name":
            return say(
                "{key}: {name} is not a valid name: it must not be empty or contain commas",
                key=key,
                name=context["name"],
            )
        case "token":
            return say(
                "{key}: {token} is not a valid token: it must not be empty or contain commas",
                key=key,
                token=context["token"],
            )
        case "twice":
            return say("{key}: {name} is named twice in {value}", key=key, name=context["name"], value=value)
        case "nameless":
            return say("{key}: a name between the commas of {value} is empty", key=key, value=value)
        case "all_and_some":
            return say(
                "{key}: {value} names all layers and some of them; name all-linear alone, or only the layers",
                key=key,
                value=value,
            )
        case "part":
            return say(
                "{key}: {value} is not a part of the data: more than 0 samples, or more than 0% and less than 100%",
                key=key,
                value=value,
            )
        case "token_role":
            return say(
                "{key}: {role} is not a role followed by a token; roles: {roles}",
                key=key,
                role=context["role"],
                roles=", ".join(v.TOKEN_ROLES),
            )
        case "value_error" if "control" in str(context.get("error")):
            return say("{key}: {value} must not contain line breaks or control characters", key=key, value=value)
        case "value_error":
            return say("{key}: must not be empty", key=key)
    return say("{key}: {value}: {problem}", key=key, value=value, problem=error["msg"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
