"""The templates of generated projects, as text."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from trainwiz import resources


@functools.cache
def load() -> Mapping[str, str]:
    """Every template by its path: `templates/README.md.j2`, `train_templates/loops/accelerate.py`, …"""
    found: dict[str, str] = {}
    for name, root in (("templates", resources.templates()), ("train_templates", resources.train_templates())):
        for file in sorted(root.rglob("*")):
            path = file.relative_to(root)
            hidden = any(part == "__pycache__" or part.startswith(".") for part in path.parts)
            if not hidden and path.suffix != ".pyc" and file.is_file():
                found[f"{name}/{path.as_posix()}"] = file.read_text(encoding="utf-8")
    return MappingProxyType(found)
