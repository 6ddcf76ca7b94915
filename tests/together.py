"""Tests that mostly wait, side by side: those of a module marked `waits` run in threads, when the first's turn comes.

They may use parameters, `tmp_path`, and fixtures that the whole module shares. Each keeps its own result.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

AT_ONCE = 5
_ran: dict[str, Future[None]] = {}


def run(item: pytest.Function) -> None:
    """Raise what this test raised beside others. Runs those of its module if they have not yet."""
    if item.nodeid not in _ran:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            _ran.update({other.nodeid: pool.submit(_run, other, _arguments(other, item)) for other in _beside(item)})
    _ran[item.nodeid].result()


def _beside(item: pytest.Function) -> list[pytest.Function]:
    everybody = [other for other in item.session.items if isinstance(other, pytest.Function)]
    return [o for o in everybody if o.module is item.module and o.get_closest_marker("waits")]


def _arguments(item: pytest.Function, first: pytest.Function) -> dict[str, Any]:
    """What a test wants; only the first has been given its fixtures."""
    found: dict[str, Any] = {}
    for name in item._fixtureinfo.argnames:
        if hasattr(item, "callspec") and name in item.callspec.params:
            found[name] = item.callspec.params[name]
        elif name == "tmp_path" and item is not first:
            found[name] = item.config._tmp_path_factory.mktemp(item.originalname[:30])  # type: ignore[attr-defined]
        else:
            found[name] = first.funcargs[name]
    return found


def _run(item: pytest.Function, arguments: dict[str, Any]) -> None:
    item.obj(**arguments)
