"""The template folders: inside the installed package, or else at the repository root."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_REPOSITORY = _PACKAGE.parent.parent


def templates() -> Path:
    """The folder of text templates (Jinja2)."""
    return _find("templates")


def train_templates() -> Path:
    """The folder of the training programs from which projects are generated."""
    return _find("train_templates")


def _find(name: str) -> Path:
    # An editable install does not have hatch's force-included folders.
    for root in (_PACKAGE, _REPOSITORY):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"{name}/ is missing from the installation at {_PACKAGE}")
