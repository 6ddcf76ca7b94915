"""Paths and lines as the console shows them."""

from pathlib import Path

import pytest

from trainwiz.ui import console


def test_a_path_is_told_as_it_is_where_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert console.near(folder / "a") == Path("a")
    folder.rmdir()
    assert console.near(folder / "a") == folder / "a"
