"""What this machine's own runs say of its forecasts: to be seen, deleted, and applied to the next ones."""

from __future__ import annotations

from typing import Any

from trainwiz.decide.candidates import Place
from trainwiz.errors import UsageError
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.record.run import summary
from trainwiz.store import calibration, history, runs
from trainwiz.ui import calibration as table
from trainwiz.ui import console
from trainwiz.workflows.planning.request import PlanRequest

_MEMORY = ("reserved_bytes", "allocated_bytes")


def factors(machine: Machine) -> tuple[float, float]:
    """What memory and time are multiplied by on this machine: 1 without runs, and for machines that are only named."""
    if not machine.probed:
        return 1.0, 1.0
    found = calibration.corrections(machine)
    memory = next((found[name].factor for name in _MEMORY if name in found), 1.0)
    return memory, found["seconds_per_update"].factor if "seconds_per_update" in found else 1.0


def show(request: PlanRequest) -> int:
    """List what is remembered, or delete it. Raises `UsageError` for --forget alone."""
    if not request.calibration:
        raise UsageError(say("--forget deletes the calibration"), say("add --calibration"))
    if request.forget:
        console.talk(t("deleted") if calibration.forget() else t("no run has been measured yet"))
        return 0
    found = calibration.every()
    links = calibration.links()
    if request.json:
        machines = dict.fromkeys([*found, *links])
        console.data_json(
            [
                {
                    **table.to_dict(name, found.get(name, []), calibration.made_of(found.get(name, []))),
                    "bus_bandwidth": links.get(name),
                }
                for name in machines
            ]
        )
    elif found or links:
        for name, entries in found.items():
            table.show(name, entries, calibration.made_of(entries))
        for name, speed in links.items():
            console.data(t("{machine}: bus bandwidth {bus} GB/s", machine=name, bus=f"{speed / 1e9:.1f}"))
    else:
        console.talk(t("no run has been measured yet"))
    return 0


def tell(request: PlanRequest, place: Place, machine: Machine) -> None:
    """Below the rows: what corrected them, and what the newest run of the project needed."""
    if machine.bus_bandwidth:
        console.talk(
            t(
                "communication at the {bus} GB/s that `trainwiz doctor --comm` measured",
                bus=f"{machine.bus_bandwidth / 1e9:.1f}",
            )
        )
    if place.memory_factor > 1 or place.time_factor != 1:
        console.talk(
            t(
                "corrected by this machine's runs: memory × {memory:.2f}, time × {time:.2f}; see --calibration",
                memory=max(1.0, place.memory_factor),
                time=place.time_factor,
            )
        )
    made: list[Any] = list(runs.every(request.folder)) if request.folder.is_dir() else []
    for run in made[-1:]:
        table.show_run(summary(history.brief(run), 0.0))
