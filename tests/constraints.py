"""Pin what this environment holds of all that trainwiz and its tests need: `make constraints`.

Only what the requirements lead to is pinned, not what happens to be installed beside it. A version that the oldest
Python of ours cannot have is pinned for the newer ones only; there pip takes the newest that it may.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILE = ROOT / "constraints.txt"
HEADER = "# Every version that `make` and CI install. Renew with `make constraints`, then run `make test`.\n"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


# docs/decisions/cli.md: Constraints follow the requirements and are not a `pip freeze`
def needed() -> dict[str, metadata.Distribution]:
    """Every installed distribution that trainwiz, with all its extras, or a development tool leads to."""
    extras = metadata.metadata("trainwiz").get_all("Provides-Extra") or []
    tools = (ROOT / "docs" / "requirements-dev.txt").read_text().splitlines()
    waiting = [Requirement(f"trainwiz[{','.join(extras)}]")]
    waiting += [Requirement(line) for line in tools if line and not line.startswith("#")]
    seen: set[tuple[str, str]] = set()
    found = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for n, known in seen if n == name}:
            seen.add((name, extra))
            try:
                found[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue  # for another system or an older Python
            wanted = map(Requirement, found[name].requires or [])
            waiting += [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name: found[name] for name in sorted(found) if name != "trainwiz"}


def pin(distribution: metadata.Distribution) -> str:
    """The line for one distribution; a local build such as 2.13.0+cpu is pinned by its public version."""
    # The patch release is unknown: a bound such as ≥ 3.11.0 must still mean every 3.11.
    allowed = SpecifierSet(distribution.metadata["Requires-Python"] or "")
    line = f"{distribution.metadata['Name']}=={Version(distribution.version).public}"
    oldest = next(version for version in PYTHONS if f"{version}.99" in allowed)
    return line if oldest == PYTHONS[0] else f'{line}; python_version >= "{oldest}"'


def main() -> None:
    """Write constraints.txt, and say what changed."""
    lines = [pin(distribution) for distribution in needed().values()]
    old = set(re.findall(r"^[^#\n].*", FILE.read_text(), re.MULTILINE))
    FILE.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    for line in sorted(old.symmetric_difference(lines), key=str.lower):
        sys.stderr.write(f"{'-' if line in old else '+'} {line}\n")


if __name__ == "__main__":
    main()
