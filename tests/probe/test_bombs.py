"""Files of data that are small, and stand for gigabytes or lead nowhere."""

import contextlib
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from pyarrow.parquet import encryption

from trainwiz.probe import arrow_batches, first_rows, labels, parquet_pages
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


LARGE = pyarrow.table({"text": ["a" * 200_000_000]})
USUAL = pyarrow.table({"text": ["b"]})


def arrow(file: Path, *tables: pyarrow.Table, kind: str, codec: str = "zstd") -> Path:
    """A file or a stream with a batch of each table."""
    options = pyarrow.ipc.IpcWriteOptions(compression=codec)
    made = pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream
    with pyarrow.OSFile(str(file), "wb") as target, made(target, tables[0].schema, options=options) as writer:
        for table in tables:
            writer.write_table(table)
    return file


def groups(file: Path, *tables: pyarrow.Table) -> Path:
    """A parquet file with a group of each table."""
    with parquet.ParquetWriter(file, tables[0].schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    return file


@contextlib.contextmanager
def at_most(most: int) -> Iterator[None]:
    """Within this, pyarrow takes no more bytes than that at once."""
    usual = pyarrow.default_memory_pool()
    counting = pyarrow.proxy_memory_pool(usual)
    pyarrow.set_memory_pool(counting)
    try:
        yield
    finally:
        pyarrow.set_memory_pool(usual)
    assert counting.max_memory() < most


def test_a_cell_that_would_fill_the_memory_is_not_made(tmp_path: Path) -> None:
    """A few kB that stand for 200 MB, behind a row of a usual size."""
    file = groups(tmp_path / "data.parquet", USUAL, LARGE)
    assert file.stat().st_size < 1 << 16
    with at_most(1 << 22):
        head = first_rows.head(file)
    assert [row["text"] for _, row in head.rows] == ["b"]
    assert (head.whole, head.total) == (False, 2)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_batch_that_would_fill_the_memory_is_not_made(kind: str, codec: str, tmp_path: Path) -> None:
    file = arrow(tmp_path / "data.arrow", USUAL, LARGE, kind=kind, codec=codec)
    assert file.stat().st_size < 1 << 20
    with at_most(1 << 22):
        head = first_rows.head(file)
    assert [row["text"] for _, row in head.rows] == ["b"]
    assert not head.whole


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_first_row_that_would_fill_the_memory_is_said_with_its_file(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"data.{suffix}"
    _ = groups(file, LARGE) if suffix == "parquet" else arrow(file, LARGE, kind="stream")
    with at_most(1 << 22), pytest.raises(Unreadable, match=rf"^data\.{suffix}: its first rows take 191 MiB"):
        first_rows.head(file)


def test_a_dictionary_that_would_fill_the_memory_is_not_made(tmp_path: Path) -> None:
    shared = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 5, pyarrow.int32()), LARGE["text"].chunk(0))
    file = arrow(tmp_path / "data.arrow", pyarrow.table({"text": shared}), kind="file")
    with at_most(1 << 22):
        assert first_rows.head(file).rows == ()


@pytest.mark.parametrize("texts", [["a" * 200_000_000, *"b" * 999], [*["c" * 30_000] * 40, "a" * 200_000_000]])
def test_a_large_cell_among_many_small_ones_is_not_made(texts: list[str], tmp_path: Path) -> None:
    """In the mean, its rows are small: the page says its size."""
    file = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), file, compression="zstd", use_dictionary=False)
    with at_most(1 << 22):
        assert first_rows.head(file).rows == ()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_say_how_large_they_are(dictionary: bool, version: str, tmp_path: Path) -> None:
    """Of all rows, the largest page; of the first ones, the first page; with a dictionary, that too."""
    texts = [f"{n:010}" * 10 for n in range(3000)]
    table = pyarrow.table({"text": texts, "tags": [[text, text] for text in texts]})
    file, page = tmp_path / "data.parquet", 20_000
    parquet.write_table(
        table,
        file,
        row_group_size=2000,
        compression="zstd",
        use_dictionary=dictionary,
        data_page_size=page,
        data_page_version=version,
        write_batch_size=10,
    )
    with file.open("rb") as stored:
        sizes = [*parquet_pages.of_groups(stored, [False, True], 1)]
    assert [rows for rows, _ in sizes] == [2000, 1000]
    of_dictionaries = [2000 * 104 * 2, 1000 * 104 * 2] if dictionary else [0, 0]
    for (_, taken), more in zip(sizes, of_dictionaries, strict=True):
        assert more < taken <= more + 3 * page


def test_batches_say_how_large_they_are(tmp_path: Path) -> None:
    """As large as the same batches are without compression."""
    tables = [pyarrow.table({"text": ["a" * n] * 100, "tags": [["b", None]] * 100}) for n in (10, 1000)]
    file = arrow(tmp_path / "data.arrow", *tables, kind="stream")
    with pyarrow.memory_map(str(file)) as content:
        sizes = [*arrow_batches.of_batches(pyarrow.ipc.MessageReader.open_stream(content))]
    assert [rows for rows, _ in sizes] == [100, 100]
    for (_, taken), table in zip(sizes, tables, strict=True):
        assert table.nbytes <= taken <= table.nbytes + 64


def test_damaged_descriptions_are_said_with_their_file(tmp_path: Path) -> None:
    whole = groups(tmp_path / "whole.parquet", pyarrow.table({"text": ["hello"] * 100})).read_bytes()
    file = tmp_path / "data.parquet"
    for at in range(4, len(whole) - 8):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(Unreadable):
            first_rows.head(file)


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are not secret."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:  # noqa: ARG002
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:  # noqa: ARG002
        return bytes.fromhex(wrapped_key)


def test_an_encrypted_column_ends_no_process(tmp_path: Path) -> None:
    """pyarrow aborts the process that asks for the description of such a column."""
    file, table = tmp_path / "data.parquet", pyarrow.table({"text": ["b"], "secret": ["c"]})
    wanted = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["secret"]}, plaintext_footer=True
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    with parquet.ParquetWriter(file, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(Unreadable, match=r"data\.parquet cannot be read: it is encrypted"):
        first_rows.head(file)


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
