"""How the ranks of a run ended, and which of them failed first. Types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIGNAL_BASE = 128
"""A shell's exit code for a death by signal n is 128 + n (POSIX, "Exit Status for Commands")."""

HANG_CODE = 124
"""The exit code of a run that was stopped because it hung; timeout(1) has the same."""
STOPPED_CODE = 75
"""The exit code of a training that was asked to stop, saved, and can go on: EX_TEMPFAIL of sysexits.h."""
_LONGEST_RANK = 10
PREEMPTING = (10, 15)
"""SIGUSR1 and SIGTERM, which schedulers send before they take a job's machine away."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    """The training's own: that of the rank that failed first, a signal as 128 + n."""
    codes: Mapping[int, int | None] = field(default_factory=dict)
    """Each rank's own exit code, negative for a death by signal, None for a rank that did not end."""
    first_failed: int | None = None
    """The rank that failed first."""
    seconds: float = 0.0
    """From the first rank's start to the end."""
    signal: int | None = None
    """The signal that asked trainwiz itself to stop."""
    killed: tuple[int, ...] = ()
    """The ranks that had to be killed."""
    saving_seconds: float | None = None
    """How long the last rank took to end after that signal."""
    stopped: bool = False
    """Whether the training ended in order before its end, because somebody asked for that here or elsewhere."""
    unwanted: bool = False
    """Whether a person asked for the end with `trainwiz stop`, so that nothing goes on by itself."""
    hung: bool = False
    """Whether it was stopped because it hung."""
    stalls: tuple[Mapping[str, object], ...] = ()
    """Every silence that was too long, with where the ranks were."""
    stragglers: tuple[Mapping[str, object], ...] = ()
    """Ranks that were slower than the others, and for how much of the time these waited."""
    machine: tuple[int, str] | None = None
    """Of several machines, the one of the rank that failed first: its rank, and the name of its host."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Of several machines, those that were lost, and how that was seen."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """The state of the machine at the end, as far as known: `oom_kills` of the cgroup during the run,
    `shm_free_bytes`, `shm_total_bytes`, `disk_free_bytes`, `disk_total_bytes`."""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Outcome | None:
        """The outcome in `outcome.json`; None if it is missing or incomplete."""
        code, ranks = record.get("exit_code"), record.get("ranks")
        if not isinstance(code, int) or not isinstance(ranks, dict):
            return None
        first, observed, lost = (record.get(name) for name in ("first_failed_rank", "observed", "lost_machines"))
        return cls(
            exit_code=code,
            codes={
                int(rank): value if isinstance(value, int) else None
                for rank, value in ranks.items()
                if str(rank).isdecimal() and len(str(rank)) < _LONGEST_RANK
            },
            first_failed=first if isinstance(first, int) else None,
            signal=record["signal"] if isinstance(record.get("signal"), int) else None,
            stopped=record.get("stopped") is True,
            lost={int(k): str(v) for k, v in lost.items() if k.isdecimal()} if isinstance(lost, dict) else {},
            observed={k: v for k, v in observed.items() if isinstance(v, int)} if isinstance(observed, dict) else {},
        )

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop: Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP."""
        return self.signal is not None

    @property
    def preempted(self) -> bool:
        """Whether a scheduler asked it to stop, here or on another machine, and not a person."""
        return not self.unwanted and (self.signal in PREEMPTING or (self.stopped and self.signal is None))

    def to_dict(self) -> dict[str, object]:
        """Plain values, as `outcome.json` keeps them."""
        return {
            "exit_code": self.exit_code,
            "first_failed_rank": self.first_failed,
            "first_failed_machine": self.machine[0] if self.machine else None,
            "lost_machines": {str(rank): why for rank, why in self.lost.items()},
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "preempted": self.preempted,
            "signal": self.signal,
            "stopped": self.stopped,
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
    """What was found of a checkpoint."""

    files: int
    """How many files it has."""
    read: int
    """How many were read whole."""
    damaged: tuple[str, ...] = ()
    """Those that differ from what was written."""

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
