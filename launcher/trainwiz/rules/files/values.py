"""Values that accelerate cannot take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainwiz.config import Accelerate
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import COMPUTE_ENVIRONMENTS, DISTRIBUTED_TYPES, PRECISIONS, SAGEMAKER_TYPES
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_TEMPLATE = re.compile(r"\$\{?\w+\}?|\$\(.*\)|<[^<>]*>|\{\{.*\}\}")
_LAST_PORT = 65535
_RENAMED = {"TPU": "XLA", "fp32": "no", "float32": "no", "float16": "fp16", "bfloat16": "bf16"}
_ALLOWED = {
    "compute_environment": COMPUTE_ENVIRONMENTS,
    "distributed_type": DISTRIBUTED_TYPES,
    "mixed_precision": PRECISIONS,
}


@rule("TW656", level=Level.ERROR, field="distributed_type")
def a_choice_is_one_that_exists(accelerate: Accelerate) -> Iterator[Violation]:
    """distributed_type, mixed_precision and compute_environment must have values that accelerate knows.

    Without it: `'MULTI_GPUS' is not a valid DistributedType`, `Unknown mixed_precision mode: fp17`; with another
    compute_environment, the keys of a cluster are reported as unknown.
    Why: the values are compared exactly; only mixed_precision ignores case.
    Instead: use one of the values that the finding lists.
    Source: seen with accelerate 1.15.0
    """
    for key, allowed in _ALLOWED.items():
        value = accelerate.get(key)
        if key == "distributed_type" and accelerate.get("compute_environment") == "AMAZON_SAGEMAKER":
            allowed = SAGEMAKER_TYPES
        # Of what is no word, false has rules of its own; accelerate asks a precision alone for its lower case.
        if not isinstance(value, str):
            if key != "mixed_precision" or value is None or isinstance(value, bool):
                continue
        elif value in allowed or (key == "mixed_precision" and value.lower() in allowed):
            continue
        near = _RENAMED.get(str(value)) or nearest(str(value), allowed)
        yield accelerate.wrong(
            key,
            say("{key} is {value}; it must be one of {choices}", key=key, value=str(value), choices=", ".join(allowed)),
            remedy("did you mean {key}?", {key: near}, key=near) if near else None,
        )


@rule("TW657", level=Level.ERROR, field="mixed_precision")
def no_is_quoted(accelerate: Accelerate) -> Iterator[Violation]:
    """mixed_precision 'no' must be quoted.

    Without it: `'bool' object has no attribute 'lower'`, without the name of the key.
    Why: YAML reads an unquoted no as false (it also reads yes, on and off as booleans).
    Instead: write mixed_precision: 'no'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    value = accelerate.get("mixed_precision")
    if isinstance(value, bool):
        written = accelerate.document.raw("mixed_precision")
        yield accelerate.wrong(
            "mixed_precision",
            say(
                "YAML reads mixed_precision {written} as {value}, which is not a precision",
                written=written,
                value=str(value).lower(),
            ),
            remedy("write it with quotes: 'no'", {"mixed_precision": "no"}) if not value else None,
        )


@rule("TW658", level=Level.WARNING, field="distributed_type")
def a_bare_no_is_no_distributed_type(accelerate: Accelerate) -> Iterator[Violation]:
    """distributed_type 'NO' should be quoted.

    Without it: if the file has num_processes, it works by accident; if not, accelerate stops with `You need to
    manually pass in --num_processes`.
    Why: YAML reads an unquoted NO as false, which matches none of accelerate's values.
    Instead: write distributed_type: 'NO'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    on_sagemaker = accelerate.get("compute_environment") == "AMAZON_SAGEMAKER"  # where the quoted word stops
    if accelerate.get("distributed_type") is False and not on_sagemaker:
        yield accelerate.wrong(
            "distributed_type",
            say(
                "YAML reads distributed_type {written} as false, not as the word NO",
                written=accelerate.document.raw("distributed_type"),
            ),
            remedy("write it with quotes: 'NO'", {"distributed_type": "NO"}),
        )


@rule("TW659", level=Level.ERROR, field="distributed_type")
def a_distributed_type_is_given(accelerate: Accelerate) -> Iterator[Violation]:
    """An accelerate file must set distributed_type.

    Without it: accelerate stops with `A distributed_type must be specified in the config file.`
    Why: accelerate has no default for it, regardless of the rest of the file.
    Instead: set MULTI_GPU for one model per GPU, DEEPSPEED, FSDP, or 'NO' for one process.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.get("distributed_type") is None:
        yield accelerate.wrong(
            "distributed_type",
            say("distributed_type is missing"),
            remedy("add distributed_type: MULTI_GPU, or the type that you want"),
        )


@rule("TW661", level=Level.ERROR, field="num_machines")
def a_count_is_a_number(accelerate: Accelerate) -> Iterator[Violation]:
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
        # A quoted number of processes is only ever passed on, as long as there is one machine.
        harmless = key == "num_processes" and isinstance(value, str) and value.isdecimal() and accelerate.machines == 1
        if value is None or harmless or _is_template(value) or (key == "num_machines" and value == 1):
            continue
        if type(value) is int:
            yield from _out_of_range(accelerate, key, value)
            continue
        number = _whole(value)
        yield accelerate.wrong(
            key,
            say("{key} is {value}, which is not a whole number", key=key, value=accelerate.document.raw(key)),
            remedy("write {number}", {key: number}, number=number) if number is not None else None,
        )


def _out_of_range(accelerate: Accelerate, key: str, value: int) -> Iterator[Violation]:
    # No machine at all counts as one.
    low, high = {"main_process_port": (0, _LAST_PORT), "num_processes": (1, None)}.get(key, (value, None))
    if value < low:
        yield accelerate.wrong(
            key, say("{key} is {value}; it must be at least {smallest}", key=key, value=value, smallest=low)
        )
    elif high is not None and value > high:
        yield accelerate.wrong(
            key, say("{key} is {value}; it must be {low} to {high}", key=key, value=value, low=low, high=high)
        )


@rule("TW687", level=Level.ERROR, field="num_processes")
def nothing_is_left_to_fill_in(accelerate: Accelerate) -> Iterator[Violation]:
    """An accelerate file must contain values, not variables or placeholders.

    Without it: `invalid literal for int() with base 10: '$SLURM_NODEID'`, or a host called `$MASTER_ADDR` that does
    not exist.
    Why: YAML has no variables, and accelerate does not expand any; a shell expands them only in a heredoc, and not
    if its `$` is escaped.
    Instead: write the value; or omit the key, and run `accelerate launch --machine_rank "$SLURM_NODEID"`.
    Source: seen with accelerate 1.15.0
    """
    for key in ("machine_rank", "main_process_ip", "main_process_port", "num_machines", "num_processes"):
        value = accelerate.get(key)
        if _is_template(value):
            yield accelerate.wrong(
                key,
                say("{key} is {value}, but accelerate does not substitute variables", key=key, value=value),
                remedy("pass it at launch: --{key} VALUE", key=key),
            )


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and bool(_TEMPLATE.fullmatch(value.strip()))


@rule("TW662", level=Level.ERROR, field="gpu_ids")
def gpu_ids_are_text(accelerate: Accelerate) -> Iterator[Violation]:
    """gpu_ids must be a string, even for a single GPU.

    Without it: `'int' object has no attribute 'split'`; for a list, `'list' object has no attribute 'split'`.
    Why: accelerate splits the string at its commas. YAML reads an unquoted 0,1 as a string, but an unquoted 0 as a
    number.
    Instead: write gpu_ids: '0' or gpu_ids: '0,1'
    Source: seen with accelerate 1.15.0
    """
    value = accelerate.get("gpu_ids")
    if value is None or isinstance(value, str):
        return
    ids = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    yield accelerate.wrong(
        "gpu_ids",
        say("gpu_ids is {value}; it must be a string", value=accelerate.document.raw("gpu_ids")),
        remedy("write it with quotes: '{ids}'", {"gpu_ids": ids}, ids=ids),
    )


def _whole(value: object) -> int | None:
    try:
        number = float(value) if isinstance(value, str | float) else None
    except ValueError:
        return None
    return int(number) if number is not None and number.is_integer() else None
