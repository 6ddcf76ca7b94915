"""What is rehearsed of a plan: a small shape, few samples, two ways to cut the same real batch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz import plan as plans
from trainwiz import strategies, tasks
from trainwiz.message import Message, say
from trainwiz.plan import Plan

UPDATES = 6
CHECKPOINT_EVERY = 2
_MICRO, _ACCUMULATION = 2, 2
_SMALLEST = {
    "sequence_length": 64,
    "num_hidden_layers": 2,
    "width": 8,
    "stages": 2,
    "blocks_per_stage": 1,
    "loss_chunk": 48,
    "num_workers": 1,
}
_HIDDEN, _HEADS, _KEY_VALUE_HEADS, _INTERMEDIATE = 64, 4, 2, 128
_SCHEDULE = (
    "real_batch_size",
    "n_steps",
    "n_epochs",
    "n_warmup_steps",
    "learning_rate",
    "lr_scheduler_type",
)
"""Fields of Config that decide how the planned rate moves."""
OWN = (
    "output_dir",
    "resume",
    "num_processes",
    "real_batch_size",
    "per_device_batch_size",
    "gradient_accumulation_steps",
    "n_steps",
    "n_epochs",
    "logging_steps",
    "checkpointing_steps",
    "checkpoints_total_limit",
)
"""Fields that a rehearsal sets itself."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """One way to cut a real batch."""

    world: int
    per_device: int
    accumulation: int

    @property
    def real(self) -> int:
        """The real batch."""
        return self.world * self.per_device * self.accumulation


@dataclass(frozen=True, kw_only=True)
class Act:
    """One run. `killed_at` is the micro-batch at which every rank is killed; `goes_on` names the act it resumes."""

    name: str
    title: Message
    split: Split
    killed_at: int = 0
    goes_on: str = ""
    steady: bool = False


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A rehearsal: the plan as its ranks are started, values for Config, how much data, and what is left out."""

    plan: Plan
    values: Mapping[str, Any]
    planned: Mapping[str, Any]
    real_batch: int
    samples: int
    updates: int
    main: Split
    other: Split
    sharded: bool
    saves_weights: bool
    notes: tuple[Message, ...] = ()
    set_by_hand: Mapping[str, str] = field(default_factory=dict)

    @property
    def updates_per_epoch(self) -> int:
        """With the rehearsal's samples."""
        return -(-self.samples // self.real_batch)

    def acts(self) -> tuple[Act, ...]:
        """The runs in their order."""
        micro = (self.updates - 1) * self.main.accumulation + 2
        return (
            Act(name="whole", title=say("without interruption"), split=self.main),
            Act(name="killed", title=say("killed in its last update"), split=self.main, killed_at=micro),
            Act(name="resumed", title=say("resumed"), split=self.main, goes_on="killed"),
            Act(name="split", title=say("the batch cut otherwise"), split=self.other, steady=True),
        )

    def steady(self) -> Act:
        """The uninterrupted run once more without dropout, to be compared with the other split."""
        return Act(name="steady", title=say("without dropout"), split=self.main, steady=True)

    def arguments(self, act: Act, output: str) -> list[str]:
        """What train.py is started with."""
        values = {
            **self.values,
            "output_dir": output,
            "resume": "auto" if act.goes_on else "none",
            "num_processes": act.split.world,
            "real_batch_size": act.split.real,
            "per_device_batch_size": act.split.per_device,
            "gradient_accumulation_steps": act.split.accumulation,
        }
        named = [word for name, value in values.items() for word in (f"--{name}", _written(value))]
        return [*named, *(word for name, text in self.set_by_hand.items() for word in (f"--{name}", text))]


def declared(sources: Mapping[str, str]) -> dict[str, Any]:
    """The fields of Config and TaskConfig with their defaults, as train.py and task.py say them."""
    found: dict[str, Any] = {}
    for file, name in (("task.py", "TaskConfig"), ("train.py", "Config")):
        tree = ast.parse(sources[file], file)
        for node in (n for c in tree.body if isinstance(c, ast.ClassDef) and c.name == name for n in c.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                try:
                    found[node.target.id] = ast.literal_eval(node.value)
                except ValueError:  # a field that is computed
                    found[node.target.id] = None
    return found


def scene(plan: Plan, fields: Mapping[str, Any], *, by_hand: Mapping[str, str], updates: int = UPDATES) -> Scene:
    """The rehearsal of a plan whose script declares these fields."""
    strategy = strategies.of(plan)
    world = 1 if strategy.one_rank else 2
    main = Split(world=world, per_device=_MICRO, accumulation=_ACCUMULATION * 2 // world)
    other = Split(world=3 - world, per_device=1, accumulation=main.real // (3 - world))
    precision = _precision(plan)
    values = {
        **_small(plan, fields),
        "n_steps": updates,
        "n_epochs": 0,
        "n_warmup_steps": 2,
        "logging_steps": 1,
        "checkpointing_steps": CHECKPOINT_EVERY,
        "checkpoints_total_limit": 2,
        "mixed_precision": precision,
        "compile": False,
    }
    small = plans.with_changes(
        plan,
        {
            "machine.device": "cpu",
            "machine.num_machines": 1,
            "machine.num_processes": world,
            "machine.main_process_ip": None,
            "precision.mixed_precision": precision,
        },
    )
    return Scene(
        plan=small,
        values={name: value for name, value in values.items() if name in fields and name not in by_hand},
        planned={name: fields[name] for name in _SCHEDULE if name in fields},
        real_batch=main.real,
        samples=main.real * 5 // 2 + 1,
        updates=updates,
        main=main,
        other=other,
        # What the script says of the CPU itself needs no help.
        sharded=strategy.sharded_in_rehearsal(plan.machine.device),
        saves_weights=strategy.saves_final_weights(plan),
        notes=tuple(_notes(plan, precision)),
        set_by_hand=by_hand,
    )


def without_runs(plan: Plan) -> Message | None:
    """Why this plan cannot train on CPU ranks at all; None where it can."""
    if strategies.of(plan).rehearsable:
        return None
    return say("{kind} trains on GPUs only", kind=plan.strategy.kind)


def _small(plan: Plan, fields: Mapping[str, Any]) -> dict[str, Any]:
    # The sizes of a custom task are its own: nobody else knows which of them go together.
    if tasks.of(plan).own_code:
        return {"num_workers": min(1, fields.get("num_workers", 0))}
    values = {name: min(most, fields[name]) for name, most in _SMALLEST.items() if isinstance(fields.get(name), int)}
    if isinstance(fields.get("hidden_size"), int) and fields["hidden_size"] > _HIDDEN:
        values |= {"hidden_size": _HIDDEN, "num_attention_heads": _HEADS, "intermediate_size": _INTERMEDIATE}
        few = fields.get("num_key_value_heads", 0) < fields.get("num_attention_heads", 0)
        values["num_key_value_heads"] = _KEY_VALUE_HEADS if few else _HEADS
    return values


def _precision(plan: Plan) -> str:
    return strategies.of(plan).rehearsed_precision(plan.precision.mixed_precision)


def _notes(plan: Plan, precision: str) -> list[Message]:
    notes = []
    if plan.precision.mixed_precision != precision:
        notes.append(
            say("planned in {planned}, rehearsed in fp32", planned=plan.precision.mixed_precision)
            if precision == "no"
            else say("planned in {planned}, rehearsed in bf16", planned=plan.precision.mixed_precision)
        )
    if plan.machine.num_processes != (1 if strategies.of(plan).one_rank else 2):
        notes.append(say("planned ranks: {planned}, rehearsed: 2", planned=plan.machine.num_processes))
    if tasks.of(plan).own_code:
        notes.append(say("the custom task is rehearsed at its own size; `-- --name value` makes it smaller"))
    return notes


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
