"""Before the start: all rules on the machine as it is now; errors stop the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainwiz.errors import Refused
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.finding import Finding
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan


def of_plan(plan: Plan, folder: str, machine: Machine, *, ignore: Sequence[str]) -> tuple[Finding, ...]:
    """What all rules find."""
    from trainwiz import rules
    from trainwiz.rules.registry import check
    from trainwiz.workflows import facts

    return check(facts.gather(plan, folder, machine), rules=rules.of_plans(), ignore=ignore)


def of_machine(machine: Machine, *, ignore: Sequence[str]) -> tuple[Finding, ...]:
    """What the rules that need no plan find, for what trainwiz did not write."""
    from trainwiz import rules
    from trainwiz.rules.registry import Facts, check

    return check(Facts(machine=machine), rules=rules.of_plans(), ignore=ignore)


def show(findings: Sequence[Finding]) -> None:
    """The findings for the person, if there are any."""
    if findings:
        from trainwiz.ui import findings as shown

        shown.show(findings)


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise `Refused` if a finding forbids the launch."""
    from trainwiz.finding import errors

    if stopping := errors(findings):
        raise Refused(
            say("nothing was started: {n} finding(s) of level error", n=len(stopping)),
            say("trainwiz explain {rule} tells more; --ignore {rule} launches in spite of it", rule=stopping[0].rule),
        )
