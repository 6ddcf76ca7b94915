"""Findings as people read them, and as other programs do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.finding import Finding, Place
    from trainwiz.message import Message

_INDENT = "      "
_ARROW = f"{_INDENT}→ "
_NOTHING: Mapping[str, str] = MappingProxyType({})


def show(findings: Sequence[Finding], *, as_data: bool = False, sources: Mapping[str, str] = _NOTHING) -> None:
    """Each finding with its level, rule, key, message and fix; then how many of each level there are.

    On stderr, or on stdout where they are what the command was asked for (`as_data`). `sources` holds the texts of
    files by name; a finding that has its place in one of them is shown with the line.
    """
    show_each(findings, as_data=as_data, sources=sources)
    show_summary(findings, as_data=as_data)


def show_each(findings: Sequence[Finding], *, as_data: bool = False, sources: Mapping[str, str] = _NOTHING) -> None:
    """Each finding with its level, rule, key, message and fix."""
    stream, write = (sys.stdout, console.data) if as_data else (sys.stderr, console.talk)
    for finding in findings:
        for line in _lines(finding, stream, sources):
            write(line)


def show_summary(findings: Sequence[Finding], *, as_data: bool = False) -> None:
    """How many findings of each level there are, and how to learn more."""
    stream, write = (sys.stdout, console.data) if as_data else (sys.stderr, console.talk)
    write(_summary(findings))
    if findings:
        write(console.styled(t("more about a rule: trainwiz explain {rule}", rule=findings[0].rule), "dim", stream))


def to_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for `--json`; `fix` is what to do in words, `changes` the same as values of the plan."""
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
                "file": finding.place.file if finding.place else None,
                "line": finding.place.line if finding.place else None,
                "column": finding.place.column if finding.place else None,
            }
            for finding in findings
        ],
        "errors": counts["error"],
        "warnings": counts["warning"],
    }


def level_name(level: str) -> str:
    """The level in the reader's language."""
    return {"error": t("error"), "warning": t("warning"), "hint": t("hint")}[level]


def _lines(finding: Finding, stream: TextIO, sources: Mapping[str, str]) -> list[str]:
    level = console.styled(level_name(finding.level.value), finding.level.value, stream)
    rule = console.styled(finding.rule, "bold", stream)
    place = finding.place
    at = f" {place.file}:{place.line}:{place.column}" if place else ""
    lines = [f"{rule} {level} {finding.where}{at}"]
    if place and place.file in sources:
        lines += _excerpt(place, sources[place.file], finding.level.value, stream)
    lines += _fitted(finding.message, _INDENT, stream)
    if finding.fix:
        first, *rest = _fitted(finding.fix.message, _ARROW, stream)
        lines += [first.replace("→", console.styled("→", "good", stream), 1), *rest]
    return lines


def _excerpt(place: Place, source: str, style: str, stream: TextIO) -> list[str]:
    """The line of the source with carets under what is meant; nothing where the source has no such line."""
    lines = source.splitlines()
    if not 0 < place.line <= len(lines):
        return []
    # One column for a tab and none for what a terminal obeys, so that the carets stand below what they mean.
    line = "".join(c if c.isprintable() else " " for c in lines[place.line - 1])
    room = console.WIDEST - len(_INDENT)
    start = max(0, columns.width(line[: place.column - 1]) - room // 2) if columns.width(line) > room else 0
    shown, column = columns.cut(line[start:], room), place.column - 1 - start
    before = " " * columns.width(shown[:column])
    carets = "^" * max(1, columns.width(shown[column : column + place.width]))
    return [
        f"{_INDENT}{console.styled(shown.rstrip(), 'dim', stream)}",
        f"{_INDENT}{before}{console.styled(carets, style, stream)}",
    ]


def _fitted(message: Message, first: str, stream: TextIO) -> list[str]:
    return console.fitted(text(message), first=first, rest=" " * len(first), stream=stream)


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
