"""Before the start: all rules on the machine as it is now; errors stop the launch."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz import rules
from trainwiz.errors import Refused
from trainwiz.finding import Finding, errors
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.ui import findings as shown
from trainwiz.workflows import facts


def of_plan(plan: Plan, folder: str, machine: Machine, *, ignore: Sequence[str]) -> tuple[Finding, ...]:
    """What all rules find."""
    return rules.check(facts.gather(plan, folder, machine), rules=rules.of_plans(), ignore=ignore)


def show(findings: Sequence[Finding]) -> None:
    """The findings for the person, if there are any."""
    if findings:
        shown.show(findings)


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise `Refused` if a finding forbids the launch."""
    if stopping := errors(findings):
        raise Refused(
            say("nothing was started: {n} finding(s) at level error", n=len(stopping)),
            say("details: trainwiz explain {rule}; launch anyway: --ignore {rule}", rule=stopping[0].rule),
        )
