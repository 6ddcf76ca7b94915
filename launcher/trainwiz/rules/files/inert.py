"""Keys of an accelerate file that have no effect."""

from __future__ import annotations

from typing import Any

from trainwiz.config import Accelerate
from trainwiz.engines.accelerate import DISTRIBUTED_TYPES
from trainwiz.finding import Fix, Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_HOME = {
    "deepspeed_config": ("DEEPSPEED",),
    "fsdp_config": ("FSDP",),
    "megatron_lm_config": ("MEGATRON_LM",),
    "mpirun_config": ("MULTI_CPU", "NO"),
    "tpu_name": ("XLA",),
    "tpu_zone": ("XLA",),
    "tpu_vm": ("XLA",),
    "tpu_use_cluster": ("XLA",),
    "commands": ("XLA",),
    "command_file": ("XLA",),
}
_NOT_FOR = {"dynamo_config": ("DEEPSPEED", "XLA"), "parallelism_config": ("NO", "MULTI_CPU", "XLA")}
_FP8_NAMES = {
    "amax_history_length": "amax_history_len",
    "amax_compute_algorithm": "amax_compute_algo",
    "optimization_level": "opt_level",
}


@rule("TW665", level=Level.WARNING, field="rdzv_backend")
def a_key_acts(accelerate: Accelerate) -> Violations:
    """rdzv_backend, enable_cpu_affinity, downcast_bf16 and tpu_use_sudo have no effect in a config file.

    Without it: `rdzv_backend: c10d` starts a static rendezvous, `use_cpu: true` under DEEPSPEED still looks for
    GPUs, and main_training_function has no effect outside TPUs, all without a message.
    Why: a value in the file is used only if the command-line option has no default, and these options have one.
    Instead: use the option of `accelerate launch`: --rdzv_backend c10d, --enable_cpu_affinity. --downcast_bf16 and
    --tpu_use_sudo only affect TPUs.
    Source: seen with accelerate 1.15.0: launch environment and arguments stay the same
    """
    if accelerate.on_sagemaker or not accelerate.kind:
        return
    for key, value in accelerate.document.values.items():
        if _silent(key, value, accelerate.kind):
            yield violation(
                "{key} {value} has no effect: under {kind}, accelerate never reads it from a file",
                _deleted(key, accelerate.kind),
                where=key,
                value=str(value).lower(),
            )


@rule("TW666", level=Level.WARNING, field="distributed_type")
def a_block_is_under_its_type(accelerate: Accelerate) -> Violations:
    """A block takes effect only under its own distributed_type.

    Without it: the whole block is silently ignored: fsdp_config under MULTI_GPU trains plain DDP, dynamo_config
    under DEEPSPEED compiles nothing.
    Why: accelerate prepares the launch from distributed_type only.
    Instead: set the distributed_type that you want, or delete the block.
    Source: seen with accelerate 1.15.0: launch environment and arguments stay the same
    """
    if accelerate.on_sagemaker or not accelerate.kind:
        return
    for key, kinds in _HOME.items():
        if accelerate.get(key) and accelerate.kind not in kinds and accelerate.kind in DISTRIBUTED_TYPES:
            yield violation(
                "{key} only works with distributed_type {kinds}; here it is {kind}",
                remedy("delete it, or set distributed_type {kind}", {key: None}, kind=kinds[0]),
                where=key,
                kinds=", ".join(kinds),
            )
    for key, kinds in _NOT_FOR.items():
        off = accelerate.get("dynamo_config.dynamo_backend") in ("NO", "no", None, False) and key == "dynamo_config"
        if accelerate.section(key) and accelerate.kind in kinds and not off:
            yield violation(
                "{key} has no effect with distributed_type {kind}", safe(remedy("delete it", {key: None})), where=key
            )


@rule("TW253", level=Level.WARNING, field="fp8_config")
def fp8_needs_its_precision(accelerate: Accelerate) -> Violations:
    """fp8_config only takes effect with mixed_precision fp8.

    Without it: accelerate ignores the block, and the training uses the precision in mixed_precision.
    Why: accelerate reads fp8_config only for fp8.
    Instead: set mixed_precision: fp8
    Source: seen with accelerate 1.15.0
    """
    precision = accelerate.get("mixed_precision")
    if accelerate.section("fp8_config") and isinstance(precision, str) and precision.lower() in ("no", "fp16", "bf16"):
        fix = remedy("set mixed_precision: fp8, or delete the block", {"fp8_config": None})
        yield violation("fp8_config is ignored because mixed_precision is {precision}", fix, precision=precision)


@rule("TW254", level=Level.WARNING, field="fp8_config")
def fp8_keys_have_their_short_names(accelerate: Accelerate) -> Violations:
    """The keys of fp8_config are amax_history_len, amax_compute_algo and opt_level.

    Without it: amax_history_length, amax_compute_algorithm and optimization_level are ignored, and the defaults
    apply. These are the names that accelerate's own questionnaire has written.
    Why: the launcher's arguments have the short names.
    Instead: use the short names.
    Source: seen with accelerate 1.15.0
    """
    for old, new in _FP8_NAMES.items():
        path, right = f"fp8_config.{old}", f"fp8_config.{new}"
        if accelerate.has(path):
            fix = remedy("write {right}", {path: None, right: accelerate.get(path)}, right=new)
            yield violation("accelerate ignores {key}; it reads {right}", fix, where=path, key=old, right=new)


def _deleted(key: str, kind: str) -> Fix:
    """As options, all but one act on TPUs, and some on GPUs, too."""
    by_torchrun = key == "rdzv_backend" and kind not in ("NO", "MULTI_CPU")
    if key != "main_training_function" and (kind == "XLA" or by_torchrun or key == "enable_cpu_affinity"):
        return remedy("delete it, or pass it to accelerate launch on the command line", {key: None})
    return safe(remedy("delete it", {key: None}), key != "use_cpu")


def _silent(key: str, value: Any, kind: str) -> bool:
    if key == "rdzv_backend":
        return value not in (None, "static")
    if key in ("enable_cpu_affinity", "tpu_use_sudo"):
        return value is True
    if key == "downcast_bf16":
        return value is True or value in ("yes", "true")
    if key == "use_cpu":
        return value is True and kind not in ("NO", "MULTI_CPU")
    return key == "main_training_function" and value not in (None, "main") and kind != "XLA"
