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
    """The zero_optimization, offload, fp16 and bf16 settings in `deepspeed` must be known to DeepSpeed.

    Without it: every rank fails with pydantic's `Extra inputs are not permitted` after the model is built.
    Why: DeepSpeed parses these blocks with classes that reject unknown keys.
    Instead: spell the setting as DeepSpeed does.
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
        yield violation("DeepSpeed does not accept {key} in {block}", fix, key=name, block=block)


@rule("TW318", level=Level.WARNING, field="deepspeed")
def settings_need_deepspeed(plan: Plan) -> Iterator[Violation]:
    """DeepSpeed settings only take effect under DeepSpeed.

    Without it: the settings are ignored: no ds_config.json is written.
    Why: ds_config.json is written only for strategy.kind deepspeed.
    Instead: set strategy.kind to deepspeed, or remove these settings.
    Source: trainwiz's own files
    """
    if plan.deepspeed and not strategies.of(plan).uses_deepspeed:
        yield violation(
            "DeepSpeed settings are ignored: strategy.kind is {kind}",
            remedy("set strategy.kind to deepspeed, or remove the section deepspeed"),
            kind=plan.strategy.kind,
        )
