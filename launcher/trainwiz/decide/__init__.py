"""Makes a plan from answers and a machine. Every value has a source, and every default a reason.

A default that is the same everywhere is the plan's own (`settle_default`); the others are decided here (`settle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwiz.decide.adapter import Method, as_planned, decide_adapter, methods
from trainwiz.decide.decision import YOURS, Decision, Source, SourceKind
from trainwiz.decide.outlook import Outlook, outlook
from trainwiz.decide.strategy import Option

if TYPE_CHECKING:
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan
    from trainwiz.project import DataFacts, ModelFacts

__all__ = ["YOURS", "Decided", "Method", "Option", "Source", "SourceKind", "decide"]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A plan, and where its values come from."""

    plan: Plan
    """The plan, with a value for each key."""
    sources: Mapping[str, Source]
    """The source of each value, by dotted key."""
    options: tuple[Option, ...] = ()
    """Every strategy with its bytes per rank; empty where the model's size is unknown."""
    methods: tuple[Method, ...] = ()
    """All weights and adapters, each with its bytes per rank; empty for other tasks, and where the size is unknown."""
    outlook: Outlook = field(default_factory=Outlook)
    """Its samples, updates, memory and time, as far as they can be forecast."""

    def sizes(self, key: str) -> Mapping[str, Option | Method]:
        """The memory that each choice of a question needs, if known."""
        if key == "strategy.kind":
            return {option.name: option for option in self.options}
        return {method.adapter: method for method in self.methods} if key == "model.adapter" else {}


def decide(
    answers: Mapping[str, Any],
    machine: Machine | None,
    *,
    origins: Mapping[str, Source] | None = None,
    model: ModelFacts | None = None,
    data: DataFacts | None = None,
) -> Decided:
    """Complete the answers (legal values by dotted key) to a plan.

    `origins` holds the sources of answers that the user did not give. `model` is what is known of a model that is not
    a preset, and `data` what is known of the training data; None where they are unknown.

    Raises `PlanError`, naming the key, for answers that contradict each other.
    """
    from trainwiz import plan as plans
    from trainwiz.decide import amount, hardware, length, size, strategy, training
    from trainwiz.decide.cluster import decide_cluster
    from trainwiz.decide.columns import decide_columns
    from trainwiz.decide.compilation import decide_compilation, decide_kernels
    from trainwiz.decide.loss import decide_loss_chunk
    from trainwiz.decide.preference import decide_preference
    from trainwiz.message import say

    d = Decision(
        answers=answers,
        machine=machine,
        origins=origins or {},
        defaults=plans.defaults(),
        model=model,
        data=data,
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
    decide_preference(d)
    hardware.decide_machine(d)
    hardware.decide_precision(d)
    decide_adapter(d)
    training.decide_data(d)
    amount.decide_evaluation_data(d)
    decide_columns(d)
    training.decide_length_of_samples(d)
    amount.decide_packing(d)
    if d.task.packs and not d.values["data.packing"]:  # rows of their own may need more memory
        training.decide_length_of_samples(d)
    strategy.decide_strategy(d)
    training.decide_activations(d)
    training.decide_batch(d)
    strategy.decide_gradients(d)
    decide_loss_chunk(d)
    length.decide_length(d)
    decide_compilation(d)
    decide_kernels(d)
    length.decide_rates(d)
    training.decide_optimizer(d)
    training.decide_records(d)
    training.decide_supervision(d)
    decide_cluster(d)
    d.settle_default("deepspeed", say("the settings that trainwiz writes suit most cases"))
    d.settle_default("ignore", say("all rules apply"))
    plan = plans.parse(plans.nested(d.values))
    ahead = outlook(d, plan)
    ways = as_planned(d, methods(d), ahead.peak_bytes)
    rows = strategy.as_planned(d, strategy.options(d), ahead.peak_bytes)
    return Decided(plan=plan, sources=d.sources, options=rows, methods=ways, outlook=ahead)
