"""Files of data that are small, and stand for gigabytes or lead nowhere."""

import struct
import zipfile
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from trainwiz.probe import first_rows, labels
from trainwiz.probe.unreadable import Unreadable

HEADER = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u1', 'fortran_order': False, 'shape': (99999999,), }"


def written(file: Path, *columns: pyarrow.Array) -> Path:
    batch = pyarrow.record_batch(list(columns), names=[f"column{n}" for n in range(len(columns))])
    with pyarrow.OSFile(str(file), "wb") as target, pyarrow.ipc.new_file(target, batch.schema) as writer:
        writer.write_batch(batch)
    return file


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_of_rows_that_share_a_long_text_only_the_first_are_made(suffix: str, tmp_path: Path) -> None:
    text = pyarrow.array(["a" * (12 << 20)])
    shared = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), text)
    file = tmp_path / f"data.{suffix}"
    if suffix == "arrow":
        written(file, shared)
    else:
        parquet.write_table(pyarrow.table({"text": shared}), file, compression="zstd")
    assert file.stat().st_size < 13 << 20
    assert 1 < len(first_rows.head(file).rows) < 6


def test_a_cell_that_would_fill_the_memory_is_not_made(tmp_path: Path) -> None:
    """A few kB that stand for 200 MB, behind a row of a usual size."""
    file, large = tmp_path / "data.parquet", pyarrow.table({"text": ["a" * 200_000_000]})
    with parquet.ParquetWriter(file, large.schema, compression="zstd") as writer:
        writer.write_table(pyarrow.table({"text": ["b"]}))
        writer.write_table(large)
    assert file.stat().st_size < 1 << 16
    usual = pyarrow.default_memory_pool()
    counting = pyarrow.proxy_memory_pool(usual)
    pyarrow.set_memory_pool(counting)
    try:
        head = first_rows.head(file)
    finally:
        pyarrow.set_memory_pool(usual)
    assert [row["text"] for _, row in head.rows] == ["b"]
    assert (head.whole, head.total) == (False, 2)
    assert 0 < counting.max_memory() < 1 << 22


def test_offsets_that_lead_elsewhere_are_not_followed(tmp_path: Path) -> None:
    file = written(tmp_path / "data.arrow", pyarrow.array(["hello", "world"]))
    offsets = struct.pack("<3i", 0, 5, 10)
    assert file.read_bytes().count(offsets) == 1
    file.write_bytes(file.read_bytes().replace(offsets, struct.pack("<3i", 0, 5, 1 << 30)))
    with pytest.raises(Unreadable, match=r"data\.arrow cannot be read"):
        first_rows.head(file)


def test_a_few_rows_of_many_batches_are_numbered_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None, "c"], "tags": [["x"], [], None]}), file)
    head = first_rows.head(file)
    assert head.rows[1:] == ((2, {"text": None, "tags": []}), (3, {"text": "c", "tags": None}))
    assert (head.whole, head.total) == (True, 3)


def test_labels_that_would_fill_the_memory_are_read_in_part(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as arrays:
        arrays.writestr("labels.npy", HEADER.ljust(128) + bytes(40 << 20))
    with zipfile.ZipFile(tmp_path / "data.npz") as arrays, arrays.open("labels.npy") as stored:
        assert labels.of_array(stored, "train") == ""
        assert stored.tell() <= labels._MOST_BYTES + 1
