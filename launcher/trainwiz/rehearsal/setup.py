"""The small copy of a plan that is trained in a rehearsal: a small model, few samples, two ways to cut the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz import fields as declarations
from trainwiz import plan as plans
from trainwiz import strategies, tasks
from trainwiz.batch import Batch
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.vocabulary import spelled

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
_LONGER = (256, 1024, 4096)
"""Tokens of a sample, where fewer cut off too much."""
_HIDDEN, _HEADS, _KEY_VALUE_HEADS, _INTERMEDIATE = 64, 4, 2, 128
_SCHEDULE = (
    "real_batch_size",
    "n_steps",
    "n_epochs",
    "n_warmup_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_ratio",
    "min_lr_ratio",
    "decay_ratio",
    "decay_type",
    "polynomial_power",
)
"""Fields of Config that decide the learning rate of each update."""
RESERVED = (
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
"""Fields of Config that a rehearsal sets itself."""


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One training of the small copy, from its start to its end."""

    name: str
    """The name of its folder."""
    title: Message
    """The name that is shown."""
    split: Batch
    """How its real batch is cut over ranks and micro-batches."""
    killed_at: int = 0
    """The micro-batch, counted from 1, at which every rank is killed; 0: none."""
    resumes: str = ""
    """The name of the run whose checkpoints it resumes from; empty: it starts from the beginning."""
    without_dropout: bool = False
    """Whether all dropout is 0, so that another split can be compared."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A small copy of a plan, to be trained on CPU ranks."""

    plan: Plan
    """The plan as its ranks are started."""
    values: Mapping[str, Any]
    """Fields of Config that are made small."""
    planned: Mapping[str, Any]
    """Fields of Config that decide the planned learning rate, as they are in train.py."""
    real_batch: int
    """Samples per update."""
    samples: int
    """Samples of the training data that are used."""
    updates: int
    """Updates of each run."""
    main: Batch
    """How the plan's real batch is cut."""
    other: Batch
    """Another way to cut the same real batch; its losses must be the same."""
    sharded: bool
    """Whether accelerate must be made to shard over CPU ranks."""
    saves_weights: bool
    """Whether the script writes whole weights at its end."""
    random_loss: bool = False
    """Whether the loss draws random numbers, which depend on how the batch is cut."""
    notes: tuple[Message, ...] = ()
    """What differs from the plan, for the user."""
    by_hand: Mapping[str, str] = field(default_factory=dict)
    """Fields of Config that the user set, as text."""

    def lengths(self, planned: int) -> tuple[int, ...]:
        """The tokens of a sample to try, of `planned` ones: short samples may lose all that a conversation teaches."""
        short = self.values["sequence_length"]
        if not tasks.of(self.plan).chats:
            return (short,)
        return (*(length for length in (short, *_LONGER) if length < planned), planned)

    @property
    def updates_per_epoch(self) -> int:
        """With the rehearsal's samples."""
        return -(-self.samples // self.real_batch)

    def runs(self) -> tuple[TrialRun, ...]:
        """The runs in their order."""
        micro = (self.updates - 1) * self.main.accumulation + 2
        return (
            TrialRun(name="whole", title=say("without interruption"), split=self.main),
            TrialRun(name="killed", title=say("killed in the last update"), split=self.main, killed_at=micro),
            TrialRun(name="resumed", title=say("resumed"), split=self.main, resumes="killed"),
            TrialRun(name="split", title=say("batch split differently"), split=self.other, without_dropout=True),
        )

    def run_without_dropout(self) -> TrialRun:
        """The uninterrupted run without dropout and random losses, to be compared with the other split."""
        title = say("same random numbers for each sample") if self.random_loss else say("without dropout")
        return TrialRun(name="steady", title=title, split=self.main, without_dropout=True)

    def arguments(self, run: TrialRun, output: str) -> list[str]:
        """The arguments of train.py."""
        values = {
            **self.values,
            "output_dir": output,
            "resume": "auto" if run.resumes else "none",
            "num_processes": run.split.world,
            "real_batch_size": run.split.real,
            "per_device_batch_size": run.split.micro,
            "gradient_accumulation_steps": run.split.accumulation,
        }
        named = [word for name, value in values.items() for word in (f"--{name}", spelled(value))]
        return [*named, *(word for name, text in self.by_hand.items() for word in (f"--{name}", text))]


def declared_fields(sources: Mapping[str, str]) -> dict[str, Any]:
    """The fields of Config and TaskConfig in train.py and task.py, with their defaults; None for a computed one."""
    declared = {**declarations.declared(sources["task.py"]), **declarations.declared(sources["train.py"])}
    return {name: one.value for name, one in declared.items()}


def small_copy(plan: Plan, fields: Mapping[str, Any], *, by_hand: Mapping[str, str], updates: int = UPDATES) -> Setup:
    """The small copy of a plan whose script declares these fields."""
    strategy = strategies.of(plan)
    world = 1 if strategy.one_rank else 2
    main = Batch(world=world, micro=_MICRO, accumulation=_ACCUMULATION * 2 // world)
    other = Batch(world=3 - world, micro=1, accumulation=main.real // (3 - world))
    precision = strategy.rehearsed_precision(plan.precision.mixed_precision)
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
        "neftune_alpha": 0.0,
        "weights": "float32",
        # Frozen weights in 16 bits would leave the layers' outputs in 16 bits, too.
        **({"frozen_dtype": "float32"} if precision == "no" else {}),
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
    return Setup(
        plan=small,
        values={name: value for name, value in values.items() if name in fields and name not in by_hand},
        planned={name: fields[name] for name in _SCHEDULE if name in fields},
        real_batch=main.real,
        samples=main.real * 5 // 2 + 1,
        updates=updates,
        main=main,
        other=other,
        # A script that was made for the CPU sets this itself.
        sharded=strategy.sharded_in_rehearsal(plan.machine.device),
        saves_weights=strategy.saves_final_weights(plan),
        notes=tuple(_notes(plan, precision)),
        by_hand=by_hand,
    )


def obstacle(plan: Plan) -> Message | None:
    """Why this plan cannot train on CPU ranks; None if it can."""
    if strategies.of(plan).rehearsable:
        return None
    return say("{kind} only trains on GPUs", kind=plan.strategy.kind)


def _small(plan: Plan, fields: Mapping[str, Any]) -> dict[str, Any]:
    # Only the author of a custom task knows which of its sizes go together.
    if tasks.of(plan).own_code:
        return {"num_workers": min(1, fields.get("num_workers", 0))}
    values = {name: min(most, fields[name]) for name, most in _SMALLEST.items() if isinstance(fields.get(name), int)}
    if isinstance(fields.get("hidden_size"), int) and fields["hidden_size"] > _HIDDEN:
        values |= {"hidden_size": _HIDDEN, "num_attention_heads": _HEADS, "intermediate_size": _INTERMEDIATE}
        few = fields.get("num_key_value_heads", 0) < fields.get("num_attention_heads", 0)
        values["num_key_value_heads"] = _KEY_VALUE_HEADS if few else _HEADS
    return values


def _notes(plan: Plan, precision: str) -> list[Message]:
    notes = []
    planned = plan.precision.mixed_precision
    if planned != precision:
        rehearsed = "fp32" if precision == "no" else "bf16"
        notes.append(say("planned in {planned}, rehearsed in {rehearsed}", planned=planned, rehearsed=rehearsed))
    if plan.machine.num_processes != (1 if strategies.of(plan).one_rank else 2):
        notes.append(say("planned ranks: {planned}, rehearsed: 2", planned=plan.machine.num_processes))
    if tasks.of(plan).own_code:
        notes.append(say("the custom task is rehearsed at its own size; use `-- --name value` to make it smaller"))
    return notes
