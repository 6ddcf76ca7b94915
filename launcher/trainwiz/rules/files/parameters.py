"""Parameters that a DeepSpeed file hands to its optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainwiz.config import DeepSpeed
from trainwiz.config.spelling import nearest
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_ADAM = frozenset(
    {
        "adam_w_mode",
        "adamw_mode",
        "amsgrad",
        "betas",
        "bias_correction",
        "capturable",
        "decoupled_weight_decay",
        "differentiable",
        "eps",
        "foreach",
        "fp32_optimizer_states",
        "fused",
        "lr",
        "maximize",
        "set_grad_none",
        "torch_adam",
        "weight_decay",
    }
)
"""Of FusedAdam, DeepSpeedCPUAdam and torch's: which of them is made depends on the device and on offload."""
_LION = frozenset({"betas", "fp32_optimizer_states", "lr", "set_grad_none", "weight_decay"})
OPTIMIZERS = {"adam": _ADAM, "adamw": _ADAM, "lion": _LION}
_WARM_UP = frozenset({"last_batch_iteration", "warmup_max_lr", "warmup_min_lr", "warmup_num_steps", "warmup_type"})
SCHEDULERS = {
    "LRRangeTest": frozenset(
        {
            "last_batch_iteration",
            "lr_range_test_min_lr",
            "lr_range_test_staircase",
            "lr_range_test_step_rate",
            "lr_range_test_step_size",
        }
    ),
    "OneCycle": frozenset(
        {
            "cycle_first_stair_count",
            "cycle_first_step_size",
            "cycle_max_lr",
            "cycle_max_mom",
            "cycle_min_lr",
            "cycle_min_mom",
            "cycle_momentum",
            "cycle_second_stair_count",
            "cycle_second_step_size",
            "decay_lr_rate",
            "decay_mom_rate",
            "decay_step_size",
            "last_batch_iteration",
        }
    ),
    "WarmupLR": _WARM_UP,
    "WarmupDecayLR": _WARM_UP | {"total_num_steps"},
    "WarmupCosineLR": frozenset(
        {
            "cos_min_ratio",
            "last_batch_iteration",
            "total_num_steps",
            "warmup_min_ratio",
            "warmup_num_steps",
            "warmup_type",
        }
    ),
}


@rule("TW398", level=Level.ERROR, field="optimizer.params")
def optimizer_and_scheduler_take_their_parameters(deepspeed: DeepSpeed) -> Iterator[Violation]:
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
        yield from _unknown(deepspeed, "optimizer.params", optimizer, OPTIMIZERS.get(optimizer.lower()))
    if isinstance(scheduler, str):
        yield from _unknown(deepspeed, "scheduler.params", scheduler, SCHEDULERS.get(scheduler))


def _unknown(deepspeed: DeepSpeed, block: str, name: str, known: Collection[str] | None) -> Iterator[Violation]:
    for key, value in deepspeed.section(block).items():
        # What clips has a rule of its own.
        if known is None or key in known or key == "max_grad_norm":
            continue
        path, near = f"{block}.{key}", _meant(key, known)
        fix = remedy("delete it", {path: None})
        if near and not deepspeed.has(f"{block}.{near}"):
            fix = remedy("did you mean {key}?", {path: None, f"{block}.{near}": value}, key=near)
        yield deepspeed.wrong(
            path, say("{name} has no parameter {key} and stops with an error", name=name, key=key), fix
        )


def _meant(key: str, known: Collection[str]) -> str | None:
    """The parameter that another library calls so, or that is spelt alike."""
    others = {
        "learning_rate": "lr",
        "warmup_steps": "warmup_num_steps",
        "num_warmup_steps": "warmup_num_steps",
        "num_training_steps": "total_num_steps",
        "total_steps": "total_num_steps",
        "epsilon": "eps",
        "min_lr": "warmup_min_lr",
        "max_lr": "warmup_max_lr",
    }
    other = others.get(key)
    return other if other in known else nearest(key, known)
