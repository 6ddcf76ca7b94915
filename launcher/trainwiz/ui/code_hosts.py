"""Findings for code hosts: SARIF 2.1.0, and GitHub's workflow commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trainwiz import __version__
from trainwiz.language import text
from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.finding import Finding
    from trainwiz.rules.registry import Rule

_LEVELS = {"error": "error", "warning": "warning", "hint": "note"}
_COMMANDS = {"error": "error", "warning": "warning", "hint": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Sequence[Finding], rules: Iterable[Rule]) -> dict[str, Any]:
    """A SARIF log with one run; only the rules that found something are described."""
    used = {finding.rule for finding in findings}
    described = [
        {
            "id": rule.id,
            "shortDescription": {"text": text(Message(rule.manual)).partition("\n")[0]},
            "fullDescription": {"text": text(Message(rule.manual))},
            "defaultConfiguration": {"level": _LEVELS[rule.level.value]},
        }
        for rule in rules
        if rule.id in used
    ]
    driver = {"name": "trainwiz", "version": __version__, "rules": described}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(finding) for finding in findings]}],
    }


def github(findings: Sequence[Finding]) -> list[str]:
    """One workflow command a finding, which GitHub shows beside the line."""
    lines = []
    for finding in findings:
        place = finding.place
        at = {"file": place.file, "line": place.line, "col": place.column} if place else {}
        properties = ",".join(f"{key}={_property(str(value))}" for key, value in {**at, "title": finding.rule}.items())
        lines.append(f"::{_COMMANDS[finding.level.value]} {properties}::{_data(_words(finding))}")
    return lines


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.level.value],
        "message": {"text": _words(finding)},
    }
    if finding.place:
        place = finding.place
        region = {"startLine": place.line, "startColumn": place.column, "endColumn": place.column + place.width}
        uri = quote(place.file.replace("\\", "/").removeprefix("./"))
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]
    return result


def _words(finding: Finding) -> str:
    words = f"{finding.where}: {text(finding.message)}"
    return f"{words}\n{text(finding.fix.message)}" if finding.fix else words


def _data(value: str) -> str:
    """As GitHub's own toolkit escapes a message."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
