"""About how much text files hold, by their first rows and their sizes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trainwiz.probe import amounts, first_rows
from trainwiz.project import Amount


def amount(*files: Path, column: str | None = None, as_bytes: bool = True) -> Amount | None:
    return amounts.amount([(file, first_rows.head(file)) for file in files], files, column, as_bytes=as_bytes)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv":
            path.write_text("text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in rows))
        case ".gz":
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        case ".txt":
            path.write_text("".join(row["text"] for row in rows))
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
def test_a_small_file_is_counted(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, [{"text": f"word {i:03}", "n": i} for i in range(50)])
    assert amount(file, column="text") == Amount(documents=50, different=50, tokens=400)
    found = amount(file, column="text", as_bytes=False)
    assert found
    assert found.tokens == 100
    assert found.lengths == (2,) * 50
    assert found.exact


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_large_file_is_measured_by_its_beginning(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, [{"text": f"{i:05} " + "x" * 994, "n": i} for i in range(5000)])
    found = amount(file, column="text")
    assert found
    assert found.documents == pytest.approx(5000, rel=0.02)
    assert found.different == found.documents
    assert found.tokens == pytest.approx(5_000_000, rel=0.02)
    assert not found.exact


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", [{"text": "x" * 3_000_000}])
    found = amount(file, column="text")
    assert found
    assert (found.documents, found.different) == (1, 1)
    assert found.lengths == (), "only its beginning was read"
    assert found.tokens == pytest.approx(3_000_000, rel=0.01)


def test_the_length_of_a_compressed_file_is_not_guessed(tmp_path: Path) -> None:
    rows = [{"text": "x" * 1000, "n": i} for i in range(3000)]
    assert amount(written(tmp_path / "a.jsonl.gz", rows), column="text") is None


def test_all_texts_of_a_conversation_count_and_equal_ones_are_noticed(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "n": 3}
    file = written(tmp_path / "a.jsonl", [talk] * 30)
    assert amount(file) == Amount(documents=30, different=1, tokens=30 * len("userhiassistantyes"))


def test_files_of_which_only_some_were_read(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.jsonl", [{"text": "word", "n": i}] * 10) for i in range(4)]
    found = amounts.amount([(files[0], first_rows.head(files[0]))], files, "text", as_bytes=True)
    assert found
    assert found.documents == 40


def test_no_rows_are_no_amount(tmp_path: Path) -> None:
    assert amount(written(tmp_path / "a.jsonl", [])) is None


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_a_first_row_longer_than_what_is_looked_at_is_unknown(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, [{"text": "x" * 3_000_000, "n": 1}])
    assert first_rows.head(file).rows == ()
    assert amount(file, column="text") is None


def test_a_parquet_file_says_how_many_rows_it_has(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["abcd"] * 200}), tmp_path / "a.parquet")
    assert amount(tmp_path / "a.parquet", column="text") == Amount(documents=200, different=4, tokens=800)
