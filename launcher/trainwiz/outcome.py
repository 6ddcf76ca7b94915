"""How the ranks of a run ended, and which of them failed first. Types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIGNAL_BASE = 128
"""A shell's exit code for a death by signal n is 128 + n (POSIX, "Exit Status for Commands")."""

HANG_CODE = 124
"""The exit code of a run that was stopped because it hung; timeout(1) has the same."""
PREEMPTING = (10, 15)
"""SIGUSR1 and SIGTERM, which schedulers send before they take a job's machine away."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    """The training's own: that of the rank that failed first; 128 + n for a death by signal n."""
    codes: Mapping[int, int | None] = field(default_factory=dict)
    """Each rank's exit code, negative for a death by signal; None: it did not end."""
    first_failed: int | None = None
    """The rank that failed first."""
    seconds: float = 0.0
    """From the start of the ranks to the end of the last one."""
    signal: int | None = None
    """The signal that asked trainwiz itself to stop."""
    killed: tuple[int, ...] = ()
    """The ranks that had to be killed."""
    saving_seconds: float | None = None
    """From that signal to the end of the last rank."""
    hung: bool = False
    """Whether the run was stopped because it made no progress."""
    stalls: tuple[Mapping[str, object], ...] = ()
    """Every silence that was too long, with the place of each rank in its code."""
    stragglers: tuple[Mapping[str, object], ...] = ()
    """Ranks that were slower than the others, with the share of the time that these waited."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """At the end of the run: `oom_kills` (of the cgroup, during the run), `shm_free_bytes`, `disk_total_bytes`, …"""

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop: Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP."""
        return self.signal is not None

    @property
    def preempted(self) -> bool:
        """Whether a scheduler asked it to stop, and not a person at the terminal."""
        return self.signal in PREEMPTING

    def to_dict(self) -> dict[str, object]:
        """Plain values, as `outcome.json` keeps them."""
        return {
            "exit_code": self.exit_code,
            "first_failed_rank": self.first_failed,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "preempted": self.preempted,
            "signal": self.signal,
            "hung": self.hung,
            "stalls": list(self.stalls),
            "stragglers": list(self.stragglers),
            "observed": dict(self.observed),
            "killed_ranks": list(self.killed),
            "saving_seconds": None if self.saving_seconds is None else round(self.saving_seconds, 3),
            "ranks": {str(rank): code for rank, code in sorted(self.codes.items())},
        }


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of comparing a checkpoint's files with its manifest."""

    files: int
    """The number of its files."""
    read: int
    """How many of them were read to the end."""
    damaged: tuple[str, ...] = ()
    """The names of those that differ from the manifest."""

    @property
    def whole(self) -> bool:
        """Whether every file was read and none is damaged."""
        return not self.damaged and self.read == self.files

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `outcome.json`."""
        return {"whole": self.whole, "files": self.files, "read": self.read, "damaged": list(self.damaged)}


_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
"""signal(7), Linux on x86 and ARM."""


def signal_name(number: int) -> str:
    """A signal's name; its number if it is not in the table."""
    return _SIGNALS.get(number, str(number))


def signal_number(name: str) -> int | None:
    """A signal's number by its name; None if it is not in the table."""
    return next((number for number, known in _SIGNALS.items() if known == name), None)


def shell_code(code: int) -> int:
    """A process's exit code as a shell shows it: negative n becomes 128 + n."""
    return SIGNAL_BASE - code if code < 0 else code
