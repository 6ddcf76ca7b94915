"""The strategies, found by folder: each module of this one has the rows of one family in `STRATEGIES`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from trainwiz.strategies.strategy import Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = ["Strategy", "Training", "chosen", "every", "labeled", "of"]

_ENGINES = ("accelerate", "colossalai")
_LAST = 99


@functools.cache
def every() -> tuple[Strategy, ...]:
    """All strategies, accelerate's first, from the fastest to the leanest, then those that are never recommended."""
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    found = [row for m in modules for row in getattr(importlib.import_module(m.name), "STRATEGIES", ())]
    return tuple(sorted(found, key=lambda row: (_ENGINES.index(row.engine), row.speed or _LAST, not row.one_rank)))


def labeled(label: str) -> Strategy:
    """The strategy with this label (`ddp`, `zero2`, `gemini`). Raises `KeyError` for any other word."""
    return {row.label: row for row in every()}[label]


def of(plan: Plan) -> Strategy:
    """The strategy of a plan. DeepSpeed without a stage, which is a finding of its own, counts as stage 0."""
    return chosen(plan.strategy.kind, plan.strategy.zero_stage)


def chosen(kind: str, zero_stage: int | None) -> Strategy:
    """The strategy that these two keys of a plan name."""
    rows = [row for row in every() if row.kind == kind]
    return next((row for row in rows if row.zero_stage == zero_stage), rows[0])
