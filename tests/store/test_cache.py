"""The cache may always be empty: damaged, unwritable and foreign content is nothing remembered."""

import json
import os
import sys
from pathlib import Path

import pytest

from trainwiz.process.capture import capture
from trainwiz.store import cache


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_what_is_remembered_is_recalled(environ: dict[str, str]) -> None:
    assert cache.recall("things", "a", environ=environ) is None
    assert cache.remember("things", "a", {"n": 1}, environ=environ)
    assert cache.remember("things", "b", [2], environ=environ)
    assert cache.recall("things", "a", environ=environ) == {"n": 1}
    assert cache.recall("things", "b", environ=environ) == [2]
    assert cache.recall("others", "a", environ=environ) is None


def test_the_oldest_are_forgotten(environ: dict[str, str]) -> None:
    for number in range(cache.KEPT + 3):
        cache.remember("things", str(number), number, environ=environ)
        cache.remember("things", "again", number, environ=environ)
    kept = [n for n in range(cache.KEPT + 3) if cache.recall("things", str(n), environ=environ) is not None]
    assert kept == list(range(4, cache.KEPT + 3))
    assert cache.recall("things", "again", environ=environ) == cache.KEPT + 2


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_damaged_content_is_replaced(environ: dict[str, str], content: bytes) -> None:
    file = cache.folder(environ) / "things.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert cache.recall("things", "a", environ=environ) is None
    assert cache.remember("things", "a", 1, environ=environ)
    assert json.loads(file.read_text()) == {"a": 1}


def test_an_unwritable_place_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    assert not cache.remember("things", "a", 1, environ=environ)
    assert cache.recall("things", "a", environ=environ) is None
    assert not cache.remember("things", "a", 1, environ={"XDG_CACHE_HOME": "/proc/nowhere"})


def test_nothing_half_written_is_left(environ: dict[str, str]) -> None:
    cache.remember("things", "a", 1, environ=environ)
    assert [file.name for file in cache.folder(environ).iterdir()] == ["things.json"]


def test_a_relative_cache_home_is_ignored() -> None:
    assert cache.folder({"XDG_CACHE_HOME": "somewhere"}) == Path(os.path.expanduser("~/.cache/trainwiz"))


def test_writers_at_once_leave_a_whole_file(environ: dict[str, str]) -> None:
    code = (
        "import os, sys; from trainwiz.store import cache\n"
        "for n in range(30): cache.remember('things', sys.argv[1], 'x' * 10000)\n"
    )
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(capture, [sys.executable, "-c", code, name], timeout=180, env={**os.environ, **environ})
            for name in "abc"
        ]
        assert [run.result().code for run in runs] == [0, 0, 0]
    assert json.loads((cache.folder(environ) / "things.json").read_text())
