"""DeepSpeed and FSDP in files of training tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import as_number
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash

# What the Trainer takes where the file says nothing.
_DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_epsilon": 1e-8,
}
_NUMBERS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
_SWITCHES = {"fp16.enabled": "fp16", "bf16.enabled": "bf16"}


@rule("TW802", level=Level.ERROR, field="deepspeed")
def one_engine_shards(tool_file: ToolFile) -> Violations:
    """DeepSpeed and FSDP cannot be used together.

    Without it: the tool stops, or the Trainer does: `Using --fsdp xxx together with --deepspeed is not possible`.
    Why: both split the same parameters, gradients and optimizer states.
    Instead: keep one of the two.
    Source: read in transformers 5.23.0 (`Trainer.__init__`) and Axolotl 0.18.0
    """
    if tool_file.value("deepspeed") and tool_file.value("fsdp"):
        yield clash(tool_file, tool_file.key("deepspeed"), tool_file.key("fsdp"))


@rule("TW805", level=Level.ERROR, field="deepspeed")
def deepspeeds_file_says_the_same(tool_file: ToolFile) -> Violations:
    """Numbers in the DeepSpeed file must match those in the tool's file.

    Without it: transformers stops once the model is loaded: `Please correct the following DeepSpeed config values that
    mismatch TrainingArguments values`.
    Why: both files set the value, and only one of them was changed.
    Instead: write auto in the DeepSpeed file; the Trainer fills it in.
    Source: seen with transformers 5.23.0 (`HfTrainerDeepSpeedConfig.trainer_config_process`)
    """
    file = tool_file.deepspeed
    for path, word, here, there in _mismatches(tool_file, file) if file else ():
        key = tool_file.key(word)
        yield violation(
            "{key} is {here}, but {path} in {file} is {there}; transformers stops",
            remedy("set {path} to auto in {file}", path=path, file=file.document.path if file else ""),
            where=key if tool_file.has(key) else tool_file.key("deepspeed"),
            key=key,
            here=here,
            path=path,
            file=file.document.path if file else "",
            there=there,
        )


def _mismatches(tool_file: ToolFile, file: DeepSpeed) -> Iterator[tuple[str, str, Any, Any]]:
    for path, word in _NUMBERS.items():
        there, key = as_number(file.get(path)), tool_file.key(word)
        silent = tool_file.value(word) is None
        here = (_DEFAULTS[word] if tool_file.tool.leaves_defaults else None) if silent else tool_file.number(word)
        if key and there is not None and here is not None and there != here:
            yield path, word, f"{here:g}", f"{there:g}"
    for path, word in _SWITCHES.items():
        on, here = file.get(path), tool_file.value(word)
        known = isinstance(here, bool) or (here is None and tool_file.tool.leaves_defaults)
        if (
            isinstance(on, bool)
            and known
            and on != bool(here)
            and tool_file.key(word)
            and not tool_file.get("pure_bf16")
        ):
            yield path, word, str(bool(here)).lower(), str(on).lower()
