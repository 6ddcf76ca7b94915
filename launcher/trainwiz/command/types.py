"""What to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process to start."""

    rank: int
    """Its rank among all machines."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What is added to its environment, beside what the command adds."""
    argv: tuple[str, ...] | None = None
    """Replaces the command's, where this rank is started in another way."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One program, started once for each rank."""

    argv: tuple[str, ...]
    """Program and arguments."""
    environ: Mapping[str, str]
    """What is added to the environment of every rank."""
    ranks: tuple[Rank, ...]
    """The processes to start."""
    cwd: str
    """The folder that they run in."""
    launcher: str | None = None
    """torchrun or accelerate, where the one rank here is that launcher, which starts the real ones."""
