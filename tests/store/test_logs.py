"""Logs of any size and kind, read in bounded memory."""

import io
import os
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from trainwiz.errors import UsageError
from trainwiz.store import logs


def test_a_small_log_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.log"
    file.write_bytes(b"one\n\xff\xfe two\nthree")
    assert [line.number for line in logs.read(file).lines()] == [1, 2, 3]
    assert logs.read(file).lines()[2].text == "three"


def test_a_huge_log_is_read_at_both_ends_with_true_line_numbers(tmp_path: Path) -> None:
    file, lines = tmp_path / "huge.log", 1_500_000
    with file.open("w") as stream:
        stream.write("the beginning\n")
        stream.writelines(f"update {i} loss 1.2345678901234567890\n" for i in range(lines))
        stream.write("KeyError: the end\n")
    size = file.stat().st_size
    tracemalloc.start()
    excerpt = logs.read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 50e6
    assert peak < 10e6
    found = excerpt.lines()
    assert (found[0].number, found[0].text) == (1, "the beginning")
    assert (found[-1].number, found[-1].text) == (lines + 2, "KeyError: the end")
    assert all(b.number > a.number for a, b in pairwise(found))


def test_one_endless_line_is_bounded_too(tmp_path: Path) -> None:
    file = tmp_path / "line.log"
    file.write_bytes(b"x" * 3_000_000 + b"\nKeyError: 1\n")
    excerpt = logs.read(file)
    assert len(excerpt.head) + len(excerpt.tail) <= logs.HEAD_BYTES + logs.TAIL_BYTES
    assert excerpt.lines()[-1].text == "KeyError: 1"
    assert excerpt.lines()[-1].number == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.log", "No such file"),
        ("folder", "is a folder"),
        ("empty.log", "is empty"),
        ("core", "is not a text file"),
        ("/dev/zero", "is not a regular file"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.log").write_text("\n\n")
    (tmp_path / "core").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(UsageError, match=words):
        logs.read(tmp_path / name)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_log_of_somebody_else(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.touch(0o000)
    with pytest.raises(UsageError, match="Permission"):
        logs.read(file)


def test_a_pipe_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KeyError: 1\n")))
    assert logs.read("-").lines()[0].text == "KeyError: 1"


def test_logs_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("two")
    assert [line.text for line in logs.lines(tmp_path / "a", tmp_path / "b")] == ["two"]
