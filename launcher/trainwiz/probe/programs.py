"""Programs on the search path."""

from __future__ import annotations

import shutil
from collections.abc import Iterable


def installed(names: Iterable[str]) -> frozenset[str]:
    """Those of these programs that are installed."""
    return frozenset(name for name in names if shutil.which(name))
