"""What `trainwiz init` was asked to do, and the answers that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwiz.decide import Source
from trainwiz.wizard import terminal


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `trainwiz init`."""

    folder: Path
    """The project's folder; may be missing."""
    flags: Mapping[str, str]
    """What was typed, by key of the plan; `strategy` stands for several keys."""
    assignments: Sequence[str]
    """The texts of `--set`, each KEY=VALUE."""
    file: str | None
    """A YAML file with answers."""
    resume: bool
    """Continue with the answers of an interrupted init."""
    python: str | None
    """The interpreter that will train; None for the running one."""
    machine_file: str | None
    """A machine to plan for instead of this one."""
    defaults: bool
    """Answer every open question with its default."""
    yes: bool
    """Write without a review."""
    force: bool
    """Overwrite files that a person edited."""
    on_conflict: str | None
    """keep, overwrite or beside, for files that a person edited; None asks, or refuses where nobody can be asked."""
    terminal: bool = field(default_factory=terminal.available)
    """Whether there is somebody to ask."""

    @property
    def is_dialogue(self) -> bool:
        """Whether questions are asked or the review is shown."""
        return self.terminal and not (self.defaults and self.yes)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All that was answered before the first question, by key of the plan."""

    given: Mapping[str, Any]
    """Answers of this command line."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Answers of an earlier init; they stay while they are legal."""
    edited_plan: Mapping[str, Any] = field(default_factory=dict)
    """All values of a plan that was edited by hand, where nothing was given: they stay where they can."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where the answers come from that nobody typed on this command line."""
