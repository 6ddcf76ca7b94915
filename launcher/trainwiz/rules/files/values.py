"""Values that accelerate rejects: choices, numbers, placeholders, and what SageMaker and torch.compile need."""

from __future__ import annotations

import re
from typing import Any

from trainwiz.config import Accelerate
from trainwiz.config.spelling import not_one_of, respelling_fix
from trainwiz.engines.accelerate import (
    BLOCKS,
    COMPUTE_ENVIRONMENTS,
    DISTRIBUTED_TYPES,
    DYNAMO_BACKENDS,
    PRECISIONS,
    SAGEMAKER_TYPES,
    knows_keys_of,
    starts_sagemaker,
)
from trainwiz.engines.torch import COMPILE_MODES
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_TEMPLATE = re.compile(r"\$\{?\w+\}?|\$\(.*\)|<[^<>]*>|\{\{.*\}\}")
_LAST_PORT = 65535
_SAGEMAKER_NEEDS = ("ec2_instance_type", "iam_role_name")
_RENAMED = {"TPU": "XLA", "fp32": "no", "float32": "no", "float16": "fp16", "bfloat16": "bf16"}
_ALLOWED = {
    "compute_environment": COMPUTE_ENVIRONMENTS,
    "distributed_type": DISTRIBUTED_TYPES,
    "mixed_precision": PRECISIONS,
}


@rule("TW656", level=Level.ERROR, field="distributed_type")
def a_choice_is_one_that_exists(accelerate: Accelerate) -> Violations:
    """distributed_type, mixed_precision and compute_environment must have values that accelerate knows.

    Without it: `'MULTI_GPUS' is not a valid DistributedType`, `Unknown mixed_precision mode: fp17`; with another
    compute_environment, the keys of a cluster are reported as unknown.
    Why: the values are compared exactly; only mixed_precision ignores case.
    Instead: use one of the values that the finding lists.
    Source: seen with accelerate 1.15.0
    """
    for key, allowed in _ALLOWED.items():
        value = accelerate.get(key)
        if key == "distributed_type" and accelerate.on_sagemaker:
            allowed = SAGEMAKER_TYPES
        # TW657 and TW658 report false; for other values, accelerate calls lower() on the precision only.
        if not isinstance(value, str):
            elsewhere = key == "distributed_type" or (
                key == "mixed_precision" and (value is None or isinstance(value, bool))
            )
            if elsewhere or not accelerate.has(key):
                continue
        elif value in allowed or (key == "mixed_precision" and value.lower() in allowed):
            continue
        near = _RENAMED.get(str(value), "")
        yield not_one_of(allowed, str(value), where=key, key=key, near=near)


@rule("TW657", level=Level.ERROR, field="mixed_precision")
def no_is_quoted(accelerate: Accelerate) -> Violations:
    """mixed_precision 'no' must be quoted.

    Without it: `'bool' object has no attribute 'lower'`, without the name of the key.
    Why: YAML reads an unquoted no as false (it also reads yes, on and off as booleans).
    Instead: write mixed_precision: 'no'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    value = accelerate.get("mixed_precision")
    if isinstance(value, bool):
        written = accelerate.document.raw("mixed_precision")
        yield violation(
            "YAML reads mixed_precision {written} as {value}, which is not a precision",
            safe(remedy("write it with quotes: 'no'", {"mixed_precision": "no"})) if not value else None,
            written=written,
            value=str(value).lower(),
        )


@rule("TW658", level=Level.WARNING, field="distributed_type")
def a_bare_no_is_no_distributed_type(accelerate: Accelerate) -> Violations:
    """distributed_type 'NO' should be quoted.

    Without it: if the file has num_processes, it works by accident; if not, accelerate stops with `You need to
    manually pass in --num_processes`.
    Why: YAML reads an unquoted NO as false, which matches none of accelerate's values.
    Instead: write distributed_type: 'NO'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    # With SageMaker, it is the quoted word that accelerate rejects.
    if accelerate.get("distributed_type") is False and not accelerate.on_sagemaker:
        yield violation(
            "YAML reads distributed_type {written} as false, not as the word NO",
            safe(remedy("write it with quotes: 'NO'", {"distributed_type": "NO"})),
            written=accelerate.document.raw("distributed_type"),
        )


@rule("TW659", level=Level.ERROR, field="distributed_type")
def a_distributed_type_is_given(accelerate: Accelerate) -> Violations:
    """An accelerate file must set distributed_type.

    Without it: accelerate stops with `A distributed_type must be specified in the config file.`
    Why: accelerate has no default for it, regardless of the rest of the file.
    Instead: set MULTI_GPU for one model per GPU, DEEPSPEED, FSDP, or 'NO' for one process.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.get("distributed_type") is None:
        yield violation(
            "distributed_type is missing", remedy("add distributed_type: MULTI_GPU, or the type that you want")
        )


@rule("TW661", level=Level.ERROR, field="num_machines")
def a_count_is_a_number(accelerate: Accelerate) -> Violations:
    """Counts must be integers from 1, ports integers from 0 to 65535, without quotes or a decimal point.

    Without it: `'>' not supported between instances of 'str' and 'int'` (num_machines), `'str' object cannot be
    interpreted as an integer` (main_process_port), torchrun's `invalid literal for int()` (num_processes 2.0), or
    `port must be 0-65535`; with num_processes 0, torchrun starts nothing and stops with a bare AssertionError.
    Why: accelerate uses the values with the types that YAML gives them.
    Instead: write num_machines: 2
    Source: seen with accelerate 1.15.0
    """
    for key in ("num_machines", "main_process_port", "num_processes"):
        value = accelerate.get(key)
        # On one machine, a quoted num_processes is only passed on.
        harmless = key == "num_processes" and isinstance(value, str) and value.isdecimal() and accelerate.machines == 1
        absent = value is None and (key != "num_machines" or not accelerate.has(key) or accelerate.kind in ("NO", ""))
        if absent or harmless or _is_template(value) or (key == "num_machines" and value == 1):
            continue
        if type(value) is int:
            yield from _out_of_range(key, value)
            continue
        number = _whole(value)
        yield violation(
            "{key} is {value}, which is not a whole number",
            safe(remedy("write {number}", {key: number}, number=number)) if number is not None else None,
            where=key,
        )


def _out_of_range(key: str, value: int) -> Violations:
    # accelerate reads num_machines 0 as 1.
    low, high = {"main_process_port": (0, _LAST_PORT), "num_processes": (1, None)}.get(key, (value, None))
    if value < low:
        yield violation(
            "{key} is {value}; it must be at least {smallest}", where=key, key=key, value=value, smallest=low
        )
    elif high is not None and value > high:
        yield violation(
            "{key} is {value}; it must be {low} to {high}", where=key, key=key, value=value, low=low, high=high
        )


@rule("TW660", level=Level.ERROR, field="document")
def a_block_is_a_block(accelerate: Accelerate) -> Violations:
    """deepspeed_config, fsdp_config and the other blocks must be keys with values, not a single value.

    Without it: `'int' object is not iterable` for deepspeed_config; a single value instead of another block is silently
    ignored, and the defaults apply.
    Why: accelerate reads only the keys of a block.
    Instead: write the keys of the block below it, or delete it.
    Source: seen with accelerate 1.15.0
    """
    for block in BLOCKS:
        value = accelerate.get(block)
        if value is not None and not isinstance(value, dict) and value not in ("", []):
            yield violation("{key} is {value}; accelerate expects a block of keys", where=block)


@rule("TW687", level=Level.ERROR, field="num_processes")
def nothing_is_left_to_fill_in(accelerate: Accelerate) -> Violations:
    """An accelerate file must contain values, not variables or placeholders.

    Without it: `invalid literal for int() with base 10: '$SLURM_NODEID'`, or an unknown host `$MASTER_ADDR`.
    Why: neither YAML nor accelerate expands variables; a shell does so only in a heredoc whose `$` is not escaped.
    Instead: write the value; or omit the key, and run `accelerate launch --machine_rank "$SLURM_NODEID"`.
    Source: seen with accelerate 1.15.0
    """
    for key in ("machine_rank", "main_process_ip", "main_process_port", "num_machines", "num_processes"):
        value = accelerate.get(key)
        if _is_template(value):
            yield violation(
                "{key} is {value}, but accelerate does not substitute variables",
                remedy("pass it at launch: --{key} VALUE", key=key),
                where=key,
                value=value,
            )


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and bool(_TEMPLATE.fullmatch(value.strip()))


@rule("TW662", level=Level.ERROR, field="gpu_ids")
def gpu_ids_are_text(accelerate: Accelerate) -> Violations:
    """gpu_ids must be a string, even for a single GPU.

    Without it: `'int' object has no attribute 'split'`; for a list, `'list' object has no attribute 'split'`.
    Why: accelerate splits the string at commas. YAML reads an unquoted 0,1 as a string, but 0 as a number.
    Instead: write gpu_ids: '0' or gpu_ids: '0,1'
    Source: seen with accelerate 1.15.0
    """
    value = accelerate.get("gpu_ids")
    if value is None or isinstance(value, str):
        return
    ids = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    yield violation(
        "gpu_ids is {value}; it must be a string",
        # With a single one, several processes stop with their next error, which TW663 reports.
        safe(remedy("write it with quotes: '{ids}'", {"gpu_ids": ids}, ids=ids), "," in ids),
    )


@rule("TW677", level=Level.ERROR, field="compute_environment")
def sagemaker_files_are_launched_by_another_version(accelerate: Accelerate) -> Violations:
    """accelerate 1.15 cannot launch SageMaker files.

    Without it: the launch submits nothing: `'SageMakerConfig' object has no attribute 'parallelism_config'`.
    Why: the launcher reads parallelism_config from every file, but only files for LOCAL_MACHINE have it.
    Instead: submit with an older accelerate, or create the training job with the sagemaker package itself.
    Source: seen with accelerate 1.15.0; `_validate_launch_command` in accelerate/commands/launch.py
    """
    if accelerate.on_sagemaker and not starts_sagemaker(accelerate.version):
        yield violation("accelerate 1.15 stops on any AMAZON_SAGEMAKER file")


@rule("TW678", level=Level.ERROR, field="compute_environment")
def sagemaker_has_a_machine_and_a_role(accelerate: Accelerate) -> Violations:
    """A SageMaker file must set ec2_instance_type and iam_role_name, and must not use a quoted 'NO'.

    Without it: `SageMakerConfig.__init__() missing 1 required positional argument: 'iam_role_name'`; with a quoted
    'NO', `unknown keys (['num_processes'])`, a key that accelerate itself adds.
    Why: these two keys have no default; for 'NO', accelerate sets num_processes, which SageMaker files do not have.
    Instead: set both keys, and use DATA_PARALLEL, MODEL_PARALLEL or an unquoted NO.
    Source: seen with accelerate 1.15.0; accelerate/commands/config/config_args.py
    """
    if not accelerate.on_sagemaker:
        return
    missing = [key for key in _SAGEMAKER_NEEDS if not accelerate.get(key)]
    if missing:
        yield violation("a SageMaker file needs {keys}", keys=", ".join(missing))
    if accelerate.get("distributed_type") == "NO":
        yield violation(
            "with a quoted 'NO', accelerate adds a key that it then rejects",
            remedy("write it without quotes: NO"),
            where="distributed_type",
        )


@rule("TW679", level=Level.ERROR, field="dynamo_config.dynamo_backend")
def the_compiler_is_one_of_accelerates(accelerate: Accelerate) -> Violations:
    """dynamo_backend must be a backend that accelerate knows, dynamo_mode a mode that torch knows.

    Without it: `ValueError: Unknown dynamo backend: INDUCTR`, before any process starts; `Unrecognized
    mode=max_autotune` from torch.compile when the model is prepared.
    Why: accelerate has its own list of backends, in capitals, and passes the mode on without checking it.
    Instead: use INDUCTOR or NO for the backend; default, reduce-overhead, max-autotune or
    max-autotune-no-cudagraphs for the mode.
    Source: seen with accelerate 1.15.0 and torch 2.13
    """
    if accelerate.kind in ("DEEPSPEED", "XLA"):
        return
    for key in ("dynamo_backend", "backend"):
        path = f"dynamo_config.{key}"
        value = accelerate.get(path)
        known = value is None or str(value).upper() in DYNAMO_BACKENDS
        if value is False:
            quoted = safe(remedy("write it with quotes: 'NO'", {path: "NO"}))
            yield violation("YAML reads {key} {value} as false, and accelerate stops", quoted, where=path)
            continue
        if not known and knows_keys_of(accelerate.version):
            fix = respelling_fix(path, str(value).upper(), DYNAMO_BACKENDS)
            yield violation("accelerate has no dynamo backend {name}", fix, where=path, name=str(value))
    for key in ("dynamo_mode", "mode"):
        path = f"dynamo_config.{key}"
        value = accelerate.get(path)
        acts = str(accelerate.get("dynamo_config.dynamo_backend") or "NO").upper() != "NO"
        if acts and accelerate.has(path) and value not in COMPILE_MODES:
            yield not_one_of(COMPILE_MODES, str(value), where=path, key=key)


def _whole(value: object) -> int | None:
    try:
        number = float(value) if isinstance(value, str | float) else None
    except ValueError:
        return None
    return int(number) if number is not None and number.is_integer() else None
