"""Facts that only a checkup looks at, since they are slow or short-lived: hub, caches, ports, ops. Types only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hub:
    """The model hub."""

    endpoint: str
    """Its address."""
    offline: str | None = None
    """The variable that forbids access to it."""
    reachable: bool | None = None
    """None: not asked, because of that variable."""
    detail: str = ""
    """Why it is not reachable."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A folder that libraries write to during a training."""

    variable: str
    """The variable that moves it elsewhere."""
    path: str
    """The folder, absolute."""
    writable: bool
    """Whether this user may write to it."""
    free_bytes: int | None = None
    """Free space on its file system; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """An op of DeepSpeed."""

    name: str
    """DeepSpeed's name of it: `cpu_adam`."""
    compatible: bool
    """Whether it can be built on this machine, by DeepSpeed's own check."""
    built: bool = False
    """Whether it was built already."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """A rendezvous port."""

    number: int
    """From 1 to 65535."""
    free: bool
    """Whether no process listens on it."""


@dataclass(frozen=True, kw_only=True)
class Comm:
    """The result of an all-reduce."""

    world: int
    """Ranks."""
    backend: str
    """nccl or gloo."""
    size_bytes: int = 0
    """Per rank."""
    seconds: float = 0.0
    """The median of several."""
    correct: bool = False
    """Whether every rank got the right sum."""
    error: str = ""
    """Why it failed; the other results are then not set."""

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second: size over time."""
        return self.size_bytes / self.seconds if self.seconds else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second over the slowest link: 2 (n - 1) / n times the algorithm's.

        Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return self.algorithm_bandwidth * 2 * (self.world - 1) / self.world


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """All of these; None: not looked at."""

    hub: Hub | None = None
    """What was found of the hub."""
    caches: tuple[Cache, ...] = ()
    """The folders of caches; empty: not looked at."""
    ops: tuple[Op, ...] | None = None
    """DeepSpeed's ops."""
    ops_error: str | None = None
    """Why DeepSpeed could not be asked."""
    locks: tuple[str, ...] = ()
    """Lock files left by builds that no longer run."""
    ports: tuple[Port, ...] = ()
    """The ports of the plan's rendezvous; empty: not looked at."""
    comm: Comm | None = None
    """The all-reduce of `doctor --comm`."""
