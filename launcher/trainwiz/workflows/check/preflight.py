"""Before the start: errors stop the launch."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz.errors import Refused
from trainwiz.finding import Finding, errors
from trainwiz.message import say
from trainwiz.ui import findings as shown

_CANNOT_START = {"TW528"}
"""Conflict markers: no Python can read such a script, so that ignoring the rule helps nobody."""


def insist(findings: Sequence[Finding]) -> None:
    """Show what the rules found. Raises `Refused` if any of it forbids the launch."""
    shown.show(findings)
    if stopping := errors(findings):
        fatal = next((finding.rule for finding in stopping if finding.rule in _CANNOT_START), None)
        raise Refused(
            say("nothing was started; findings at level error: {n}", n=len(stopping)),
            say("read the details: trainwiz explain {rule}", rule=fatal)
            if fatal
            else say(
                "read the details: trainwiz explain {rule}; or launch anyway: {options}",
                rule=stopping[0].rule,
                options=" ".join(f"--ignore {rule}" for rule in dict.fromkeys(finding.rule for finding in stopping)),
            ),
        )
