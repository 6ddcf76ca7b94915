"""What the facts about a machine mean for a training: one line each, with what to type. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from trainwiz.checkup import builds, devices, network, packages, storage
from trainwiz.checkup.line import Line
from trainwiz.finding import Finding, Level
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.surroundings import Surroundings

__all__ = ["Line", "Surroundings", "checkup", "of_name"]


def checkup(machine: Machine, around: Surroundings | None = None, findings: Iterable[Finding] = ()) -> tuple[Line, ...]:
    """The lines of `trainwiz doctor`; `findings` are those of the rules that need only a machine.

    A finding on the subject of a line replaces the line's own text, so that nothing is shown twice; the other findings
    follow as lines of their own. Without `around` (a machine read from a file) only the machine's own lines are shown.
    """
    lines = [*packages.lines(machine), *devices.lines(machine), *storage.lines(machine, around)]
    return _judged([*lines, *builds.lines(machine, around), *network.lines(machine, around)], findings)


def of_name(machine: Machine, findings: Iterable[Finding] = ()) -> tuple[Line, ...]:
    """The lines of a machine that is named by its GPUs: its processors, memory and programs are unknown."""
    unknown = Line(
        subject="unknown",
        title=say("everything else"),
        found=say("unknown: the machine was only named"),
        level=Level.HINT,
        fix=say("run on that machine: trainwiz doctor, or here, with its description: trainwiz doctor --machine FILE"),
    )
    return (*_judged(list(devices.lines(machine)), findings), unknown)


def _judged(lines: list[Line], findings: Iterable[Finding]) -> tuple[Line, ...]:
    left = list(findings)
    for at, line in enumerate(lines):
        for finding in [f for f in left if f.rule in line.rules]:
            left.remove(finding)
            lines[at] = dataclasses.replace(line, **_judgement(finding))
    return (*lines, *(Line(subject=f.where, title=f.where, **_judgement(f)) for f in left))


def _judgement(finding: Finding) -> dict[str, Any]:
    fix = finding.fix.message if finding.fix else None
    return {"found": finding.message, "level": finding.level, "fix": fix, "rule": finding.rule}
