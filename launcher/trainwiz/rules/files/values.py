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
    """distributed_type, mixed_precision and compute_environment hold one of accelerate's words.

    Without it: `'MULTI_GPUS' is not a valid DistributedType`, `Unknown mixed_precision mode: fp17`; after another
    compute_environment the keys of a cluster are called unknown.
    Why: the words are looked up as they stand; only mixed_precision's case does not matter.
    Instead: one of the words that the finding lists.
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
            say("{key} is {value}; it may be {choices}", key=key, value=str(value), choices=", ".join(allowed)),
            remedy("did you mean {key}?", {key: near}, key=near) if near else None,
        )


@rule("TW657", level=Level.ERROR, field="mixed_precision")
def no_is_quoted(accelerate: Accelerate) -> Iterator[Violation]:
    """mixed_precision 'no' has quotes.

    Without it: `'bool' object has no attribute 'lower'`, which names no key.
    Why: YAML reads a bare no as false (and yes, on, off as truth values, too).
    Instead: mixed_precision: 'no'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    value = accelerate.get("mixed_precision")
    if isinstance(value, bool):
        written = accelerate.document.raw("mixed_precision")
        yield accelerate.wrong(
            "mixed_precision",
            say(
                "mixed_precision {written} is {value} to YAML, and no precision",
                written=written,
                value=str(value).lower(),
            ),
            remedy("write it with quotes: 'no'", {"mixed_precision": "no"}) if not value else None,
        )


@rule("TW658", level=Level.WARNING, field="distributed_type")
def a_bare_no_is_no_distributed_type(accelerate: Accelerate) -> Iterator[Violation]:
    """distributed_type 'NO' has quotes.

    Without it: with num_processes in the file, it works by accident; without it, accelerate stops with `You need to
    manually pass in --num_processes`.
    Why: YAML reads a bare NO as false; accelerate compares that with its own words and finds none of them.
    Instead: distributed_type: 'NO'
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    on_sagemaker = accelerate.get("compute_environment") == "AMAZON_SAGEMAKER"  # where the quoted word stops
    if accelerate.get("distributed_type") is False and not on_sagemaker:
        yield accelerate.wrong(
            "distributed_type",
            say(
                "distributed_type {written} is false to YAML, and not the word NO",
                written=accelerate.document.raw("distributed_type"),
            ),
            remedy("write it with quotes: 'NO'", {"distributed_type": "NO"}),
        )


@rule("TW659", level=Level.ERROR, field="distributed_type")
def a_distributed_type_is_given(accelerate: Accelerate) -> Iterator[Violation]:
    """An accelerate file says its distributed_type.

    Without it: `A distributed_type must be specified in the config file.`
    Why: accelerate has no default for it, whatever else the file holds.
    Instead: MULTI_GPU for one model per GPU, DEEPSPEED, FSDP, or 'NO' for one process.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.get("distributed_type") is None:
        yield accelerate.wrong(
            "distributed_type",
            say("there is no distributed_type"),
            remedy("add distributed_type: MULTI_GPU, or whichever is meant"),
        )


@rule("TW661", level=Level.ERROR, field="num_machines")
def a_count_is_a_number(accelerate: Accelerate) -> Iterator[Violation]:
    """Counts are whole numbers from 1, ports from 0 to 65535, without quotes and without a point.

    Without it: `'>' not supported between instances of 'str' and 'int'` (num_machines), `'str' object cannot be
    interpreted as an integer` (main_process_port), or torchrun's `invalid literal for int()` (num_processes 2.0);
    `port must be 0-65535`; with num_processes 0 torchrun starts nothing and stops with a bare AssertionError.
    Why: accelerate computes with the values as YAML typed them.
    Instead: num_machines: 2
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
            key, say("{key} is {value}; it runs from {low} to {high}", key=key, value=value, low=low, high=high)
        )


@rule("TW687", level=Level.ERROR, field="num_processes")
def nothing_is_left_to_fill_in(accelerate: Accelerate) -> Iterator[Violation]:
    """accelerate's file holds values, and no variables or blanks to fill in.

    Without it: `invalid literal for int() with base 10: '$SLURM_NODEID'`, or an address called `$MASTER_ADDR` that
    nobody finds.
    Why: YAML knows no variables, and accelerate fills in none; a shell does so in a heredoc only, and not in one whose
    `$` is masked.
    Instead: the value; or the key left out, and `accelerate launch --machine_rank "$SLURM_NODEID"`.
    Source: seen with accelerate 1.15.0
    """
    for key in ("machine_rank", "main_process_ip", "main_process_port", "num_machines", "num_processes"):
        value = accelerate.get(key)
        if _is_template(value):
            yield accelerate.wrong(
                key,
                say("{key} is {value}, and accelerate fills in no variables", key=key, value=value),
                remedy("give it at the launch: --{key} VALUE", key=key),
            )


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and bool(_TEMPLATE.fullmatch(value.strip()))


@rule("TW662", level=Level.ERROR, field="gpu_ids")
def gpu_ids_are_text(accelerate: Accelerate) -> Iterator[Violation]:
    """gpu_ids is a text, also where it is one number.

    Without it: `'int' object has no attribute 'split'`; of a list, `'list' object has no attribute 'split'`.
    Why: accelerate splits the text at its commas. A bare 0,1 is a text to YAML, a bare 0 is a number.
    Instead: gpu_ids: '0' or gpu_ids: '0,1'
    Source: seen with accelerate 1.15.0
    """
    value = accelerate.get("gpu_ids")
    if value is None or isinstance(value, str):
        return
    ids = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    yield accelerate.wrong(
        "gpu_ids",
        say("gpu_ids is {value}, and not a text", value=accelerate.document.raw("gpu_ids")),
        remedy("write it with quotes: '{ids}'", {"gpu_ids": ids}, ids=ids),
    )


def _whole(value: object) -> int | None:
    try:
        number = float(value) if isinstance(value, str | float) else None
    except ValueError:
        return None
    return int(number) if number is not None and number.is_integer() else None
