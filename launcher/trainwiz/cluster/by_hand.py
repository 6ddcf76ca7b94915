"""Machines started by hand: the plan and `--machine-rank` say everything, and what is missing must be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.cluster.types import Place
from trainwiz.errors import UsageError
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.plan import Plan


def place(plan: Plan, *, rank: int | None, address: str | None) -> Place:
    """The place of machine `rank`. Raises `UsageError` that says what to type where something is missing."""
    machines, port = plan.machine.num_machines, plan.machine.main_process_port
    if rank is None:
        raise UsageError(
            say("the plan has {n} machines, but the rank of this machine is not known", n=machines),
            say("add --machine-rank 0 on the first machine, --machine-rank 1 on the next; not needed under srun"),
        )
    if not 0 <= rank < machines:
        raise UsageError(say("--machine-rank {rank}: the plan has machines 0 to {last}", rank=rank, last=machines - 1))
    if not address:
        raise UsageError(
            say("the plan has {n} machines, but no address of machine 0", n=machines),
            say("set machine.main_process_ip in trainwiz.yaml to an address that the other machines can reach"),
        )
    if not port:
        raise UsageError(
            say("machine.main_process_port is 0; with several machines, all of them must use the same known port")
        )
    return Place(rank=rank, machines=machines, address=address, port=port)
