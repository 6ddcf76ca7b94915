"""What only a checkup looks at, for it is slow or fleeting: hub, caches, ports, ops, locks. Types only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hub:
    """The model hub. `offline` names the variable that forbids asking it; then `reachable` is None."""

    endpoint: str
    offline: str | None = None
    reachable: bool | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A folder that libraries write to during a training, and the variable that moves it elsewhere."""

    variable: str
    path: str
    writable: bool
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Op:
    """An op of DeepSpeed: whether its sources fit this machine, and whether it is already built."""

    name: str
    compatible: bool
    built: bool = False


@dataclass(frozen=True, kw_only=True)
class Port:
    """A rendezvous port, and whether something listens on it."""

    number: int
    free: bool


@dataclass(frozen=True, kw_only=True)
class Comm:
    """An all-reduce that was really run: `size_bytes` per rank in `seconds`, by the median of several.

    `correct` says whether every rank got the sum. `error` is set, and the figures are not, where it failed.
    """

    world: int
    backend: str
    size_bytes: int = 0
    seconds: float = 0.0
    correct: bool = False
    error: str = ""

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
    """All of these. `ops_error` is why DeepSpeed could not be asked; None in a field: not looked at."""

    hub: Hub | None = None
    caches: tuple[Cache, ...] = ()
    ops: tuple[Op, ...] | None = None
    ops_error: str | None = None
    locks: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    comm: Comm | None = None
