"""What rendering makes: files, as text, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Artifact:
    """One generated file. `path` is relative to the project folder, with `/` between its parts."""

    path: str
    """Where it goes."""
    text: str
    """The whole text."""
    generated: str | None = None
    """What the plan alone would generate, if the text is already edited; empty: nothing."""

    @property
    def as_generated(self) -> str:
        """What counts as generated; a file that says anything else was edited."""
        return self.text if self.generated is None else self.generated
