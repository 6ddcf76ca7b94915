"""A run's forecast and what was measured of it, for its record and for the next forecasts on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import tasks
from trainwiz.estimate.forecast import Forecast, forecast
from trainwiz.estimate.gpus import gpu_of
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.probe import model as models
from trainwiz.probe.cache import HubCache
from trainwiz.quantities import size
from trainwiz.record import memory
from trainwiz.record.forecast import QUANTITIES, compared, measurements, seconds_per_update
from trainwiz.render.settings import settings
from trainwiz.store import calibration, checkpoints, history, jsonl, peaks
from trainwiz.workflows.launch.prepared import Prepared

_DECIDING = {
    "per_device_batch_size": "batch.per_device_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "sequence_length": "batch.sequence_length",
    "mixed_precision": "precision.mixed_precision",
}
"""Settings that memory and time depend on, as the script states them, and the plan's keys."""
_LEAST_RECORDS = 3
"""Of metrics: fewer say more about the start than about the training."""


def recorded(prepared: Prepared) -> dict[str, Any]:
    """`forecast` and `measured`, as `outcome.json` keeps them."""
    run, expected = prepared.run, _forecast(prepared)
    records = history.brief(run).records
    checkpoint = run.checkpoint() if prepared.place is None else None
    # A rank that was killed left no peak, and may have been seen before.
    seen = {rank: {"host_bytes": held} for rank, held in memory.most(jsonl.thinned(run.memory)).items()}
    measured = {
        "ranks": {str(rank): held for rank, held in sorted({**seen, **peaks.read(run.logs)}.items())},
        "seconds_per_update": seconds_per_update(records),
        "checkpoint_bytes": checkpoints.size(checkpoint) if checkpoint else None,
    }
    return {"forecast": expected.to_dict() if expected else None, "measured": measured}


def out_of_memory(record: Mapping[str, Any], rank: int | None) -> Message | None:
    """Beside a failure for want of memory: what the rank held at most, and the forecast; None: nothing is known."""
    seen, expected = measurements(record), record["forecast"] or {}
    held = record["measured"]["ranks"].get(str(rank), {})
    name = next((name for name in ("allocated_bytes", "host_bytes") if name in {**seen, **held}), None)
    if name is None:
        return None
    peak = size({**seen, **held}[name])
    if not expected.get(name):
        return say("measured peak: {what}, {peak}", what=QUANTITIES[name], peak=peak)
    return say(
        "measured peak: {what}, {peak}; the forecast was {forecast}",
        what=QUANTITIES[name],
        peak=peak,
        forecast=size(expected[name]),
    )


def learn(prepared: Prepared, record: dict[str, Any]) -> None:
    """Remember how far the forecast of a run that ended well was off, for this machine."""
    if prepared.plan is None or record["exit_code"]:
        return
    records = history.brief(prepared.run).records
    ratios = {
        pair.name: round(pair.measured / pair.forecast, 4)
        for pair in compared(record)
        if pair.name != "seconds_per_update" or len(records) >= _LEAST_RECORDS
    }
    if ratios:
        calibration.add(
            prepared.machine, run=prepared.run.name, strategy=prepared.plan.strategy.label, at=record["ended"], **ratios
        )


def _forecast(prepared: Prepared) -> Forecast | None:
    plan = prepared.plan
    if plan is None or tasks.of(plan).own_code or _differs(plan, prepared.run.read("config")):
        return None
    looking = models.Looking(
        root=Path(prepared.command.cwd), cache=HubCache(os.environ), offline=True, told=plan.model.parameters
    )
    found = models.facts(plan.model.name, looking, from_scratch=plan.model.from_scratch, task=tasks.of(plan))
    if not found.parameters:
        return None
    return forecast(plan, found.parameters, found.transformer, gpu_of(prepared.machine))


def _differs(plan: Plan, config: dict[str, Any]) -> bool:
    """Whether the run used other settings than the plan's, whose forecast it is."""
    stated = {name: plan.get(key) for name, key in _DECIDING.items()}
    stated["mixed_precision"] = settings(plan)["mixed_precision"]  # bf16, where fp8.py does the rest
    return any(name in config and config[name] != value for name, value in stated.items())
