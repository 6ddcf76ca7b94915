"""Settings of DeepSpeed that a plan gives beside its own keys."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.config.spelling import nearest
from trainwiz.engines.deepspeed import STRICT_BLOCKS
from trainwiz.finding import Fix, Level, Violation, remedy, violation
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule


@rule("TW317", level=Level.ERROR, field="deepspeed")
def deepspeed_knows_the_settings(plan: Plan) -> Iterator[Violation]:
    """What `deepspeed` names in zero_optimization, its offload blocks, fp16 and bf16 is known to DeepSpeed.

    Without it: pydantic's `Extra inputs are not permitted` on every rank, after the model is built.
    Why: these blocks are read by classes that forbid anything else.
    Instead: the setting as DeepSpeed spells it.
    Source: seen with DeepSpeed 0.19.8
    """
    if not strategies.of(plan).uses_deepspeed:
        return
    for path, value in plan.deepspeed.items():
        block, _, name = path.rpartition(".")
        if block not in STRICT_BLOCKS or name in STRICT_BLOCKS[block] or value is None:
            continue
        near = nearest(name, STRICT_BLOCKS[block])
        fix = Fix(message=say("did you mean {key}?", key=f"{block}.{near}") if near else say("delete it"))
        yield violation("DeepSpeed refuses {key} in {block}", fix, key=name, block=block)


@rule("TW318", level=Level.WARNING, field="deepspeed")
def settings_need_deepspeed(plan: Plan) -> Iterator[Violation]:
    """Settings of DeepSpeed mean something under DeepSpeed only.

    Without it: they are ignored: no file is written that could hold them.
    Why: ds_config.json is written for strategy.kind deepspeed alone.
    Instead: strategy.kind deepspeed, or no such settings.
    Source: trainwiz's own files
    """
    if plan.deepspeed and not strategies.of(plan).uses_deepspeed:
        yield violation(
            "settings of DeepSpeed are ignored: strategy.kind is {kind}",
            remedy("set strategy.kind deepspeed, or take the section deepspeed out"),
            kind=plan.strategy.kind,
        )
