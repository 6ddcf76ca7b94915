"""What an update without memory showed: the peak by kind, the largest tensors, and what would lower it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz import tasks
from trainwiz.decide.candidates import MOMENTS
from trainwiz.estimate.exact import Kind, Moment, Tensors
from trainwiz.estimate.reserve import FILLED
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.quantities import size
from trainwiz.ui import console, table
from trainwiz.ui.table import Cell

_LARGEST = 8
_WHEN: Mapping[str, Message] = {"forward": say("in the forward pass"), **{str(k): v for k, v in MOMENTS.items()}}
_KINDS: Mapping[Kind, Message] = {
    "parameters": say("parameters"),
    "gradients": say("gradients"),
    "optimizer": say("optimizer state"),
    "gathered": say("gathered and cast weights, buckets"),
    "activations": say("activations"),
    "loss": say("logits and loss"),
    "temporary": say("gradients of activations, recomputed layers"),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that lowers the peak."""

    what: Message
    """In one line."""
    saves: int
    """Bytes of the peak."""
    by_formula: bool
    """It was not run."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What was found about a plan."""

    plan: Plan
    """The plan that was run without memory."""
    whole: bool
    """The engine was run, too."""
    totals: Mapping[str, int]
    """Bytes by moment of the update."""
    peak: str
    """The moment of the peak."""
    moment: Moment | None
    """What was in memory then."""
    formula: Mapping[str, int]
    """Bytes by moment, as the formulas have them; empty for own code."""
    changes: Sequence[Change]
    """The one that saves most first."""
    guessed: Sequence[str]
    """Lines that asked for a value of a tensor, of which there is none."""
    memory: int | None
    """Of the GPU that was named."""
    seconds: float
    """That it took to find out."""

    @property
    def usable(self) -> int | None:
        """What tensors may take of that GPU."""
        return int(FILLED * self.memory) if self.memory else None

    @property
    def fits(self) -> bool:
        """Whether the peak does; true where no GPU was named."""
        return self.usable is None or self.totals[self.peak] <= self.usable


def own_code() -> str:
    """Said before it runs."""
    return t("running task.py, which is your own code, on tensors without memory …")


def show(found: Shown) -> None:
    """Print all of it."""
    console.talk(_subject(found))
    moments = [[Cell(text=head, style="bold") for head in (t("MOMENT"), t("EXACT"), t("FORMULA"))]]
    for name, total in found.totals.items():
        formula = size(found.formula[name]) if name in found.formula else "-"
        style = "bold" if name == found.peak else ""
        moments.append([Cell(text=text(_WHEN[name]), style=style), Cell(text=size(total)), Cell(text=formula)])
    table.show(moments)
    if found.moment is not None:
        _contents(found.moment)
    for change in found.changes:
        words = {"what": text(change.what), "saved": size(change.saves)}
        console.data(
            t("{what}: saves {saved} (by formula)", **words)
            if change.by_formula
            else t("{what}: saves {saved}", **words)
        )
    _notes(found)


def to_dict(found: Shown) -> dict[str, Any]:
    """All of it for `--json`: bytes."""
    return {
        "ranks": found.plan.machine.num_processes,
        "strategy": found.plan.strategy.label,
        "engine_was_run": found.whole,
        "peak_bytes": found.totals[found.peak],
        "peak_moment": found.peak,
        "moments": dict(found.totals),
        "formula": dict(found.formula),
        "kinds": found.moment.kinds if found.moment else {},
        "largest": [_tensors(one) for one in _largest(found.moment)] if found.moment else [],
        "changes": [
            {"change": text(one.what), "saves_bytes": one.saves, "by_formula": one.by_formula} for one in found.changes
        ],
        "guessed": list(found.guessed),
        "usable_bytes": found.usable,
        "fits": found.fits if found.memory else None,
        "seconds": found.seconds,
    }


def _subject(found: Shown) -> str:
    plan = found.plan
    return t(
        "rank 0 of {ranks}, {strategy}, micro-batch {micro} × {length}: {peak} at the peak, {when}",
        ranks=plan.machine.num_processes,
        strategy=plan.strategy.label,
        micro=plan.batch.per_device_batch_size,
        length="-" if tasks.of(plan).own_code else plan.batch.sequence_length,
        peak=size(found.totals[found.peak]),
        when=text(_WHEN[found.peak]),
    )


def _contents(moment: Moment) -> None:
    rows = [[Cell(text=t("AT THE PEAK"), style="bold"), Cell(text=t("SIZE"), style="bold")]]
    rows += [[Cell(text=text(_KINDS[kind])), Cell(text=size(total))] for kind, total in moment.kinds.items()]
    table.show(rows)
    heads = (t("LARGEST"), t("TENSORS"), t("MADE BY"))
    rows = [[Cell(text=head, style="bold") for head in heads]]
    for one in _largest(moment):
        shape = f"{one.count} × {one.dtype}{list(one.shape)}"
        made = one.line if ":" in one.line else text(_KINDS[one.kind])
        rows.append([Cell(text=size(one.total)), Cell(text=shape), Cell(text=made)])
    table.show(rows)


def _largest(moment: Moment) -> list[Tensors]:
    return sorted(moment.tensors, key=lambda one: -one.total)[:_LARGEST]


def _tensors(one: Tensors) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "line": one.line,
        "dtype": one.dtype,
        "shape": list(one.shape),
        "count": one.count,
        "bytes": one.total,
    }


def _notes(found: Shown) -> None:
    if not found.whole:
        console.talk(
            t(
                "the model was run; DeepSpeed's additional memory comes from the formula, because its engine "
                "needs real memory"
            )
        )
    if found.plan.model.compile:
        console.talk(t("without torch.compile, which would keep less"))
    if found.guessed:
        console.talk(
            t(
                "these lines read values of tensors; values were assumed to be 1, and masks to be full: {lines}",
                lines=", ".join(found.guessed),
            )
        )
    if found.usable is not None and found.memory is not None:
        words = {"usable": size(found.usable), "memory": size(found.memory)}
        console.talk(
            t("it fits: {usable} of {memory} can be used", **words)
            if found.fits
            else t("it does not fit: {usable} of {memory} can be used", **words)
        )
