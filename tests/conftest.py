"""Shared by all tests."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-golden", action="store_true", help="rewrite tests/golden/; review the diff")
    parser.addoption("--whole-menu", action="store_true", help="every fault under every engine (test_faults.py)")


@pytest.fixture(autouse=True)
def _no_stale_build_locks(request: pytest.FixtureRequest) -> None:
    """A test that was killed while DeepSpeed loaded an op must not hang the ones after it."""
    if request.node.get_closest_marker("train"):
        from trainwiz.probe.locks import stale_locks

        for lock in stale_locks():
            Path(lock).unlink(missing_ok=True)
