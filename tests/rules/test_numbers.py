"""What each rule says of its failing cases: key, place, numbers and changes, as reviewed in tests/golden/findings.yaml.

The sentences themselves stand in the rules and may change without a change of this file; `--renew-golden` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import reviewed
import test_configurations
import test_lint
import test_rules

from trainwiz.finding import Finding
from trainwiz.message import Message


def said_by_plans(id: str) -> Iterator[Finding]:
    for case in test_rules.CASES[id]:
        if "fails" in case:
            yield from test_rules.RULES[id](test_rules.facts(case["fails"]))


def said_by_scripts(id: str) -> Iterator[Finding]:
    for case in test_lint.CASES[id]:
        if "fails" in case:
            yield from test_lint.found_by(test_lint.RULES[id], test_lint.text_of(case))


def said_by_files(id: str, folder: Path) -> Iterator[Finding]:
    for _, outcome, i, case in (each for each in test_configurations.CASES if each[0] == id):
        if outcome == "fails":
            files, _ = test_configurations.files_of(case, outcome, folder / str(i))
            yield from files.findings([id], [])


def line(finding: Finding, folder: Path) -> str:
    """One finding, with paths below the folder of the test."""
    place = finding.place
    at = f"{place.file}:{place.line}:{place.column}+{place.width}" if place else ""
    parts = [at, finding.where, filled(finding.message)]
    if finding.fix:
        parts += ["→", filled(finding.fix.message), *([shown(finding.fix.changes)] if finding.fix.changes else [])]
    text = " ".join(part for part in parts if part)
    return text.replace(f"{folder}/", "")


def filled(message: Message) -> str:
    return shown({name: reviewed.numbers(value) for name, value in message.values.items()}) if message.values else ""


def shown(value: Mapping[str, Any]) -> str:
    return repr(dict(value))


def said(id: str, folder: Path) -> list[str]:
    """What a rule says of all its failing cases."""
    if id in test_rules.RULES:
        found = said_by_plans(id)
    elif id in test_lint.RULES:
        found = said_by_scripts(id)
    else:
        found = said_by_files(id, folder)
    return [line(finding, folder) for finding in found]


RULES = sorted({*test_rules.RULES, *test_lint.RULES, *test_configurations.RULES})


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    every = {id: tmp_path_factory.mktemp(id) for id in RULES} if request.config.getoption("--renew-golden") else {}
    return reviewed.table("findings", lambda: {id: said(id, folder) for id, folder in every.items()}, request.config)


@pytest.mark.parametrize("id", RULES)
def test_the_numbers_are_as_reviewed(id: str, golden: dict[str, list[str]], tmp_path: Path) -> None:
    assert said(id, tmp_path) == golden[id]
    assert golden[id]


def test_no_other_rule_is_reviewed(golden: dict[str, list[str]]) -> None:
    assert sorted(golden) == RULES
