"""Findings as people read them, and as other programs do: text, JSON, SARIF, and GitHub's workflow commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import say
from trainwiz.ui import code_hosts, console

if TYPE_CHECKING:
    from trainwiz.finding import Finding

FORMATS = ("text", "json", "sarif", "github")


def chosen_format(typed: str, *, as_json: bool) -> str:
    """The format that `--format` and `--json` ask for together. Raises `UsageError`."""
    chosen = typed or ("json" if as_json else "text")
    if chosen not in FORMATS or (as_json and chosen != "json"):
        raise UsageError(
            say("--format {format} is not valid; choose one of {choices}", format=chosen, choices=", ".join(FORMATS))
        )
    return chosen


def write(findings: Sequence[Finding], format: str) -> None:
    """The findings on stdout, as what a command was asked for."""
    if format == "json":
        console.data_json(to_dict(findings))
    elif format == "sarif":
        from trainwiz.rules.registry import REGISTRY  # here, since commands that only ask import no rules

        # A rule that found something has been loaded.
        console.data_json(code_hosts.sarif(findings, [REGISTRY[id] for id in sorted(REGISTRY)]))
    elif format == "github":
        for line in code_hosts.github(findings):
            console.data(line)
    else:
        _show(findings, as_data=True)


def show(findings: Sequence[Finding]) -> None:
    """The findings on stderr, if there are any, beside what a command was asked for."""
    if findings:
        _show(findings, as_data=False)


def _show(findings: Sequence[Finding], *, as_data: bool) -> None:
    """Each finding with its place, level, rule, message and fix; then how many of each level there are."""
    stream, write = (sys.stdout, console.data) if as_data else (sys.stderr, console.talk)
    for finding in findings:
        for line in _lines(finding, stream):
            write(line)
    write(_summary(findings))
    if findings:
        write(console.styled(t("details of a rule: trainwiz explain {rule}", rule=findings[0].rule), "dim", stream))


def to_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for JSON; `fix` is what to do in words, `changes` the same as new values by key.

    `safe` says whether `check --fix` makes these changes without --unsafe-fixes.
    """
    counts = _counts(findings)
    return {
        "findings": [
            {
                "rule": finding.rule,
                "level": finding.level.value,
                "where": finding.where,
                "message": text(finding.message),
                "fix": text(finding.fix.message) if finding.fix else None,
                "changes": dict(finding.fix.changes) if finding.fix else {},
                "safe": bool(finding.fix and finding.fix.safe),
                **{name: getattr(finding.place, name, None) for name in ("file", "line", "column", "width")},
            }
            for finding in findings
        ],
        "errors": counts["error"],
        "warnings": counts["warning"],
    }


def level_name(level: str) -> str:
    """The level in the reader's language."""
    return {"error": t("error"), "warning": t("warning"), "hint": t("hint")}[level]


def _lines(finding: Finding, stream: TextIO) -> list[str]:
    level = console.styled(level_name(finding.level.value), finding.level.value, stream)
    rule, place = console.styled(finding.rule, "bold", stream), finding.place
    indent = " " * (2 if place else 6)
    lines = [
        f"{place.file}:{place.line}:{place.column}: {level} {rule}" if place else f"{rule} {level} {finding.where}"
    ]
    if place and not place.source:  # no line below names the key
        lines = [f"{lines[0]} {finding.where}"]
    lines += console.fitted(text(finding.message), first=indent, rest=indent, stream=stream)
    if place:
        lines += console.excerpt(place, finding.level.value, stream)
    if finding.fix:
        words = text(finding.fix.message)
        first, *rest = console.fitted(words, first=f"{indent}→ ", rest=f"{indent}  ", stream=stream)
        lines += [first.replace("→", console.styled("→", "good", stream), 1), *rest]
    return [*lines, ""] if place else lines


def _summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return t("no findings")
    counts = _counts(findings)
    return t(
        "errors: {errors}, warnings: {warnings}, hints: {hints}",
        errors=counts["error"],
        warnings=counts["warning"],
        hints=counts["hint"],
    )


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    levels = [finding.level.value for finding in findings]
    return {level: levels.count(level) for level in ("error", "warning", "hint")}
