"""A run as one row of a table of measurements, without anything that identifies its owner."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from trainwiz.models import known
from trainwiz.record import metrics
from trainwiz.record.forecast import measurements
from trainwiz.record.metrics import number
from trainwiz.record.run import Recorded

COLUMNS = (
    *("source", "model", "params_b", "gpu", "gpus", "strategy", "precision", "micro_batch", "seq_len"),
    *("checkpointing", "extras", "peak_gib", "tokens_per_s_per_gpu", "mfu"),
)
"""Those of the published measurements that forecasts are held against."""
_GIB = 2**30


def header() -> str:
    """The names of the columns."""
    return ",".join(COLUMNS)


def row(run: Recorded) -> str | None:
    """The run as a line of CSV; None where nothing was measured, or no plan says of what.

    Models are named only if they are well known; paths, hosts, data and times are not in it.
    """
    plan, seen = run.command.get("plan"), measurements(run.outcome)
    if not isinstance(plan, Mapping) or not seen:
        return None
    values: dict[str, Mapping[str, Any]] = {}
    for name in _SECTIONS:
        section = plan.get(name)
        values[name] = section if isinstance(section, Mapping) else {}
    world = int(number(values["machine"].get("num_processes")) or 1)
    speed, peak = metrics.speed(run.records), seen.get("reserved_bytes")
    forecast = run.outcome.get("forecast")
    parameters = number(forecast.get("parameters")) if isinstance(forecast, Mapping) else None
    cells = {
        "source": f"trainwiz {(run.command.get('versions') or {}).get('trainwiz', '')}".strip(),
        "model": _model(str(values["model"].get("name", ""))),
        "params_b": f"{parameters / 1e9:.4g}" if parameters else "",
        "gpu": _gpu(run.command.get("machine")),
        "gpus": world,
        "strategy": _strategy(values["strategy"], values["model"]),
        "precision": _precision(values["precision"]),
        "micro_batch": values["batch"].get("per_device_batch_size", ""),
        "seq_len": values["batch"].get("sequence_length", ""),
        "checkpointing": values["model"].get("activation_checkpointing", ""),
        "extras": _extras(plan, values, seen),
        "peak_gib": f"{peak / _GIB:.3f}" if peak else "",
        "tokens_per_s_per_gpu": f"{speed / world:.1f}" if speed else "",
        "mfu": "",
    }
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([cells[name] for name in COLUMNS])
    return line.getvalue()


_SECTIONS = ("model", "machine", "strategy", "precision", "batch", "data", "optimizer")


def _model(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2]
    return last if known(last) else ""


def _gpu(machine: object) -> str:
    gpus = machine.get("gpus") if isinstance(machine, Mapping) else None
    first = gpus[0] if isinstance(gpus, list) and gpus else None
    return str(first.get("name", "")) if isinstance(first, Mapping) else "cpu"


def _strategy(strategy: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    stage = strategy.get("zero_stage")
    kind = str(strategy.get("kind", ""))
    words = [f"zero{stage}" if isinstance(stage, int) else {"fsdp": "fsdp2"}.get(kind, kind)]
    words += ["offload-opt"] if strategy.get("offload_optimizer_device", "none") != "none" else []
    words += ["offload-param"] if strategy.get("offload_param_device", "none") != "none" else []
    adapter = model.get("adapter", "none")
    return " ".join([*words, "full" if adapter == "none" else str(adapter)])


def _precision(precision: Mapping[str, Any]) -> str:
    computed = precision.get("mixed_precision", "no")
    stored = precision.get("weights", "float32")
    if stored != "float32":
        return f"{stored} weights and optimizer"
    return "fp32" if computed == "no" else str(computed)


def _extras(plan: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]], seen: Mapping[str, float]) -> str:
    """What has no column: key=value, with semicolons between."""
    found = {
        "task": plan.get("task"),
        "accum": values["batch"].get("gradient_accumulation_steps"),
        "optimizer": values["optimizer"].get("name"),
        "r": values["model"].get("lora_rank") if values["model"].get("adapter", "none") != "none" else None,
        "machines": values["machine"].get("num_machines"),
        "allocated_gib": f"{seen['allocated_bytes'] / _GIB:.3f}" if "allocated_bytes" in seen else None,
        "host_gib": f"{seen['host_bytes'] / _GIB:.3f}" if "host_bytes" in seen else None,
        "checkpoint_gib": f"{seen['checkpoint_bytes'] / _GIB:.3f}" if "checkpoint_bytes" in seen else None,
    }
    words = [f"{name}={value}" for name, value in found.items() if value is not None]
    return "; ".join([*words, *([] if values["data"].get("packing") else ["lengths vary"])])
