"""The templates of generated projects, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainwiz import resources


def load() -> Mapping[str, str]:
    """Every template by its path: `templates/README.md.j2`, `train_templates/loops/accelerate.py`, …"""
    found: dict[str, str] = {}
    for name, root in (("templates", resources.templates()), ("train_templates", resources.train_templates())):
        for file in sorted(root.rglob("*")):
            if _is_template(file.relative_to(root)) and file.is_file():
                found[f"{name}/{file.relative_to(root).as_posix()}"] = file.read_text(encoding="utf-8")
    return found


def _is_template(path: Path) -> bool:
    return not any(part == "__pycache__" or part.startswith(".") for part in path.parts) and path.suffix != ".pyc"
