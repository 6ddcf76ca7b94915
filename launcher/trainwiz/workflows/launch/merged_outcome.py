"""One outcome of a run over several machines: machine 0 takes up how the others ended, where it sees their records."""

from __future__ import annotations

import dataclasses
import time

from trainwiz.outcome import Outcome
from trainwiz.store.runs import Run
from trainwiz.workflows.launch.prepared import Prepared

_SECONDS = 8.0
"""How long the other machines have to write down how their part ended: more than ranks take that are being ended."""


# docs/decisions/launching.md: Machine 0 records the run over all machines
def merged(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome over all machines, with the rank that failed by itself; on the other machines, their own."""
    # Machines that stayed connected have told each other.
    others = [] if prepared.team else _others(prepared)
    if not others:
        return outcome
    codes, first, code = dict(outcome.codes), outcome.first_failed, outcome.exit_code
    for other in others:
        codes |= other.codes
        if first is None and not code and not outcome.stopped:
            first, code = other.first_failed, other.exit_code
    whole = dataclasses.replace(outcome, codes=codes, first_failed=first, exit_code=code)
    failed = [rank for rank, ended in codes.items() if ended not in (0, None)]
    if outcome.stopped or outcome.hung or len(failed) < 2:
        return whole
    from trainwiz.workflows.launch import failure  # not before ranks have failed

    return failure.blamed(prepared.run, whole)


def _others(prepared: Prepared) -> list[Outcome]:
    """How the other machines ended; waits for those that are seen to have begun."""
    place = prepared.place
    if place is None or place.rank:
        return []
    machines = [Run(prepared.run.folder, machine) for machine in range(1, place.machines)]
    begun = [machine for machine in machines if machine.file("command").exists()]
    until = time.monotonic() + _SECONDS
    while not all(machine.file("outcome").exists() for machine in begun) and time.monotonic() < until:
        time.sleep(0.1)
    found = (Outcome.of_record(machine.read_own("outcome")) for machine in begun)
    return [outcome for outcome in found if outcome is not None]
