"""Tables in tests/golden that were reviewed; `--renew-golden` writes them, and their diff is to be reviewed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwiz.message import Message

GOLDEN = Path(__file__).parent / "golden"


def numbers(value: object) -> object:
    """What a message fills in, so that it may be worded anew; of a sentence that holds nothing, the sentence."""
    if isinstance(value, Message):
        return [numbers(item) for item in value.values.values()] or value.template
    return value


def table(name: str, made: Callable[[], Mapping[str, object]], config: pytest.Config) -> dict[str, Any]:
    """The reviewed table of this name, or what is made now where it is to be renewed."""
    file = GOLDEN / f"{name}.yaml"
    if config.getoption("--renew-golden"):
        file.write_text(yaml.safe_dump(dict(made()), allow_unicode=True, width=10**9, sort_keys=False))
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found
