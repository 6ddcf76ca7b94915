"""What is called proven: each error rule is shown by a test that names it, or it is known why none can."""

from __future__ import annotations

import re
from pathlib import Path

import test_claims
import test_configurations
import test_missing
import test_script_claims

from trainwiz import rules
from trainwiz.finding import Level
from trainwiz.rules import proofs

HERE = Path(__file__).parent
ERRORS = {rule.id: rule for rule in rules.load() if rule.level is Level.ERROR}
COLOSSALAI = {"TW118", "TW207", "TW309", "TW310", "TW319"}
"""Shown by whole trainings in test_colossalai.py, and by what its plugins refuse there."""
UNPROVEN = {
    "TW106": "needs an NVIDIA driver that is older than torch's CUDA",
    "TW384": "needs megatron-core",
    "TW393": "needs megatron-core",
    "TW534": "needs bitsandbytes",
    "TW603": "needs a GPU that another process fills",
}
"""Why the tests cannot show it; the manual names what it rests on."""


def named(text: str) -> set[str]:
    """The rules in names like `tw107_tw601_ranks_share_a_gpu`, `tw720_721_what_is_seen` and `TW109`."""
    found = re.findall(r"(?i)(?:(?<![a-z0-9])tw)?(?<![0-9])(\d{3})(?=_| |$)", text)
    return {f"TW{digits}" for digits in found} if re.match(r"(?i)(tw|test_tw|\d{3}_)", text) else set()


def shown() -> set[str]:
    claims = (*test_claims.EXPECTED.values(), test_script_claims.EXPECTED, test_script_claims.DEEPSPEED)
    names = [name for each in (*claims, test_script_claims.BOOSTING, test_script_claims.GEMINI) for name in each]
    names += [*test_missing.CASES, *vars(test_missing), *vars(test_script_claims)]
    names += re.findall(r'id="(tw[^"]*)"', (HERE / "test_missing.py").read_text())
    return {id for name in names for id in named(name)} | COLOSSALAI | set(test_configurations.shown())


def test_what_is_called_proven_is_shown_by_a_test() -> None:
    assert shown() & ERRORS.keys() == proofs.PROVEN


def test_it_is_known_why_the_others_are_not() -> None:
    assert ERRORS.keys() - proofs.PROVEN == UNPROVEN.keys()
    for id in UNPROVEN:
        assert "Source: " in ERRORS[id].manual
