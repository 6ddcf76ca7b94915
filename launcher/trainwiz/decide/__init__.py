"""Answers and machine become a plan; every value has its source, every default its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz.decide.decision import YOURS, Decision, Source, SourceKind
from trainwiz.decide.strategy import Option

if TYPE_CHECKING:
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan

__all__ = ["YOURS", "Decided", "Option", "Source", "SourceKind", "decide"]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A plan with the source of each of its values; `options` are the strategies with their bytes per rank."""

    plan: Plan
    sources: Mapping[str, Source]
    options: tuple[Option, ...] = ()


def decide(
    answers: Mapping[str, Any],
    machine: Machine | None,
    *,
    origins: Mapping[str, Source] | None = None,
    parameters: int | None = None,
    samples: int | None = None,
) -> Decided:
    """Complete the answers (legal values by dotted key) to a plan.

    `origins` says where answers come from, where that is not the person; `parameters` is the size of a model that is no
    preset, `samples` the number of training samples, each None where unknown. Raises `PlanError` naming the key where
    answers cannot all hold.
    """
    from trainwiz import plan as plans
    from trainwiz.decide import hardware, strategy, training
    from trainwiz.decide.adapter import decide_adapter
    from trainwiz.message import say

    d = Decision(answers=answers, machine=machine, origins=origins or {}, parameters=parameters, samples=samples)
    d.settle("task", "causal_lm", say("the usual case"))
    d.settle("seed", 42, say("any number works; the same seed gives the same run"))
    name = d.settle("model.name", "tiny", say("trains on any machine in under a minute"))
    preset = d.task.shape(name)
    scratch = (
        say("a preset only defines the architecture; random weights need no download")
        if preset
        else say("the model comes with trained weights")
    )
    d.settle("model.from_scratch", preset is not None, scratch)
    decide_adapter(d)
    d.parameters = preset.parameters if preset else parameters
    hardware.decide_machine(d)
    hardware.decide_precision(d)
    training.decide_data(d)
    training.decide_length_of_samples(d)
    strategy.decide_strategy(d)
    training.decide_batch(d)
    training.decide_schedule(d)
    training.decide_optimizer(d)
    training.decide_records(d)
    training.decide_supervision(d)
    d.settle("deepspeed", {}, say("the settings that trainwiz writes suit most cases"))
    d.settle("ignore", {}, say("all rules apply"))
    plan = plans.parse(plans.nested(d.values))
    return Decided(plan=plan, sources=d.sources, options=strategy.options(d))
