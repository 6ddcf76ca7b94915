"""The training program: `train.py`, `task.py` and the parts that every engine shares, cut from the templates.

A template is a real program. Rendering does two things to it and nothing else: it drops the optional regions
(`# feature: eval` … `# end: eval`) that the plan does not want, and sets the literals of the config dataclass by
their position in the syntax tree. Values go in as `repr` of typed, validated ones: an answer can never become code.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping, Set
from typing import Any

from trainwiz import vocabulary
from trainwiz.estimate import models, pictures
from trainwiz.plan import Plan
from trainwiz.render import imports
from trainwiz.render.artifact import Artifact

_REGION = re.compile(r"^\s*# (feature|end): (\w+)\s*$")
_DEEPSPEED_SHARDED = 3

PARTS = ("batches.py", "checkpoints.py", "metrics.py")
"""What every engine's loop shares."""
PARTS_OF_TASKS = {"causal_lm": ("rows.py",), "sft": ("rows.py",)}
"""What several tasks share."""


def scripts(plan: Plan, templates: Mapping[str, str]) -> tuple[Artifact, ...]:
    """`train.py` (the loop of the plan's engine), `task.py` (data, model and loss of the plan's task), and `PARTS`."""
    wanted, values = features(plan), settings(plan)
    loop = _cut(templates[f"train_templates/loops/{plan.engine}.py"], wanted)
    parts = (*PARTS, *PARTS_OF_TASKS.get(plan.task, ()), *(("adapter.py",) if "lora" in wanted else ()))
    task = _cut(templates[f"train_templates/tasks/{plan.task}.py"], wanted)
    return (
        Artifact("train.py", set_literals(loop, "Config", values)),
        Artifact("task.py", set_literals(task, "TaskConfig", values)),
        *(Artifact(name, _cut(templates[f"train_templates/parts/{name}"], wanted)) for name in parts),
    )


def features(plan: Plan) -> frozenset[str]:
    """The optional regions that the plan wants."""
    kind, stage = plan.strategy.kind, plan.strategy.zero_stage
    plain = kind in ("single", "ddp")
    sharded = kind == "deepspeed" and stage == _DEEPSPEED_SHARDED
    zero0_fp32 = kind == "deepspeed" and stage == 0 and plan.precision.mixed_precision == "no"
    gathered = not sharded or plan.strategy.zero3_save_16bit_model
    on_nvme = plan.strategy.offload_param_device == "nvme"
    # DeepSpeed's converter knows Adam's state, in memory; at stage 0 every rank has the whole.
    in_memory = not on_nvme and plan.strategy.offload_optimizer_device != "nvme"
    recut = kind == "deepspeed" and stage != 0 and plan.optimizer.name == "adamw" and in_memory
    chosen = {
        "plain": plain,
        "ddp": kind == "ddp",
        "cpu": plain and plan.machine.device == "cpu",
        **_colossal_features(plan),
        "deepspeed": kind == "deepspeed",
        "recut": recut,
        "as_saved": not recut,
        "deepspeed_cpu": kind == "deepspeed" and plan.machine.device == "cpu",
        "fsdp": kind == "fsdp",
        "engine_backward": kind == "deepspeed" and not zero0_fp32,
        "zero0_fp32": zero0_fp32,
        "zero0_16bit": kind == "deepspeed" and stage == 0 and not zero0_fp32,
        "plain_backward": kind != "deepspeed",
        "zero3": sharded and not on_nvme,
        "whole_weights": plain or (kind == "deepspeed" and not sharded),
        # Parameters on nvme are not in memory to be measured.
        "weight_norm": not (sharded and on_nvme),
        "fp16": plan.precision.mixed_precision == "fp16",
        "adamw": plan.optimizer.name == "adamw",
        "sgd": plan.optimizer.name == "sgd",
        "eval": plan.data.eval is not None,
        "tracker": plan.tracking.log_with != "none",
        "compile": plan.model.compile,
        "final_weights": gathered,
        "background": plan.checkpoint.background,
        "foreground": not plan.checkpoint.background,
        "sample": gathered and plan.task != "custom",
        "grouped": plan.task == "text_classification",
        "augmented_samples": plan.task == "image_classification",
        "plain_samples": plan.task != "image_classification",
        **_row_features(plan),
        **_model_features(plan),
    }
    return frozenset(name for name, is_wanted in chosen.items() if is_wanted)


def _row_features(plan: Plan) -> dict[str, bool]:
    packed = plan.data.packing and plan.task in PARTS_OF_TASKS
    # The kernels for documents without a mask compute in 16 bits, on GPUs only.
    flash = packed and plan.machine.device == "cuda" and plan.precision.mixed_precision in ("bf16", "fp16")
    return {
        "packed": packed,
        "unpacked": plan.task in PARTS_OF_TASKS and not packed,
        "flash": flash,
    }


def _colossal_features(plan: Plan) -> dict[str, bool]:
    kind, scaled = plan.strategy.kind, plan.precision.mixed_precision == "fp16"
    zero = kind in ("colossal_zero1", "colossal_zero2")
    return {
        "colossal_ddp": kind == "colossal_ddp",
        "colossal_zero": zero,
        "gemini": kind == "gemini",
        "colossal_fsdp": kind == "colossal_fsdp",
        "parts": zero or kind in ("gemini", "colossal_fsdp"),
        "flat_parts": zero or kind == "colossal_fsdp",
        "dtype": plan.engine == "accelerate",
        "torch_dtype": plan.engine == "colossalai",  # it needs transformers 4.51
        "torch_adamw": kind != "gemini",
        "fused_adamw": kind == "gemini" and plan.optimizer.name == "adamw",
        "no_sync": kind in ("colossal_ddp", "colossal_zero1"),
        "bare_no_sync": kind == "colossal_zero1" or (kind == "colossal_ddp" and not scaled),
        "repeated_backward": kind in ("colossal_zero2", "gemini", "colossal_fsdp"),
        "ddp_step": kind == "colossal_ddp" and not scaled,
        "ddp_fp16_step": kind == "colossal_ddp" and scaled,
        "engine_step": (zero or kind == "gemini") and not scaled,
        "engine_fp16_step": (zero or kind == "gemini") and scaled,
        "scaler": scaled and kind != "colossal_fsdp",
        "zero_scaler": scaled and zero,
        "gemini_scaler": scaled and kind == "gemini",
        "tensorboard": plan.tracking.log_with == "tensorboard",
        "wandb": plan.tracking.log_with == "wandb",
    }


def _model_features(plan: Plan) -> dict[str, bool]:
    preset = plan.model.name in vocabulary.PRESETS_OF_TASKS[plan.task]
    from_shape = preset and plan.model.from_scratch
    without_tokenizer = from_shape and (plan.model.name == "tiny" or plan.data.train == vocabulary.EMBEDDED)
    reads_bytes = without_tokenizer and plan.task in vocabulary.GENERATIVE
    adapted = plan.task == "sft" and plan.model.adapter != "none" and not plan.model.from_scratch
    return {
        "preset_model": from_shape,
        "pretrained_model": not plan.model.from_scratch and not adapted,
        "whole_model": not adapted,
        "lora": adapted,
        "qlora": adapted and plan.model.adapter == "qlora",
        "merged": adapted and plan.model.merge_adapter,
        "config_model": plan.model.from_scratch and not preset,
        "named_model": not from_shape,
        "bytes": reads_bytes,
        "hashes": without_tokenizer and not reads_bytes,
        "tokenizer": not without_tokenizer,
    }


def settings(plan: Plan) -> dict[str, Any]:
    """Values for the fields of the config dataclasses, by field name."""
    schedule = plan.schedule
    by_steps = schedule.train_strategy == "steps"
    shape = (models.ENCODERS if plan.task == "text_classification" else models.PRESETS).get(plan.model.name)
    hub_id = shape.hub_id if shape and shape.hub_id else plan.model.name
    network = pictures.NETWORKS.get(plan.model.name)
    return {
        "seed": plan.seed,
        "zero3_init": plan.strategy.zero3_init,
        "zero_stage": 1 if plan.strategy.kind == "colossal_zero1" else 2,
        "num_workers": plan.data.num_workers,
        "num_processes": plan.machine.num_processes,
        "real_batch_size": plan.batch.real_batch_size,
        "per_device_batch_size": plan.batch.per_device_batch_size,
        "gradient_accumulation_steps": plan.batch.gradient_accumulation_steps,
        "n_steps": (schedule.n_steps or 0) if by_steps else 0,
        "n_epochs": 0 if by_steps else (schedule.n_epochs or 0),
        "n_warmup_steps": schedule.n_warmup_steps,
        "lr_scheduler_type": schedule.lr_scheduler_type,
        "learning_rate": plan.optimizer.learning_rate,
        "weight_decay": plan.optimizer.weight_decay,
        "gradient_clipping": plan.optimizer.gradient_clipping,
        "mixed_precision": plan.precision.mixed_precision,
        "logging_steps": plan.tracking.logging_steps,
        "checkpointing_steps": plan.checkpoint.checkpointing_steps,
        "checkpoints_total_limit": plan.checkpoint.checkpoints_total_limit or 0,
        "on_failed_save": plan.checkpoint.on_failed_save,
        "log_with": plan.tracking.log_with,
        "train_data": plan.data.train,
        "eval_data": plan.data.eval,
        "sequence_length": plan.batch.sequence_length,
        "model_name": hub_id,
        "frozen_dtype": _frozen_dtype(plan),
        "lora_rank": plan.model.lora_rank,
        "lora_alpha": plan.model.lora_alpha,
        "lora_targets": plan.model.lora_targets,
        "tokenizer_name": hub_id,
        **({name: getattr(shape, name) for name in _SHAPE} if shape else {}),
        **(dataclasses.asdict(network) if network else {}),
        "flip": plan.data.train != vocabulary.EMBEDDED,
    }


def _frozen_dtype(plan: Plan) -> str:
    # Weights that no optimizer changes need no fp32. DeepSpeed casts them itself; FSDP shards one type only.
    half = plan.precision.mixed_precision == "bf16" and plan.strategy.kind in ("single", "ddp")
    return "bfloat16" if half else "float32"


_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def region_names(source: str) -> frozenset[str]:
    """The names of all optional regions of a template."""
    return frozenset(match[2] for line in source.splitlines() if (match := _REGION.match(line)))


def drop_regions(source: str, wanted: Set[str]) -> str:
    """The source without the regions that are not wanted, and without any region's marks.

    Regions nest. Raises `ValueError` for one that is left open or closed in the wrong order.
    """
    kept: list[str] = []
    open_regions: list[str] = []
    for number, line in enumerate(source.splitlines(), start=1):
        mark = _REGION.match(line)
        if mark is None:
            if all(name in wanted for name in open_regions):
                kept.append(line)
        elif mark[1] == "feature":
            open_regions.append(mark[2])
        elif not open_regions or open_regions.pop() != mark[2]:
            raise ValueError(f"line {number}: `end: {mark[2]}` does not close the innermost region")
    if open_regions:
        raise ValueError(f"never closed: {', '.join(open_regions)}")
    return "\n".join(kept) + "\n"


def set_literals(source: str, class_name: str, values: Mapping[str, Any]) -> str:
    """The source with the defaults of a dataclass's fields replaced, where `values` names them.

    Raises `ValueError` if the class is missing, or if a value is not a plain literal.
    """
    tree = ast.parse(source)
    config = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name), None)
    if config is None:
        raise ValueError(f"no class {class_name}")
    lines = source.encode().splitlines(keepends=True)  # the tree counts columns in bytes
    for node in config.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value):
            continue
        if node.target.id in values and node.value.lineno == node.value.end_lineno:
            literal = _literal(values[node.target.id])
            line = lines[node.value.lineno - 1]
            end = node.value.end_col_offset
            lines[node.value.lineno - 1] = line[: node.value.col_offset] + literal.encode() + line[end:]
    return b"".join(lines).decode()


def _literal(value: Any) -> str:
    text = (
        f'"{value}"'
        if isinstance(value, str) and not set(value) & set("\"\\'") and value.isprintable()
        else repr(value)
    )
    if not isinstance(value, bool | int | float | str) or ast.literal_eval(text) != value:
        raise ValueError(f"{value!r} cannot stand in a config")
    return text


def _cut(source: str, wanted: Set[str]) -> str:
    text = drop_regions(source, wanted)
    # What stood between two dropped regions was blank: one blank line inside a block, two between definitions.
    text = re.sub(r"\n{3,}(?=[ \t]|import )", "\n\n", text)
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    return imports.joined(text.rstrip("\n") + "\n")
