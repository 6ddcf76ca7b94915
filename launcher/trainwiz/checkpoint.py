"""A checkpoint, and whether a plan can resume from it exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trainwiz import strategies
from trainwiz.message import Message, say
from trainwiz.plan import Plan

_ORDER = {"seed": "seed", "real_batch_size": "batch.real_batch_size"}
"""Values that decide which samples an update takes, with their keys in the plan."""


class State(str, Enum):
    """How far a checkpoint can be relied on."""

    COMPLETE = "complete"
    """It has its final name."""
    PARTIAL = "partial"
    """It is being written or removed, or that was interrupted."""
    DAMAGED = "damaged"
    """A resume found changed files, and renamed it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint's folder."""

    path: str
    """Its folder."""
    update: int
    """The last update that it holds."""
    state: State
    """Whether it is complete and undamaged."""
    size_bytes: int
    """Of all files."""
    files: int
    """The number of its files."""
    written: float
    """When it was complete, in seconds since the epoch."""
    layout: str | None = None
    """How its state is spread over files; None: its manifest does not say."""
    world: int | None = None
    """The number of ranks that wrote it; None: its manifest does not say."""


@dataclass(frozen=True)
class Obstacle:
    """Why a plan cannot resume from a checkpoint."""

    what: Message
    """What stands in the way."""
    instead: Message
    """What to do."""


def not_gathered(layout: str | None) -> Obstacle | None:
    """Why whole weights cannot be assembled from this layout; None if they can."""
    if layout is None:
        return Obstacle(
            say(
                "its manifest does not say how the weights are split across files; it was written by an older train.py"
            ),
            say("continue training with the train.py that wrote it; it writes the weights to model/ when it finishes"),
        )
    if layout not in {row.layout for row in strategies.every()}:
        return Obstacle(
            say("it was saved in the layout {layout}, which this version of trainwiz does not support", layout=layout),
            say("continue the training; it writes the weights to model/ when it finishes"),
        )
    return None


def obstacle(plan: Plan, manifest: Mapping[str, Any]) -> Obstacle | None:
    """The first reason why the plan cannot resume from a checkpoint with this manifest; None if it can."""
    config = manifest.get("config", {})
    if not isinstance(config, Mapping):
        return Obstacle(
            say("its manifest does not say what was trained: config is {found}", found=type(config).__name__),
            say("start over without --resume"),
        )
    for name, key in _ORDER.items():
        before, now = config.get(name), plan.get(key)
        if before is not None and before != now:
            return Obstacle(
                say(
                    "the checkpoint was trained with {key} {before}, but the plan has {now}: the data order would "
                    "not continue",
                    key=key,
                    before=before,
                    now=now,
                ),
                say("set {key} back to {before}, or start over without --resume", key=key, before=before),
            )
    strategy = strategies.of(plan)
    layout, before, now = strategy.layout, manifest.get("layout"), manifest.get("world")
    if before is None:
        return None
    if layout != before:
        return Obstacle(
            say(
                "the checkpoint was saved with {before}; {now} cannot load its files",
                before=before,
                now=plan.strategy.label,
            ),
            say(
                "restore the previous strategy, or keep only the weights: run trainwiz export, then use the result "
                "as model.name"
            ),
        )
    world = plan.machine.num_processes
    if now is not None and now != world and not strategy.any_world(plan):
        return Obstacle(
            say(
                "the checkpoint was saved by {before} ranks, and {strategy} can only load it with the same number "
                "of ranks; the plan has {now}",
                before=now,
                strategy=layout,
                now=world,
            ),
            say(
                "set machine.num_processes to {before}, or keep only the weights: run trainwiz export, then use "
                "the result as model.name",
                before=now,
            ),
        )
    return None
