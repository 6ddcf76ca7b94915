"""What to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process to start, and what is added to its environment beside the command's.

    `argv` replaces the command's where this rank is started in another way.
    """

    rank: int
    local_rank: int
    environ: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Command:
    """`argv`, started once for each of `ranks` in the folder `cwd`, with `environ` added to the environment.

    Where `launcher` is set (torchrun, accelerate), the one rank here is that launcher, which starts the real ones.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    ranks: tuple[Rank, ...]
    cwd: str
    launcher: str | None = None
