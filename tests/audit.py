"""Known vulnerabilities of the versions in a list of constraints: python tests/audit.py PIP_AUDIT CONSTRAINTS…

Where no database of vulnerabilities can be reached this says so, and is no failure; what was not looked up is counted.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 600


def audited(pip_audit: str, constraints: str) -> list[dict[str, Any]] | None:
    """What pip-audit says of each package; None where it got no answer."""
    command = [pip_audit, "--disable-pip", "--no-deps", "--format", "json", "--requirement", constraints]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None
    return found


def report(constraints: str, found: list[dict[str, Any]] | None) -> tuple[str, bool]:
    """What to print, and whether a version with a known vulnerability is among them."""
    looked_up = [package for package in found or [] if "skip_reason" not in package]
    if not looked_up:
        return f"{constraints}: not audited, since no database of vulnerabilities could be reached", False
    lines = [
        f"{constraints}: {package['name']} {package['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability['fix_versions']) or '-'}"
        for package in looked_up
        for vulnerability in package["vulns"]
    ]
    skipped = len(found or []) - len(looked_up)
    lines.append(f"{constraints}: {len(looked_up)} packages audited, {skipped} not found, {len(lines)} vulnerabilities")
    return "\n".join(lines), len(lines) > 1


def main() -> int:
    pip_audit, *lists = sys.argv[1:]
    reports = [report(Path(name).name, audited(pip_audit, name)) for name in lists]
    for words, _ in reports:
        print(words)
    return int(any(vulnerable for _, vulnerable in reports))


if __name__ == "__main__":
    raise SystemExit(main())
