"""What `make audit` says of what pip-audit answers."""

import json
from pathlib import Path

import audit
import bill
import pytest

from trainwiz import __version__

SOUND = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "c", "version": "3", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("found", "says", "vulnerable"),
    [
        (None, "not audited", False),
        ([UNKNOWN], "not audited", False),
        ([SOUND, UNKNOWN], "1 packages audited, 1 not found, 0 vulnerabilities", False),
        ([SOUND, BAD], "b 2: CVE-1, fixed in 2.1", True),
    ],
)
def test_an_audit_that_looked_at_nothing_is_not_called_clean(
    found: list[dict[str, object]] | None, says: str, vulnerable: bool
) -> None:
    words, is_vulnerable = audit.report("constraints.txt", found)
    assert says in words
    assert is_vulnerable is vulnerable


def test_a_program_that_is_missing_or_says_nonsense_is_no_audit(tmp_path: Path) -> None:
    assert audit.audited(str(tmp_path / "none"), "constraints.txt") is None
    assert audit.audited("/bin/true", "constraints.txt") is None


def test_a_bill_of_materials_names_the_version_that_it_is_of(tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps({"metadata": {"component": {"name": "trainwiz"}}, "components": [{"name": "typer"}]}))
    assert bill.complete(file).endswith(f"trainwiz {__version__}, 1 packages")
    assert json.loads(file.read_text())["metadata"]["component"]["version"] == __version__
