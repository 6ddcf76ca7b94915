"""A known cause of a failure, and the words of a log that show it."""

from __future__ import annotations

import functools
import re

from trainwiz.message import Message


class Signature:
    """One known cause. `cause` and `remedy` are literal sentences, which the named groups of a pattern fill in."""

    def __init__(
        self,
        *patterns: str,
        name: str = "",
        cause: str,
        remedy: str,
        transient: bool | None = False,
        plan_change: str = "",
        secondary: bool = False,
        at_exit: bool = False,
        as_warning: bool = False,
        follows: str = "",
        asked: bool = False,
        refines: str = "",
    ) -> None:
        self.name = name
        """Stable; records and JSON have it. In a table of `known` it is the key."""
        self._patterns = patterns
        self.cause = Message(cause)
        self.remedy = Message(remedy)
        """What to do, with the words to type."""
        self.transient = transient
        """Whether the same launch may succeed when it is repeated; None: unknown."""
        self.plan_change = plan_change
        """The kind of plan change that helps, as `plan_changes.candidates` takes it; empty: none."""
        self.secondary = secondary
        """Whether ranks also write this when another rank fails; it counts only where nothing else is found."""
        self.at_exit = at_exit
        """Whether native code writes this at exit, even after an exception, which is then the cause."""
        self.as_warning = as_warning
        """Whether a warning of Python's `warnings` shows it, too; after most of them a program goes on."""
        self._follows = follows
        self.asked = asked
        """Whether somebody ended the job; where a rank had failed before and none went on, that is what came of it."""
        self.refines = refines
        """The signature that a rank's own lines show, of which this one says more from those of several ranks."""

    @functools.cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Any of them suffices. Compiled at the first use: a launch knows all signatures, and most end without one."""
        return tuple(re.compile(pattern, re.MULTILINE) for pattern in self._patterns)

    @functools.cached_property
    def follows(self) -> re.Pattern[str] | None:
        """Words of a failure; where they stand before this one, it is only what came of that."""
        return re.compile(self._follows) if self._follows else None

    def named(self, name: str) -> Signature:
        """The same signature, with its name from the table that holds it."""
        self.name = name
        return self
