"""Cases of tests that lie in YAML: read when tests are collected, by each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML has it, which takes a seventh of the time."""


def read(file: Path) -> Any:
    """What a file holds."""
    return yaml.load(file.read_text(), LOADER)
