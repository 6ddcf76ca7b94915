"""What the targets say, and the protocol that each of them follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trainwiz.errors import Refused


@dataclass(frozen=True, kw_only=True)
class Known:
    """What one target's variables say. None: they do not say it."""

    machine_rank: int | None = None
    """The rank of this machine, from 0."""
    machines: int | None = None
    """The number of machines in the allocation."""
    address: str | None = None
    """A name or address of machine 0 that the other machines reach."""
    port: int | None = None
    """A port of machine 0 that is meant for the rendezvous."""
    ranks_per_machine: int | None = None
    """The number of ranks on each machine."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The scheduler's job that this process belongs to."""

    scheduler: str
    """The scheduler's name, as people write it."""
    name: str
    """The job's number or name, as the scheduler knows it."""
    restarts: int = 0
    """How often the scheduler has started this job again."""
    queues_again: bool = True
    """Whether the scheduler itself starts the job again after a stop; else it counts its starts, and has to be asked.
    """


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this machine stands, in full."""

    rank: int
    """The rank of this machine among those of the plan, from 0."""
    machines: int
    """The number of machines."""
    address: str
    """A name or address of machine 0 that the other machines reach."""
    port: int
    """The port of the rendezvous on machine 0."""


def number(value: str | None) -> int | None:
    """A variable that counts something; None where it is missing or something else."""
    return int(value) if value and value.isdecimal() else None


class Target(Protocol):
    """One way to get machines: a module with these names. The functions read nothing but the mapping."""

    PREFIX: str
    """The beginning of its variables' names."""
    ORDER: int
    """Where several know a value, the lowest is asked first: 1 for what people export or type, 2 for schedulers."""

    def known(self, environ: Mapping[str, str], /) -> Known:
        """What the target's variables say of this machine's place."""
        ...

    def contradiction(self, environ: Mapping[str, str], machines: int, /) -> Refused | None:
        """Why the allocation does not fit so many machines; None where it fits or there is none."""
        ...

    def job(self, environ: Mapping[str, str], /) -> Job | None:
        """The job that the variables belong to; None outside of one."""
        ...
