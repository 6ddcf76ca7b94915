"""Numbers of a DeepSpeed file that stop the engine late, or train otherwise than they say."""

from __future__ import annotations

from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.engines import deepspeed_types as types
from trainwiz.engines.deepspeed import REMOVALS
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule

_PARAMS = "scheduler.params"
_BETAS_OF = {"adam": 2, "adamw": 2, "lion": 2}


@rule("TW399", level=Level.ERROR, field="optimizer.params")
def numbers_lie_in_their_range(deepspeed: DeepSpeed) -> Violations:
    """Rates, steps and scales in a DeepSpeed file must be in range; betas are two numbers, at least 0 and below 1.

    Without it: every rank fails after the model is built, with `warmup_num_steps must be a positive integer, got 0`,
    `cannot unpack non-iterable float object` in the first update, or `fp16.loss_scale must be >= 0`; a negative rate
    makes the loss climb with a fused optimizer.
    Why: most of these numbers are checked only when the optimizer or the schedule uses them.
    Instead: write a number from the range in the finding.
    Source: seen with DeepSpeed 0.19.8 and torch 2.13
    """
    for path in sorted({*types.LEAST, *types.POSITIVE}):
        value = deepspeed.get(path)
        # Older versions take a warm-up of 0 for one of 2.
        if not (_is_number(value) or value is False) or (
            path.startswith((_PARAMS, "hybrid", "fp16")) and deepspeed.version < REMOVALS
        ):
            continue
        least, most = types.LEAST.get(path), types.MOST.get(path)
        if least is not None and value < least:
            yield violation("{key} is {value}; it must be at least {smallest}", where=path, key=path, smallest=least)
        elif most is not None and value > most:
            yield violation("{key} is {value}; it must be {low} to {high}", where=path, key=path, low=least, high=most)
        elif path in types.POSITIVE and value <= 0:
            yield violation("{key} is {value}; it must be positive", where=path, key=path)
        elif path in types.WHOLE_STEPS and not float(value).is_integer():
            yield violation("{key} is {value}; DeepSpeed expects a whole number", where=path, key=path)
    yield from _betas(deepspeed)


def _betas(deepspeed: DeepSpeed) -> Violations:
    path, name = "optimizer.params.betas", deepspeed.get("optimizer.type")
    count = _BETAS_OF.get(name.lower()) if isinstance(name, str) else None
    value = deepspeed.get(path)
    if count is None or not deepspeed.has(path) or value == "auto":
        return
    given = value if isinstance(value, list) else []
    if len(given) != count or not all(_is_number(beta) and 0 <= beta < 1 for beta in given):
        yield violation(
            "betas is {value}; it must be a list of {count} numbers, at least 0 and below 1, like [0.9, 0.999]",
            where=path,
            count=count,
        )


@rule("TW441", level=Level.WARNING, field="gradient_clipping")
def clipping_is_not_negative(deepspeed: DeepSpeed) -> Violations:
    """A negative gradient_clipping clips nothing.

    Without it: gradients are never clipped, and nothing says so.
    Why: DeepSpeed clips only `if gradient_clipping > 0.0`.
    Instead: write the norm, or 0.0 to disable clipping.
    Source: seen with DeepSpeed 0.19.8
    """
    value = deepspeed.get("gradient_clipping")
    if _is_number(value) and value < 0:
        yield violation("gradient_clipping is {value}: gradients are not clipped", remedy("write the norm, or 0.0"))


@rule("TW442", level=Level.WARNING, field="optimizer")
def an_optimizer_has_a_rate(deepspeed: DeepSpeed) -> Violations:
    """The optimizer in a DeepSpeed file should set its learning rate.

    Without it: the training uses the optimizer's default of 0.001 (also for torch's SGD), regardless of the script or
    the Trainer.
    Why: DeepSpeed passes only the parameters in the file to its classes.
    Instead: add "lr" to params, or "auto" under accelerate and the Trainer.
    Source: seen with DeepSpeed 0.19.8
    """
    kind, scheduled = deepspeed.get("optimizer.type"), deepspeed.get("scheduler.type")
    rates = {"WarmupLR": "warmup_max_lr", "WarmupDecayLR": "warmup_max_lr", "OneCycle": "cycle_max_lr"}
    set_by = rates.get(scheduled, "") if isinstance(scheduled, str) else ""
    if (
        isinstance(kind, str)
        and deepspeed.get("optimizer.params.lr") is None
        and not deepspeed.has(f"{_PARAMS}.{set_by}")
    ):
        yield violation(
            "the optimizer has no lr and trains at its default, 0.001",
            remedy('add "lr" to its params'),
            where="optimizer.params" if deepspeed.has("optimizer.params") else "optimizer",
        )


@rule("TW445", level=Level.WARNING, field="optimizer.type")
def a_block_names_its_class(deepspeed: DeepSpeed) -> Violations:
    """The optimizer and scheduler blocks of a DeepSpeed file need a type.

    Without it: the whole block is silently ignored: the script's optimizer is used, or there is none.
    Why: DeepSpeed reads the parameters only if it finds a type.
    Instead: add "type": "AdamW", or delete the block.
    Source: seen with DeepSpeed 0.19.8
    """
    for block in ("optimizer", "scheduler"):
        if deepspeed.section(block) and deepspeed.get(f"{block}.type") is None:
            yield violation('{key} has no "type" and is ignored', where=block, key=block)


@rule("TW443", level=Level.WARNING, field=_PARAMS)
def a_schedule_rises_and_ends_after_its_warm_up(deepspeed: DeepSpeed) -> Violations:
    """A schedule's total must be more than its warm-up, and its largest rate at least its smallest.

    Without it: WarmupDecayLR with a total of 10 and a warm-up of 100 raises the rate for 100 updates and then trains at
    0; a warm-up from 0.01 to 0.001 falls instead of rising; one of type "cosine" rises logarithmically. DeepSpeed logs
    one line, or nothing.
    Why: the decay uses the steps of the total that are left after the warm-up.
    Instead: set total_num_steps to the updates of the whole training.
    Source: seen with DeepSpeed 0.19.8: the rates of the first 150 updates
    """
    warm, total = (deepspeed.get(f"{_PARAMS}.{key}") for key in ("warmup_num_steps", "total_num_steps"))
    kind = deepspeed.get("scheduler.type")
    decays = kind in ("WarmupDecayLR", "WarmupCosineLR")
    if decays and _is_number(warm) and _is_number(total) and total <= warm:
        yield violation(
            "total_num_steps {total} is not more than warmup_num_steps {warm}: after the warm-up the learning "
            "rate is 0",
            remedy("set it to the number of updates of the whole training"),
            where=f"{_PARAMS}.total_num_steps",
            total=total,
            warm=warm,
        )
    shape, known = deepspeed.get(f"{_PARAMS}.warmup_type", "log"), types.WORDS[f"{_PARAMS}.warmup_type"]
    if shape not in (*known, "auto") and not isinstance(shape, (list, dict)):
        yield violation(
            "warmup_type is {value}, which DeepSpeed does not know: it warms up with {default}",
            remedy("write {choices}", choices=" or ".join(known)),
            where=f"{_PARAMS}.warmup_type",
            value=shape,
            default=known[0],
        )
    for low, high in (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr")):
        least, most = deepspeed.get(f"{_PARAMS}.{low}"), deepspeed.get(f"{_PARAMS}.{high}")
        if _is_number(least) and _is_number(most) and least > most:
            yield violation(
                "{low} {least} is more than {high} {most}: the learning rate falls where it should rise",
                where=f"{_PARAMS}.{low}",
                low=low,
                least=least,
                high=high,
                most=most,
            )


@rule("TW444", level=Level.WARNING, field="steps_per_print")
def steps_between_lines_are_positive(deepspeed: DeepSpeed) -> Violations:
    """steps_per_print must be positive.

    Without it: the first update fails with `ZeroDivisionError: integer modulo by zero`; only accelerate, which sets the
    number itself, hides it.
    Why: DeepSpeed divides the number of updates by it.
    Instead: use a large number to print few lines.
    Source: seen with DeepSpeed 0.19.8
    """
    value = deepspeed.get("steps_per_print")
    if isinstance(value, int | float) and value == 0:
        yield violation("steps_per_print is 0; DeepSpeed divides by it", remedy("write a positive number"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
