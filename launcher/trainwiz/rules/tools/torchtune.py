"""What torchtune's recipes refuse."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import as_number, switched_on
from trainwiz.finding import Level, Violations
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash, lacking


@rule("TW881", level=Level.ERROR, field="optimizer_in_bwd")
def a_step_in_the_backward(tool_file: ToolFile) -> Violations:
    """optimizer_in_bwd excludes clip_grad_norm and gradient_accumulation_steps above 1.

    Without it: torchtune stops: `Gradient clipping is not supported with optimizer in bwd`, or `Gradient accumulation
    is not supported with optimizer in bwd`.
    Why: each gradient is used and dropped as soon as it is computed; they never all exist at the same time.
    Instead: set optimizer_in_bwd: False, or clip_grad_norm: null and gradient_accumulation_steps: 1.
    Source: read in torchtune 0.7.0 (`full_finetune_distributed.py`, `full_finetune_single_device.py`)
    """
    if switched_on(tool_file.get("optimizer_in_bwd")):
        if tool_file.get("clip_grad_norm") is not None:
            yield clash(tool_file, "optimizer_in_bwd", "clip_grad_norm")
        if (as_number(tool_file.get("gradient_accumulation_steps")) or 1) > 1:
            yield clash(tool_file, "optimizer_in_bwd", "gradient_accumulation_steps")


@rule("TW882", level=Level.ERROR, field="enable_activation_offloading")
def offloaded_activations_are_checkpoints(tool_file: ToolFile) -> Violations:
    """enable_activation_offloading needs enable_activation_checkpointing and a GPU.

    Without it: torchtune stops: `enable_activation_offloading should only be True when enable_activation_checkpointing
    is True`, or `when training on CUDA or XPU`.
    Why: the checkpointed inputs are what is offloaded.
    Instead: set enable_activation_checkpointing: True.
    Source: read in torchtune 0.7.0 (`full_finetune_distributed.py`)
    """
    key = "enable_activation_offloading"
    if switched_on(tool_file.get(key)):
        if tool_file.get("enable_activation_checkpointing") is False:
            yield lacking(tool_file, key, "enable_activation_checkpointing: True")
        if tool_file.get("device") in ("cpu", "mps"):
            yield clash(tool_file, key, "device")


@rule("TW883", level=Level.ERROR, field="dtype")
def no_training_in_fp16(tool_file: ToolFile) -> Violations:
    """torchtune's training recipes do not support dtype: fp16.

    Without it: torchtune stops: `full fp16 training is not supported with this recipe`.
    Why: fp16 weights need loss scaling, which the recipes do not have.
    Instead: set dtype: bf16, or fp32 on GPUs without bf16.
    Source: read in torchtune 0.7.0 (`full_finetune_distributed.py`, `lora_finetune_distributed.py`)
    """
    if tool_file.get("dtype") in ("fp16", "float16") and tool_file.has("optimizer"):
        yield clash(tool_file, "dtype", "optimizer._component_")


@rule("TW884", level=Level.ERROR, field="dataset.packed")
def packing_needs_a_length(tool_file: ToolFile) -> Violations:
    """dataset.packed needs tokenizer.max_seq_len.

    Without it: torchtune stops: `PackedDataset requires a max_seq_len to be set on the tokenizer`.
    Why: rows are filled up to this length.
    Instead: set tokenizer.max_seq_len.
    Source: read in torchtune 0.7.0 (`torchtune/datasets`)
    """
    built_in = str(tool_file.get("dataset._component_", "")).startswith("torchtune.datasets.")
    endless = tool_file.has("tokenizer") and tool_file.get("tokenizer.max_seq_len") is None
    if built_in and endless and switched_on(tool_file.get("dataset.packed")):
        yield lacking(tool_file, "dataset.packed", "tokenizer.max_seq_len")


@rule("TW885", level=Level.ERROR, field="run_val_every_n_steps")
def validation_has_data(tool_file: ToolFile) -> Violations:
    """run_val_every_n_steps needs dataset_val, and tensor_parallel_dim above 1 needs a plan.

    Without it: torchtune stops: `run_val_every_n_steps is set but dataset_val is not configured`, or `Tensor Parallel
    plan needs to be provided when tensor parallel is enabled`.
    Why: each is half of a setting.
    Instead: add the other half.
    Source: read in torchtune 0.7.0 (`full_finetune_distributed.py`)
    """
    if tool_file.get("run_val_every_n_steps") is not None and not tool_file.get("dataset_val"):
        yield lacking(tool_file, "run_val_every_n_steps", "dataset_val")
    if (as_number(tool_file.get("tensor_parallel_dim")) or 1) > 1 and not tool_file.get("tensor_parallel_plan"):
        yield lacking(tool_file, "tensor_parallel_dim", "tensor_parallel_plan")
