"""Open MPI, by the variables that mpirun sets for each process: one process of trainwiz on each machine.

Source: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.cluster.types import Job, Known, number
from trainwiz.errors import Refused
from trainwiz.message import say

PREFIX = "OMPI_"
ORDER = 1
"""Before schedulers: their job runs mpirun, which starts this process."""


def known(environ: Mapping[str, str]) -> Known:
    """The rank and number of processes, each of which stands for a machine; mpirun gives no address."""
    return Known(
        machine_rank=number(environ.get("OMPI_COMM_WORLD_RANK")), machines=number(environ.get("OMPI_COMM_WORLD_SIZE"))
    )


def contradiction(environ: Mapping[str, str], machines: int) -> Refused | None:
    """Several processes on a machine, or another number of them than planned."""
    given = known(environ).machines
    if given is None:
        return None
    if (number(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")) or 1) > 1:
        return Refused(
            say("mpirun started several trainwiz processes on this machine, but each one starts all of its ranks"),
            say("run: mpirun -N 1 trainwiz launch"),
        )
    if given == machines:
        return None
    return Refused(
        say("processes of mpirun: {given}, but machines of the plan: {n}", given=given, n=machines),
        say("run: mpirun -n {n} -N 1 trainwiz launch, or change machine.num_machines", n=machines),
    )


def job(_environ: Mapping[str, str]) -> Job | None:
    """None: mpirun queues nothing."""
    return None
