"""Batch, schedule, optimizer and `auto` in a DeepSpeed file, alone and beside an accelerate file."""

from __future__ import annotations

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.config.spelling import respelling_fix
from trainwiz.engines.accelerate import FILLED_SETTINGS
from trainwiz.engines.deepspeed import SCHEDULERS, default_clipping
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_BATCH, _MICRO, _ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@rule("TW431", level=Level.ERROR, field=_BATCH)
def three_sizes_agree(deepspeed: DeepSpeed) -> Violations:
    """train_batch_size must be a multiple of micro-batch × accumulation, for any number of ranks.

    Without it: every rank stops with `Check batch related parameters. train_batch_size is not equal to
    micro_batch_per_gpu * gradient_acc_step * world_size`, after the model is built.
    Why: the number of ranks is an integer.
    Instead: remove train_batch_size; DeepSpeed computes it from the other two.
    Source: seen with DeepSpeed 0.19.8
    """
    real, micro, accumulation = (_count(deepspeed, key) for key in (_BATCH, _MICRO, _ACCUMULATION))
    if real and micro and accumulation and real % (micro * accumulation):
        yield violation(
            "{real} is not a multiple of {micro} × {accumulation} = {product}",
            remedy("delete train_batch_size; DeepSpeed computes it", {_BATCH: None}),
            real=real,
            micro=micro,
            accumulation=accumulation,
            product=micro * accumulation,
        )


@rule("TW432", level=Level.ERROR, field=_BATCH)
def the_batch_is_that_of_the_world(accelerate: Accelerate, deepspeed: DeepSpeed) -> Violations:
    """train_batch_size must equal micro-batch × accumulation × num_processes of the accelerate file.

    Without it: every rank stops with `Check batch related parameters. train_batch_size is not equal to …`, after
    the model is built.
    Why: the two files were written at different times, for different machines.
    Instead: remove train_batch_size; DeepSpeed computes it from the other two and the actual number of ranks.
    Source: seen with DeepSpeed 0.19.8; https://github.com/deepspeedai/DeepSpeed/issues/3982
    """
    real, micro, accumulation = (_count(deepspeed, key) for key in (_BATCH, _MICRO, _ACCUMULATION))
    world = accelerate.world
    apart = accelerate.section("parallelism_config") or deepspeed.section("tensor_parallel")
    if real and world and not micro and not apart and real % (world * (accumulation or 1)):
        yield violation(
            "{real} is not a multiple of {accumulation} × {world} processes, for any micro-batch",
            remedy(
                "set train_micro_batch_size_per_gpu instead; DeepSpeed computes train_batch_size",
                {_BATCH: None, _MICRO: "auto"} if accelerate.deepspeed_file else {},
            ),
            real=real,
            accumulation=accumulation or 1,
        )
    if not (real and micro and world) or (accumulation and real % (micro * accumulation)):
        return
    # accelerate counts a missing accumulation as 1.
    product = micro * (accumulation or 1) * world
    known = accumulation or deepspeed.get(_ACCUMULATION) is None
    if real != product and known and not apart:
        yield violation(
            "{real} is not {micro} × {accumulation} × {world} processes = {product}",
            remedy("delete train_batch_size; DeepSpeed computes it", {_BATCH: None}),
            real=real,
            micro=micro,
            accumulation=accumulation or 1,
            product=product,
        )


@rule("TW433", level=Level.WARNING, field=_MICRO)
def a_batch_is_given(deepspeed: DeepSpeed) -> Violations:
    """A DeepSpeed file must set train_micro_batch_size_per_gpu or train_batch_size, as a number or auto.

    Without it: DeepSpeed stops: `Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided`.
    Why: accumulation alone does not determine the batch size.
    Instead: under accelerate, set train_micro_batch_size_per_gpu: auto, which takes the value from the data loader;
    in other cases, set a number.
    Source: seen with DeepSpeed 0.19.8
    """
    if deepspeed.get(_BATCH) is None and deepspeed.get(_MICRO) is None:
        yield violation(
            "neither train_micro_batch_size_per_gpu nor train_batch_size is set",
            remedy("add train_micro_batch_size_per_gpu: auto, or a number", {_MICRO: "auto"}),
            where=_ACCUMULATION if deepspeed.has(_ACCUMULATION) else _MICRO,
        )


@rule("TW434", level=Level.HINT, field=_ACCUMULATION)
def accumulation_is_said(deepspeed: DeepSpeed) -> Violations:
    """A DeepSpeed file should set gradient_accumulation_steps, as a number or auto.

    Without it: accelerate sets it to 1 and overrides the script's `Accelerator(gradient_accumulation_steps=…)`,
    with only a line in the log.
    Why: under DeepSpeed, the engine accumulates, and its file takes precedence.
    Instead: set auto, which takes the script's value; or set the number.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    if deepspeed.get(_ACCUMULATION) is None and not (_count(deepspeed, _BATCH) and _count(deepspeed, _MICRO)):
        fix = remedy("add gradient_accumulation_steps: auto, or a number", {_ACCUMULATION: "auto"})
        yield violation("gradient_accumulation_steps is not set: it becomes 1, and the script's value is ignored", fix)


@rule("TW435", level=Level.HINT, field="gradient_clipping")
def the_file_says_how_it_clips(deepspeed: DeepSpeed) -> Violations:
    """A DeepSpeed file should set gradient_clipping.

    Without it: DeepSpeed 0.19 clips at 1.0, but 0.18 does not clip at all: the same file trains differently.
    Why: the default changed between these versions.
    Instead: set gradient_clipping: 1.0, or 0.0 for no clipping.
    Source: seen with DeepSpeed 0.19.8 and 0.16.5; read in 0.18.9
    """
    if deepspeed.get("gradient_clipping") is None:
        yield violation(
            "gradient_clipping is not set; DeepSpeed {shown_version} uses {value}",
            remedy("add gradient_clipping: 1.0, or 0.0 to disable clipping", {"gradient_clipping": 1.0}),
            value=default_clipping(deepspeed.version),
        )


@rule("TW352", level=Level.ERROR, field="zero_optimization")
def accelerate_wants_a_zero_block(accelerate: Accelerate, deepspeed: DeepSpeed) -> Violations:
    """Under accelerate, a DeepSpeed file must have a zero_optimization block.

    Without it: every rank fails after the imports with `Please specify the ZeRO optimization config in the
    DeepSpeed config.`
    Why: accelerate reads the stage from this block; DeepSpeed alone would use stage 0.
    Instead: add zero_optimization with a stage; use stage 0 for no ZeRO.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.deepspeed_file and not deepspeed.has("zero_optimization"):
        fix = remedy("add zero_optimization with a stage", {"zero_optimization": {"stage": 0}})
        yield violation("zero_optimization is missing; accelerate stops without it", fix)


@rule("TW353", level=Level.ERROR, field="deepspeed")
def somebody_fills_an_auto(deepspeed: DeepSpeed) -> Violations:
    """`auto` only works for keys that accelerate or the Trainer of transformers fills in.

    Without it: accelerate stops with `… not found in kwargs. Please specify … without auto`. DeepSpeed alone
    silently uses its default inside zero_optimization, and stops with a TypeError for a top-level key.
    Why: DeepSpeed has no `auto` value. accelerate and the Trainer replace it for about two dozen keys.
    Instead: write a number.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    for keys, entry in deepspeed.document.entries.items():
        path = ".".join(keys)
        if path in FILLED_SETTINGS or deepspeed.document.text[entry.value.start : entry.value.end] != '"auto"':
            continue
        # Lists are skipped, and in these blocks `auto` has another meaning.
        if any(key.isdecimal() for key in keys) or keys[0] in ("data_types", "autotuning", "comment", "_comment"):
            continue
        fix = remedy("write a value, or delete it to use DeepSpeed's default", {path: None})
        yield violation("nothing replaces auto in {key}", fix, where=path, key=path)


@rule("TW354", level=Level.ERROR, field="optimizer.params.max_grad_norm")
def clipping_is_no_parameter_of_the_optimizer(deepspeed: DeepSpeed) -> Violations:
    """max_grad_norm must not be among the optimizer's parameters.

    Without it: every rank builds the model, then fails: `'max_grad_norm' is not supported as an optimizer parameter`.
    Why: gradient clipping is done by the engine, not by the optimizer.
    Instead: set gradient_clipping at the top level.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "optimizer.params.max_grad_norm"
    if deepspeed.has(path):
        value = deepspeed.get(path)
        free = deepspeed.get("gradient_clipping") is None
        yield violation(
            "max_grad_norm {value} is not allowed here; gradient_clipping sets the clipping",
            safe(
                remedy(
                    "set gradient_clipping at the top level",
                    {path: None, "gradient_clipping": value} if free else {path: None},
                ),
                free and type(value) in (int, float),
            ),
            value=value,
        )


@rule("TW355", level=Level.ERROR, field="scheduler")
def the_scheduler_can_be_made(deepspeed: DeepSpeed) -> Violations:
    """The scheduler must be one of DeepSpeed's; a scheduler that decays needs total_num_steps.

    Without it: every rank fails with `DeepSpeed does not recognize LR scheduler` or `missing 1 required positional
    argument: 'total_num_steps'` after the model is built.
    Why: DeepSpeed looks up the name exactly as written, and a decay needs an end.
    Instead: use WarmupLR, WarmupDecayLR or WarmupCosineLR with total_num_steps, OneCycle, or LRRangeTest.
    Source: seen with DeepSpeed 0.19.8
    """
    name = deepspeed.get("scheduler.type")
    if not isinstance(name, str):
        return
    if name not in SCHEDULERS:
        yield violation(
            "DeepSpeed has no scheduler {name}; available: {known}",
            respelling_fix("scheduler.type", name, SCHEDULERS),
            where="scheduler.type",
            name=name,
            known=", ".join(SCHEDULERS),
        )
    elif name in ("WarmupDecayLR", "WarmupCosineLR") and deepspeed.get("scheduler.params.total_num_steps") is None:
        yield violation(
            "{name} needs total_num_steps, which is not set",
            remedy(
                "add total_num_steps: the number of updates of the whole training",
                {"scheduler.params.total_num_steps": "auto"},
            ),
            where="scheduler.params" if deepspeed.has("scheduler.params") else "scheduler",
            name=name,
        )


def _count(deepspeed: DeepSpeed, key: str) -> int | None:
    value = deepspeed.get(key)
    return value if type(value) is int and value > 0 else None
