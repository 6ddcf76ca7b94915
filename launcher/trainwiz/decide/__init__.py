"""Makes a plan from answers and a machine. Every value has a source, and every default a reason.

A default that is the same everywhere is the plan's own (`settle_default`); the others are decided here (`settle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz.decide.decision import YOURS, Decision, Source, SourceKind
from trainwiz.decide.strategy import Option

if TYPE_CHECKING:
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan
    from trainwiz.project import ModelFacts

__all__ = ["YOURS", "Decided", "Option", "Source", "SourceKind", "decide"]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A plan, and how it came about."""

    plan: Plan
    sources: Mapping[str, Source]
    """The source of each value, by dotted key."""
    options: tuple[Option, ...] = ()
    """Every strategy with its bytes per rank; empty where the model's size is unknown."""


def decide(
    answers: Mapping[str, Any],
    machine: Machine | None,
    *,
    origins: Mapping[str, Source] | None = None,
    model: ModelFacts | None = None,
    samples: int | None = None,
    first: Mapping[str, Any] | None = None,
) -> Decided:
    """Complete the answers (legal values by dotted key) to a plan.

    `origins` holds the sources of answers that the person did not give. `model` is what is known of a model that is not
    a preset, `samples` the number of training samples, and `first` the columns of the data's first row; None where they
    are unknown. Raises `PlanError`, naming the key, for answers that contradict each other.
    """
    from trainwiz import plan as plans
    from trainwiz.decide import hardware, size, strategy, training
    from trainwiz.decide.adapter import decide_adapter
    from trainwiz.decide.columns import decide_columns
    from trainwiz.decide.compilation import decide_compilation
    from trainwiz.decide.preference import decide_preference
    from trainwiz.message import say

    d = Decision(
        answers=answers,
        machine=machine,
        origins=origins or {},
        defaults=plans.defaults(),
        model=model,
        samples=samples,
        first=first or {},
    )
    d.settle_default("task", say("the usual case"))
    d.settle_default("seed", say("any number works; the same seed gives the same run"))
    name = d.settle_default("model.name", say("trains on any machine in under a minute"))
    preset = d.task.shape(name)
    scratch = (
        say("a preset only defines the architecture; random weights need no download")
        if preset
        else say("the model comes with trained weights")
    )
    d.settle("model.from_scratch", preset is not None, scratch)
    size.decide_size(d)
    decide_adapter(d)
    decide_preference(d)
    hardware.decide_machine(d)
    hardware.decide_precision(d)
    training.decide_data(d)
    decide_columns(d)
    training.decide_length_of_samples(d)
    strategy.decide_strategy(d)
    training.decide_activations(d)
    training.decide_batch(d)
    strategy.decide_gradients(d)
    training.decide_schedule(d)
    decide_compilation(d)
    training.decide_optimizer(d)
    training.decide_records(d)
    training.decide_supervision(d)
    d.settle_default("deepspeed", say("the settings that trainwiz writes suit most cases"))
    d.settle_default("ignore", say("all rules apply"))
    plan = plans.parse(plans.nested(d.values))
    return Decided(plan=plan, sources=d.sources, options=strategy.options(d))
