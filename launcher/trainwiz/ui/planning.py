"""What `trainwiz plan` found, as a table with bars of memory, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import quantities, tasks
from trainwiz.decide.candidates import Candidate, Place
from trainwiz.decide.memory_bar import bar
from trainwiz.estimate import disk
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.models import Transformer
from trainwiz.models.families import FAMILIES
from trainwiz.plan import Plan
from trainwiz.ui import console, table
from trainwiz.ui.table import Cell

_BAR_COLUMN = 5
"""The bar stands behind the peak."""
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a training may take; None: anything."""

    hours: float | None = None
    """Of the whole training."""
    price: float | None = None
    """Of one GPU for one hour."""
    cost: float | None = None
    """Of the whole training, in the currency of `price`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A candidate with its hours and its cost."""

    number: int
    """Its place in the table, from 1."""
    gpus: int
    """Over all machines."""
    candidate: Candidate
    """The way to train."""
    hours: float | None
    """Of the training; None where its length or the speed is unknown."""
    cost: float | None
    """None without a price."""
    energy_kwh: float | None
    """At most, at the GPUs' power limit; None where that is unknown."""
    disk_bytes: int | None
    """For checkpoints and final weights; None where the training's length is unknown."""
    why_not: Message | None
    """Why it does not fit, or breaks a limit; None: it is possible."""

    @property
    def possible(self) -> bool:
        """Whether it fits, and keeps the limits."""
        return self.why_not is None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long a training is, and what it saves."""

    updates: int | None
    """None where only the data says it."""
    every: int
    """Updates between checkpoints; 0: only the last."""
    limit: int | None
    """Checkpoints that are kept; None or 0: all."""

    @property
    def saves(self) -> int:
        """How many checkpoints it writes."""
        return disk.saves(self.updates or 1, self.every)


def row(number: int, one: Candidate, place: Place, training: Training, limits: Limits) -> Row:
    """The candidate, judged by the limits, too. Saving checkpoints is in the hours."""
    updates, made = training.updates, training.saves
    saving = made * disk.saving_seconds(one.checkpoint_bytes)
    hours = (one.seconds * updates + saving) / 3600 if one.pace and updates else None
    final = disk.final_bytes(one.work)
    cost = hours * place.ranks * limits.price if hours is not None and limits.price else None
    return Row(
        number=number,
        gpus=place.ranks,
        candidate=one,
        hours=hours,
        cost=cost,
        energy_kwh=hours * place.ranks * place.power_watts / 1000 if hours is not None and place.power_watts else None,
        disk_bytes=disk.disk_bytes(one.checkpoint_bytes, final, made, training.limit) if updates else None,
        why_not=one.why_not or _beyond(hours, cost, limits),
    )


def _beyond(hours: float | None, cost: float | None, limits: Limits) -> Message | None:
    if limits.hours is not None and (hours is None or hours > limits.hours):
        return say("takes {hours}, more than {limit}", hours=_hours(hours), limit=_hours(limits.hours))
    if limits.cost is not None and (cost is None or cost > limits.cost):
        return say("costs {cost}, more than {limit}", cost=_money(cost), limit=_money(limits.cost))
    return None


def show(plan: Plan, place: Place, rows: Sequence[Row], limits: Limits) -> None:
    """Print the rows that fit, then those that do not, and why."""
    console.talk(subject(plan, place))
    fitting = [row for row in rows if row.possible]
    if fitting:
        lines = [_with_bar(values(row, limits), bar(row.candidate.need, place.memory_bytes)) for row in fitting]
        table.show([_bold(_with_bar(heads(limits, rows), t("MEMORY"))), *map(_plain, lines)], optional=(2, 3))
        _legend()
        _order(fitting)
        _host(fitting[0])
        _disk(fitting[0])
        _energy(fitting[0], place)
    elif any(row.candidate.why_not is None for row in rows):
        console.talk(t("everything that fits takes longer or costs more than requested"), style="error")
    else:
        console.talk(t("nothing fits"), style="error")
    for row in rows:
        if row.why_not is not None:
            name = f"{row.candidate.name} ({row.candidate.work.samples}, {row.candidate.work.checkpointing})"
            for line in console.fitted(text(row.why_not), first=t("{row}: ", row=name), rest="  ", stream=sys.stdout):
                console.data(console.styled(line, "dim", sys.stdout))
    if place.gpu is None:
        console.talk(t("the speed of this GPU is unknown; the rows are in the usual order of their strategies"))
    elif all(row.candidate.pace is None for row in rows):
        console.talk(
            t("the layers of {model} are unknown: the rows do not include activations and speed", model=plan.model.name)
        )


def tell_assumed(plan: Plan) -> None:
    """Say that the model's layers are guessed."""
    console.talk(
        t(
            "the layers of {model} are assumed to be typical for a dense model of this size; a mixture of experts "
            "is faster",
            model=plan.model.name,
        ),
        style="dim",
    )


def tell_experts(plan: Plan, shape: Transformer) -> None:
    """Say under which strategy QLoRA leaves weights in 16 bits."""
    if plan.model.adapter == "qlora" and shape.joined_weights:
        console.talk(
            t(
                "the routed experts of {model} stay in 16 bits under ZeRO 3: {size} are not quantized",
                model=plan.model.name,
                size=quantities.size(2 * shape.joined_weights),
            ),
            style="dim",
        )


def tell_counted(plan: Plan, shape: Transformer) -> None:
    """Say which parts of the model are not counted exactly."""
    name = plan.model.name
    if shape.model_type in FAMILIES:
        said = t("for {model}, only the language model is counted, not the parts for images or sound", model=name)
    else:
        said = t(
            "the layers of {model} are counted as those of a Llama: trainwiz does not know the family {family}",
            model=name,
            family=shape.model_type or "config.json",
        )
    console.talk(said, style="dim")


def tell_project(file: Path) -> None:
    """Say where settings that were not typed come from."""
    console.talk(t("all other settings come from {file}", file=file), style="dim")


def show_scaling(plan: Plan, place: Place, rows: Sequence[Row], limits: Limits) -> None:
    """Print the best row for each number of GPUs."""
    console.talk(
        t(
            "{model} on {gpu} ({memory})",
            model=_trained(plan),
            gpu=place.gpu.name if place.gpu else "GPU",
            memory=quantities.size(place.memory_bytes),
        )
    )
    heads = (t("GPUS"), t("STRATEGY"), t("RECOMPUTED"), t("BATCH"), t("PEAK"), _rate_head(rows), t("EACH"), t("TIME"))
    cost = (t("COST"),) if limits.price else ()
    lines = []
    for row in rows:
        one = row.candidate
        if not row.possible:
            lines.append([Cell(text=str(row.gpus)), Cell(text=text(row.why_not or ""), style="dim")])
            lines[-1] += [Cell(text="")] * (len(heads) + len(cost) - 2)
            continue
        values = (
            str(row.gpus),
            one.name,
            one.work.checkpointing,
            _batch(one),
            quantities.size(one.peak_bytes),
            _speed(one, row.gpus),
            _speed(one, 1),
            _hours(row.hours),
            *((_money(row.cost),) if limits.price else ()),
        )
        lines.append([Cell(text=value) for value in values])
    table.show([_bold((*heads, *cost)), *lines], optional=(2, 3))


def to_dict(plan: Plan, place: Place, rows: Sequence[Row], limits: Limits) -> dict[str, Any]:
    """The rows for `--json`: bytes, seconds, hours."""
    return {
        "model": plan.model.name,
        "adapter": plan.model.adapter,
        "gpus": place.ranks,
        "gpu": place.gpu.name if place.gpu else None,
        "gpu_memory_bytes": place.memory_bytes,
        "usable_bytes": place.usable_bytes,
        "real_batch_size": plan.batch.real_batch_size,
        "sequence_length": plan.batch.sequence_length,
        "price": limits.price,
        "gpu_power_watts": place.power_watts,
        "rows": [row_to_dict(row) for row in rows],
    }


def row_to_dict(row: Row) -> dict[str, Any]:
    """One row for `--json`."""
    one = row.candidate
    return {
        "row": row.number,
        "gpus": row.gpus,
        "strategy": one.name,
        "activation_checkpointing": one.work.checkpointing,
        "per_device_batch_size": one.work.samples,
        "gradient_accumulation_steps": one.accumulation,
        "peak_bytes_per_rank": one.peak_bytes,
        "peak_moment": one.need.peak,
        "moments": {moment: dict(parts) for moment, parts in one.need.moments.items()},
        "host_bytes_per_machine": one.host_bytes,
        "seconds_per_update": one.seconds if one.pace else None,
        f"{'pictures' if one.work.network else 'tokens'}_per_second": one.tokens_per_second * row.gpus
        if one.tokens_per_second
        else None,
        "checkpoint_bytes": one.checkpoint_bytes,
        "checkpoint_seconds": disk.saving_seconds(one.checkpoint_bytes),
        "disk_bytes": row.disk_bytes,
        "hours": row.hours,
        "cost": row.cost,
        "energy_kwh": row.energy_kwh,
        "fits": row.possible,
        "why_not": text(row.why_not) if row.why_not is not None else None,
    }


def _bold(heads: Sequence[str]) -> list[Cell]:
    return [Cell(text=head, style="bold") for head in heads]


def subject(plan: Plan, place: Place) -> str:
    """What the rows are about."""
    named: dict[str, Any] = {"model": _trained(plan), "gpu": place.gpu.name if place.gpu else "GPU"}
    named |= {"ranks": place.ranks, "memory": quantities.size(place.memory_bytes), "batch": plan.batch.real_batch_size}
    if tasks.of(plan).backbones:  # pictures
        return t("{model} on {ranks} × {gpu} ({memory}), real batch {batch}", **named)
    length = plan.batch.sequence_length
    return t("{model} on {ranks} × {gpu} ({memory}), real batch {batch} × {length} tokens", length=length, **named)


def _trained(plan: Plan) -> str:
    """The model, with its adapter: whether all weights are trained decides what fits."""
    name, adapter = plan.model.name, plan.model.adapter
    return name if adapter == "none" else f"{name} ({adapter})"


def heads(limits: Limits, rows: Sequence[Row]) -> list[str]:
    """The heads of the columns."""
    names = [t("ROW"), t("STRATEGY"), t("RECOMPUTED"), t("BATCH"), t("PEAK"), _rate_head(rows), t("TIME")]
    return [*names, t("COST")] if limits.price else names


def values(row: Row, limits: Limits) -> list[str]:
    """The columns of a row, as they are read."""
    one = row.candidate
    found = [
        str(row.number),
        one.name,
        one.work.checkpointing,
        _batch(one),
        quantities.size(one.peak_bytes),
        _speed(one, row.gpus),
        _hours(row.hours),
    ]
    return [*found, _money(row.cost)] if limits.price else found


def _with_bar(columns: Sequence[str], drawn: str) -> list[str]:
    return [*columns[:_BAR_COLUMN], drawn, *columns[_BAR_COLUMN:]]


def _plain(columns: Sequence[str]) -> list[Cell]:
    return [Cell(text=column) for column in columns]


def _order(fitting: Sequence[Row]) -> None:
    """Why the first row is not the fastest, where it is not."""
    if any(row.candidate.seconds < fitting[0].candidate.seconds for row in fitting):
        console.talk(
            t(
                "where forecasts are too close to call, the simplest row comes first; recomputation and offload count "
                "as slower"
            )
        )


def _host(best: Row) -> None:
    if best.candidate.host_bytes:
        size = quantities.size(best.candidate.host_bytes)
        told = t("host memory for row {number}: {size} on each machine", number=best.number, size=size)
        console.talk(told, style="dim")


def _disk(best: Row) -> None:
    if best.disk_bytes:
        console.talk(
            t(
                "disk for row {number}: {total}, for checkpoints of {each} and final weights; a save takes {seconds}",
                number=best.number,
                total=quantities.size(best.disk_bytes),
                each=quantities.size(best.candidate.checkpoint_bytes),
                seconds=_hours(disk.saving_seconds(best.candidate.checkpoint_bytes) / 3600),
            ),
            style="dim",
        )


def _energy(best: Row, place: Place) -> None:
    if best.energy_kwh and place.power_watts:
        console.talk(
            t(
                "energy for row {number}: at most {energy} kWh, with GPUs at their power limit of {watts} W",
                number=best.number,
                energy=f"{best.energy_kwh:.3g}" if best.energy_kwh < 100 else f"{best.energy_kwh:,.0f}",
                watts=f"{place.power_watts:.0f}",
            ),
            style="dim",
        )


def _legend() -> None:
    console.talk(
        t("█ weights, gradients, optimizer  ▓ gathered and cast weights, buckets  ▒ activations, logits  · left"),
        style="dim",
    )


def _batch(one: Candidate) -> str:
    return f"{one.work.samples} × {one.accumulation} × {one.work.world}"


def _rate_head(rows: Sequence[Row]) -> str:
    return t("PICTURES/S") if any(row.candidate.work.network for row in rows) else t("TOKENS/S")


def _speed(one: Candidate, ranks: int) -> str:
    return f"{one.tokens_per_second * ranks:,.0f}" if one.tokens_per_second else "-"


def _hours(hours: float | None) -> str:
    if hours is None:
        return "-"
    if hours < 1:
        return f"{60 * hours:.0f} min" if hours > 1 / 60 else f"{3600 * hours:.0f} s"
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.1f} h"


def _money(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"
