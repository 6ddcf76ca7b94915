"""Shared by all tests."""

import contextlib
import functools
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import apart
import operators
import pytest

OWN = apart.prepare()  # before anything reads the environment
COMPILED = "APART_COMPILED"
"""The variable by which workers, that must agree on an order, know whether operators were there when a run began."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-golden", action="store_true", help="rewrite tests/golden/; review the diff")
    parser.addoption("--whole-menu", action="store_true", help="every fault under every engine (test_faults.py)")
    parser.addoption(
        "--cold", action="store_true", help="start every rank as users do, and import all it needs (warm.py)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    import warm

    warm.cold = config.getoption("--cold")
    _compile_catalogue()
    if not hasattr(config, "workerinput"):
        os.environ[COMPILED] = "yes" if operators.place().is_dir() else ""
        if config.option.basetemp is None:
            config.option.basetemp = OWN.parent / "t"
        warm.share()


def _compile_catalogue() -> None:
    """Compile the translations where that was never done, or before their text changed."""
    import catalogue

    if not catalogue.MO.exists() or catalogue.MO.stat().st_mtime < catalogue.PO.stat().st_mtime:
        subprocess.run([sys.executable, catalogue.ROOT / "hatch_build.py"], check=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from shares import Shares

    return Shares(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are collected, and nothing of it is garbage: nobody looks for any there, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def trains(item: pytest.Item) -> bool:
    return item.get_closest_marker("train") is not None


def wants_operators(item: pytest.Item) -> bool:
    return trains(item) or "operators" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest shares first; but until DeepSpeed's operators are compiled, those that need them come last."""
    from shares import LONG, share

    compiled = bool(os.environ[COMPILED])
    late = {share(item.nodeid) for item in items if wants_operators(item) and not compiled}
    place = {name: n for n, name in enumerate(LONG)}
    stems = {item: share(item.nodeid) for item in items}
    items.sort(key=lambda item: (stems[item] in late, place.get(PurePath(stems[item]).stem, len(place))))


@pytest.fixture(scope="session", autouse=True)
def _compiling(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes] | None"]:
    """DeepSpeed's operators, in the making where they are wanted and not made yet."""
    compiling = operators.begun() if any(map(wants_operators, request.session.items)) else None
    yield compiling
    if compiling:
        operators.given_up(compiling)


@pytest.fixture(scope="session", name="operators")
def _operators(_compiling: "subprocess.Popen[bytes] | None") -> None:
    """Waits for DeepSpeed's operators; on a machine so slow that a test could time out here, no longer than it may."""
    if _compiling:
        with contextlib.suppress(subprocess.TimeoutExpired):
            _compiling.wait(300)
    operators.copied(OWN / "home")


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """What a test, or a library that it imports, leaves in the environment is not there for the next."""
    before, known = dict(os.environ), dict(os.environ._data)  # type: ignore[attr-defined]
    yield
    if os.environ._data == known:  # type: ignore[attr-defined]
        return
    for name in (os.environ.keys() | before.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """typer builds a command from its function in milliseconds, thousands of times in one process of tests only."""
    from trainwiz import language
    from trainwiz.cli import app

    build = app.command

    @functools.cache
    def built(name: str, _language: str) -> Any:
        return build([name] if name else [])

    def command(arguments: Sequence[str]) -> Any:
        first = arguments[0] if arguments else ""
        if first in app.COMMANDS:
            return built(first, language.current())
        return build(arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "command", command)
        yield


@pytest.fixture(autouse=True)
def _no_stale_build_locks(request: pytest.FixtureRequest) -> None:
    """A test that was killed while DeepSpeed loaded an op must not hang the ones after it."""
    if trains(request.node):
        request.getfixturevalue("operators")
        from trainwiz.probe.locks import stale_locks

        for lock in stale_locks():
            Path(lock).unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def _patient() -> Iterator[None]:
    """Where a test gives a process a minute or more, a busy machine gets as much longer as it needs."""
    from patience import patience

    wait, communicate = subprocess.Popen.wait, subprocess.Popen.communicate

    def longer(timeout: float | None) -> float | None:
        return timeout if timeout is None or timeout < 60 else timeout * patience()

    def wait_longer(self: Any, timeout: float | None = None) -> int:
        return wait(self, longer(timeout))

    def communicate_longer(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        return communicate(self, input, longer(timeout))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", wait_longer)
        patch.setattr(subprocess.Popen, "communicate", communicate_longer)
        yield


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to count samples than trainwiz lets a person wait."""
    from trainwiz.probe import documents, labeled

    monkeypatch.setattr(documents, "SECONDS", 600.0)
    monkeypatch.setattr(labeled, "_SECONDS", 600.0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not pyfuncitem.get_closest_marker("waits"):
        return None
    import together

    together.run(pyfuncitem)
    return True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    import warm

    warm.close()
    if not hasattr(session.config, "workerinput"):
        apart.leave(bool(exitstatus))
