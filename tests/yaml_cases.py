"""Cases of tests that lie in YAML: read when tests are collected, by each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_FASTEST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML has it, which takes a seventh of the time."""


class _Loader(_FASTEST):  # type: ignore[misc, valid-type]
    """A key that appears twice in a mapping would take the place of a case that is then never tried."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping. Raises `ValueError` for a key that appears twice in it."""
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(found) != len(node.value):
            raise ValueError(f"a key appears twice:\n{node.start_mark}")
        return found


def read(file: Path) -> Any:
    """What a file holds. Raises `ValueError` where a key appears twice in a mapping."""
    return yaml.load(file.read_text(), _Loader)
