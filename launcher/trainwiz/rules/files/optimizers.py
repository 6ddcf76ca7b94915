"""The optimizer and the scheduler of a DeepSpeed file: names, parameters, and what ZeRO makes of them."""

from __future__ import annotations

from collections.abc import Collection

from trainwiz.config import DeepSpeed
from trainwiz.config.spelling import nearest, renamed, respelling_fix
from trainwiz.engines import torch
from trainwiz.engines.deepspeed import (
    ONE_BIT_OPTIMIZERS,
    OPTIMIZER_PARAMETERS,
    OPTIMIZERS,
    REMOVALS,
    SCHEDULERS,
    TESTED_OPTIMIZERS,
)
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_ELSEWHERE = {
    "learning_rate": "lr",
    "warmup_steps": "warmup_num_steps",
    "num_warmup_steps": "warmup_num_steps",
    "num_training_steps": "total_num_steps",
    "total_steps": "total_num_steps",
    "epsilon": "eps",
    "min_lr": "warmup_min_lr",
    "max_lr": "warmup_max_lr",
}
"""Parameters by their names in other libraries."""


@rule("TW357", level=Level.ERROR, field="optimizer.type")
def the_optimizer_is_one_of_deepspeeds(deepspeed: DeepSpeed) -> Violations:
    """The optimizer in the DeepSpeed file must exist in DeepSpeed or torch.

    Without it: every rank fails with `AssertionError: OneBitAdam is not a supported DeepSpeed Optimizer` after the
    model is built.
    Why: DeepSpeed looks up the name only when it creates the engine. DeepSpeed 0.19 removed the 1-bit optimizers.
    Instead: use AdamW. To communicate less, use more accumulation or ZeRO++'s quantized gradients.
    Source: seen with DeepSpeed 0.19.8; 0.18.9 has OneBitAdam, ZeroOneAdam and OneBitLamb, without ZeRO 2 and 3
    """
    name = deepspeed.get("optimizer.type")
    if not isinstance(name, str) or name.lower() in OPTIMIZERS or name in torch.OPTIMIZERS:
        return
    if name.lower() in ONE_BIT_OPTIMIZERS and deepspeed.version < REMOVALS:
        return
    usual = {"AdamW", "Adam", "Lion", "Lamb", "Adagrad", "Muon", "SGD"}
    fix = respelling_fix("optimizer.type", name, usual) or remedy("use AdamW")
    yield violation("DeepSpeed has no optimizer {name}", fix, name=name)


@rule("TW358", level=Level.ERROR, field="optimizer.type")
def zero_takes_an_untested_optimizer_only_when_told(deepspeed: DeepSpeed) -> Violations:
    """Under ZeRO, an optimizer that DeepSpeed has not tested needs zero_allow_untested_optimizer.

    Without it: every rank builds the model, then fails: `AssertionError: You are using an untested ZeRO Optimizer`.
    Why: ZeRO gives the optimizer flattened pieces of the parameters. An optimizer that works per layer (such as
    Lamb with its trust ratio) then computes something else.
    Instead: use AdamW; for an optimizer that works element by element, such as SGD, set
    zero_allow_untested_optimizer: true.
    Source: seen with DeepSpeed 0.19.8
    """
    name = deepspeed.get("optimizer.type")
    if not isinstance(name, str) or not deepspeed.stage or deepspeed.get("zero_allow_untested_optimizer") is True:
        return
    if name in torch.OPTIMIZERS and name.lower() not in TESTED_OPTIMIZERS:
        fix = remedy("add zero_allow_untested_optimizer: true, or use AdamW", {"zero_allow_untested_optimizer": True})
        yield violation("{name} is not tested with ZeRO, and stage {stage} rejects it", fix, name=name)


@rule("TW359", level=Level.ERROR, field="optimizer.type")
def muon_reduces_whole_gradients(deepspeed: DeepSpeed) -> Violations:
    """Muon at ZeRO stage 3 needs reduce_scatter false.

    Without it: every rank builds the model, then fails: `ValueError: Muon and reduce scatter cannot be used
    together`.
    Why: Muon works on whole matrices, but reduce-scatter leaves each rank only a piece of their gradients.
    Instead: set reduce_scatter: false, or use AdamW.
    Source: seen with DeepSpeed 0.19.8
    """
    name, path = deepspeed.get("optimizer.type"), "zero_optimization.reduce_scatter"
    if isinstance(name, str) and name.lower() == "muon" and deepspeed.stage == 3 and deepspeed.get(path, True) is True:
        fix = safe(remedy("set zero_optimization.reduce_scatter to false", {path: False}))
        yield violation("Muon does not work with reduce_scatter, which is on at stage 3", fix)


@rule("TW373", level=Level.ERROR, field="bf16")
def low_precision_state_is_offloaded(deepspeed: DeepSpeed) -> Violations:
    """bf16_master_weights_and_grads needs CPU optimizer offload; bf16_optimizer_states needs both.

    Without it: every rank fails with `AssertionError: Master weights feature requires ZeRO-2 Offload with
    DeepSpeedCPUAdam`, or `bf16_optimizer_states requires bf16_master_weights_and_grads to be enabled`.
    Why: only the CPU version of Adam can compute with bf16 master weights.
    Instead: use offload_optimizer with device cpu, or fp32 master weights.
    Source: seen with DeepSpeed 0.19.8
    """
    masters, states = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
    if deepspeed.get(states) is True and deepspeed.get(masters) is not True:
        fix = remedy("set bf16_master_weights_and_grads to true, or delete this key", {states: None})
        yield violation("bf16_optimizer_states needs bf16_master_weights_and_grads", fix, where=states)
    away = deepspeed.get("zero_optimization.offload_optimizer.device", "none")
    if deepspeed.get(masters) is True and away != "cpu" and deepspeed.stage in (1, 2):
        yield violation(
            "bf16 master weights need the optimizer offloaded to the CPU; its device is {device}",
            remedy("set offload_optimizer.device to cpu, or delete this key"),
            where=masters,
            device=away,
        )


@rule("TW398", level=Level.ERROR, field="optimizer.params")
def optimizer_and_scheduler_take_their_parameters(deepspeed: DeepSpeed) -> Violations:
    """The parameters of the optimizer and scheduler must exist in their classes.

    Without it: every rank fails with `WarmupLR.__init__() got an unexpected keyword argument 'warmup_steps'` after
    the model is built.
    Why: DeepSpeed passes the block unchanged to the class named in `type`. The names are DeepSpeed's, not those of
    transformers (warmup_steps, learning_rate) or torch.
    Instead: spell the parameter as the class does.
    Source: seen with DeepSpeed 0.19.8; deepspeed/runtime/lr_schedules.py
    """
    optimizer, scheduler = deepspeed.get("optimizer.type"), deepspeed.get("scheduler.type")
    if isinstance(optimizer, str):
        yield from _unknown(deepspeed, "optimizer.params", optimizer, OPTIMIZER_PARAMETERS.get(optimizer.lower()))
    if isinstance(scheduler, str):
        yield from _unknown(deepspeed, "scheduler.params", scheduler, SCHEDULERS.get(scheduler))


def _unknown(deepspeed: DeepSpeed, block: str, name: str, known: Collection[str] | None) -> Violations:
    for key, value in deepspeed.section(block).items():
        # TW354 reports max_grad_norm.
        if known is None or key in known or key == "max_grad_norm":
            continue
        path, near = f"{block}.{key}", _meant(key, known)
        fix = remedy("delete it", {path: None})
        if near and not deepspeed.has(f"{block}.{near}"):
            fix = renamed(path, f"{block}.{near}", value, stops=True)
            fix = safe(fix, fix.safe or key in _ELSEWHERE)
        yield violation("{name} has no parameter {key} and stops with an error", fix, where=path, name=name, key=key)


def _meant(key: str, known: Collection[str]) -> str | None:
    """The parameter with this name in another library, or with a similar spelling."""
    other = _ELSEWHERE.get(key)
    return other if other in known else nearest(key, known)
