"""Write trainwiz's own version into a bill of materials, which pyproject.toml leaves to the package: bill.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trainwiz import __version__


def complete(file: Path) -> str:
    """Name the version, and return what the bill holds."""
    bill = json.loads(file.read_text(encoding="utf-8"))
    own = bill["metadata"]["component"]
    own["version"] = __version__
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return f"{file}: {own['name']} {own['version']}, {len(bill['components'])} packages"


if __name__ == "__main__":
    print(complete(Path(sys.argv[1])))
