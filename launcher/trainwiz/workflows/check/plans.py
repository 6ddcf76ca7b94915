"""Judging a plan by all the rules that can see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainwiz import rules
from trainwiz.config import Document
from trainwiz.finding import Finding, Violation
from trainwiz.store import plans
from trainwiz.workflows import facts


def document(target: str, read: Callable[[str], Document]) -> Document:
    """The text of a project's plan, or of a plan. Raises `UsageError` where there is none."""
    return read(str(plans.find(target)))


def mistakes(document: Document) -> tuple[Violation, ...]:
    """What keeps a document from being a plan, beside its `trouble`."""
    return () if document.trouble else plans.mistakes(document)


def findings(
    document: Document, *, machine: str | None, python: str | None, select: Sequence[str], ignore: Sequence[str]
) -> tuple[Finding, ...]:
    """What the rules find in a plan, for the machine in a file or for this one."""
    plan, folder = plans.parse(document), str(Path(document.path).parent)
    several = plan.machine.num_machines > 1
    here = facts.machine(machine_file=machine, python=python, folder=folder, interfaces=several)
    chosen = [rule for rule in rules.of_plans() if rule.id.startswith(tuple(select) or ("TW",))]
    return rules.check(facts.gather(plan, folder, here), rules=chosen, ignore=ignore)
