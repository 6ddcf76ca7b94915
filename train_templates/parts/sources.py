"""Rows of data: from files, folders of them, patterns, and datasets of the hub.

A source is one of these; several are separated by commas:

- a file: .jsonl (.ndjson), .json, .csv, .tsv, .parquet, .arrow or .txt; all but .parquet and .arrow also as .gz or
  .zst
- a folder with such files, at any depth, or one that `Dataset.save_to_disk` wrote; where the names of all files say
  whether they are for training (`train.csv`, `test/a.csv`; see splits.py), only those that are
- a pattern: `texts/*.jsonl.gz`, `texts/**/*.parquet`
- a dataset of the hub: `organization/name`, `organization/name:subset`, `organization/name:subset:split`

Only .parquet, .arrow, .zst, saved datasets and the hub need the package datasets.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import itertools
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import splits

# feature: labels
from class_names import with_names

# end: labels
from json_rows import RepeatedKey, json_rows, parsed

Row = tuple[str, Any]  # its place, for errors, and its columns: a dict, or the JSON of one, as read from the file
TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
STORED = (".parquet", ".arrow")
COMPRESSED = (".gz", ".zst")
SAME = {".ndjson": ".jsonl", ".jsonlines": ".jsonl"}  # other suffixes of the same format
LARGE_BYTES = 16 << 20


class TableRow(dict[str, Any]):
    """A row of a table, which has all columns: None stands for a missing value."""


class Sources:
    """All rows of one or several sources, in order, and how much of their files has been read."""

    def __init__(self, names: str, split: str, max_rows: int = 0, texts: bool = False) -> None:
        self.split, self.max_rows = split, max_rows
        self.suffixes = (*TABLES, ".txt") if texts else TABLES
        self.found = {name: self.files(name) for name in listed(names)}
        splits.refuse_repeated(self.found)
        self.done_bytes, self.raw = 0, io.BytesIO()
        self.total_bytes = sum(file.stat().st_size for file in self.all_files())

    def __iter__(self) -> Iterator[Row]:
        for name, files in self.found.items():
            rows = itertools.chain.from_iterable(map(self.rows_of, files)) if files else hub_rows(name, self.split)
            yield from itertools.islice(rows, self.max_rows or None)

    def files(self, name: str) -> list[Path]:
        """Return the files and saved datasets of a source; none for a dataset of the hub. Exit if there are none."""
        path = Path(name)
        if path.is_file():
            return [path]
        if path.is_dir():
            found = [path] if splits.is_saved(path) else splits.of_part(path, self.inside(path), self.split)
        elif glob.has_magic(name.partition(":")[0]):
            found = [Path(p) for p in sorted(glob.glob(name, recursive=True)) if Path(p).is_file()]
        elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[^/]*)?", name) and kind(path) not in (*TABLES, ".txt"):
            return []
        else:
            raise SystemExit(f"{name}: no such file or folder")
        if not found:
            raise SystemExit(f"{name}: no file in a readable format: {', '.join(self.suffixes)}, also .gz and .zst")
        return found

    def inside(self, folder: Path) -> list[Path]:
        """Return the files of a folder that can be read, at any depth."""
        shown = [p for p in sorted(folder.rglob("*")) if splits.is_shown(p.relative_to(folder))]
        return [p for p in shown if kind(p) in self.suffixes and p.name not in splits.ABOUT and p.is_file()]

    def all_files(self) -> list[Path]:
        """Return every single file that is read."""
        named = itertools.chain.from_iterable(self.found.values())
        return [p for path in named for p in ([path] if path.is_file() else sorted(path.rglob("*"))) if p.is_file()]

    def stamps(self) -> list[Any]:
        """Return what changes whenever the files do: their paths, sizes and times. Of the hub, only names."""
        stats = [(str(path.resolve()), path.stat()) for path in self.all_files()]
        return [*self.found, self.split, self.max_rows, *((p, s.st_size, s.st_mtime_ns) for p, s in stats)]

    def contents(self) -> list[Any]:
        """Return what decides the rows, wherever the files are: a hash of each. Of the hub, only names."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            hashes = list(pool.map(hash_file, self.all_files()))
        kinds = [[kind(path) for path in files] or name for name, files in self.found.items()]
        from_hub = not all(self.found.values()) or any(path.is_dir() for files in self.found.values() for path in files)
        return [hashes, kinds, self.max_rows, self.split if from_hub else ""]

    @property
    def large(self) -> bool:
        """Whether the data is, or may be, too large for one process to encode quickly."""
        return self.total_bytes > LARGE_BYTES or not all(self.found.values())

    @property
    def read_bytes(self) -> int:
        """The bytes of the files that were read so far."""
        return self.done_bytes + (0 if self.raw.closed else self.raw.tell())

    def rows_of(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file or of a saved dataset. Exit where one cannot be read."""
        if path.is_dir():
            yield from saved_rows(path, self.split)
            self.done_bytes += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        elif kind(path) in STORED:
            yield from stored_rows(path)
            self.done_bytes += path.stat().st_size
        else:
            with path.open("rb") as self.raw, decompressed(path, self.raw) as content:
                yield from checked(path, READERS.get(kind(path), text_rows)(path, content))
            self.done_bytes += path.stat().st_size


def listed(names: str) -> list[str]:
    """Return the sources of a setting: one that exists is one source, whatever is in its name."""
    if Path(names).exists():
        return [names]
    found = [name for name in map(str.strip, re.split(r",(?![^\[]*\])", names)) if name]
    if twice := next((name for name in found if found.count(name) > 1), ""):
        raise SystemExit(f"{twice}: named twice among the sources; name it once")
    return found


def kind(path: Path) -> str:
    """Return the suffix that says how a file is read, without that of its compression."""
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()
    return SAME.get(suffix, suffix)


def decompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """Return the content of a file that may be compressed."""
    if path.suffix.lower() == ".gz":
        return gzip.open(raw)
    if path.suffix.lower() == ".zst":
        import pyarrow  # comes with datasets

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"), 1 << 20)
    return io.BufferedReader(raw, 1 << 20)  # type: ignore[arg-type]


def checked(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows. Exit with the last place if the file is damaged."""
    place = str(path)
    try:
        for place, row in rows:
            yield place, row
    except (EOFError, OSError, ValueError, zlib.error, csv.Error) as error:
        after = f" after {place}" if place != str(path) else ""
        told = "; within quotes, write each quote twice" if isinstance(error, csv.Error) else ""
        raise SystemExit(f"{path}: cannot be read{after}: {type(error).__name__}: {error}{told}") from None


def table_rows(path: Path, content: IO[bytes]) -> Iterator[Row]:
    """Yield the rows of a .csv or .tsv file, whose first line names the columns. All values are text."""
    csv.field_size_limit(1 << 31)
    ends = [0]  # the line that each row ends in

    def lines() -> Iterator[str]:
        for number, line in enumerate(content, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise SystemExit(f"{path}:{number}: not valid UTF-8: {error}") from None

    reader = csv.reader(lines(), delimiter="\t" if kind(path) == ".tsv" else ",", strict=True)
    names = next(reader, [])
    if len(set(names)) < len(names):
        raise SystemExit(f"{path}:1: two columns have the same name: {', '.join(names)}")
    ends.append(reader.line_num)
    for row in reader:
        place = f"{path}:{ends.pop() + 1}"
        ends.append(reader.line_num)
        if not row:
            continue
        if len(row) != len(names):
            raise SystemExit(f"{place}: fields: {len(row)}, but line 1 names {len(names)} columns")
        if row == names:  # two files were joined
            raise SystemExit(f"{place}: the names of the columns again; delete this line")
        if kind(path) == ".tsv" and any("\t" in text and "\n" in text for text in row):
            raise SystemExit(
                f"{place}: a quote takes in the lines up to {ends[-1]}; double it, as a quote within quotes"
            )
        yield place, dict(zip(names, row, strict=True))


def text_rows(path: Path, content: IO[bytes]) -> Iterator[Row]:
    """Yield a whole file as one text, in the column of that name."""
    try:
        text = content.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SystemExit(f"{path}:{line}: not valid UTF-8: {error.reason}") from None
    if "\0" in text:  # valid UTF-8, and what UTF-16 without its mark looks like
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SystemExit(f"{path}:{line}: zero bytes in a text: it is in UTF-16, or not a text")
    yield str(path), {"text": text}


READERS = {".jsonl": json_rows, ".json": json_rows, ".csv": table_rows, ".tsv": table_rows}


def stored_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a .parquet or .arrow file."""
    from datasets import load_dataset

    try:
        table = load_dataset(kind(path)[1:], data_files=glob.escape(str(path)), split="train", streaming=True)
        yield from numbered(path, table)
    except Exception as error:  # pyarrow's errors, or those that datasets makes of them
        raise SystemExit(f"{path}: cannot be read: {type(error).__name__}: {error}") from None


def saved_rows(path: Path, split: str) -> Iterator[Row]:
    """Yield the rows of a dataset that `save_to_disk` wrote: of its part for training or evaluation, if it has any."""
    from datasets import load_from_disk

    table: Any = load_from_disk(str(path))
    if isinstance(table, dict):
        name = next((name for name in splits.PARTS[split] if name in table), None)
        if name is None:
            raise SystemExit(f"{path}: no such file or folder: it has no part {split}, but {', '.join(table)}")
        table = table[name]
    yield from numbered(path, table)


def hub_rows(name: str, split: str) -> Iterator[Row]:
    """Yield the rows of a dataset of the hub: `organization/name:subset:split`."""
    from datasets import load_dataset

    identity, subset, part = (*name.split(":", 2), "", "")[:3]
    table = load_dataset(identity, subset or None, split=part or split)
    yield from numbered(name, table)


def numbered(name: object, table: Any) -> Iterator[Row]:
    """Yield the rows of a table of datasets, by their number."""
    # feature: labels
    table = with_names(table)
    # end: labels
    yield from ((f"{name}: row {number}", TableRow(row)) for number, row in enumerate(table, start=1))


def hash_file(path: Path) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def columns(row: Row) -> dict[str, Any]:
    """Return a row's columns. Exit if it is not a JSON object."""
    place, value = row
    try:
        value = parsed(value) if isinstance(value, bytes | str) else value
    except RepeatedKey as error:
        raise SystemExit(f'{place}: the key "{error}" is given twice; only one value would be read') from None
    except ValueError as error:
        raise SystemExit(f"{place}: not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise SystemExit(f"{place}: not a JSON object, but {value!r:.60}")
    return value


def value_of(row: Row, column: str) -> Any:
    """Return the value of one column. Exit if there is no such column."""
    found = columns(row)
    if column not in found:
        raise SystemExit(f'{row[0]}: no column "{column}"; it has {", ".join(map(str, found)) or "none"}')
    return found[column]


def text_of(row: Row, column: str) -> str:
    """Return the text of one column. Exit if it is not text."""
    text = value_of(row, column)
    if not isinstance(text, str):
        raise SystemExit(f'{row[0]}: column "{column}" is {text!r:.60}, which is not text')
    return text


def is_part(data: str) -> bool:
    """Return whether a setting names no data, but a part of the training data: `5%` or `200`."""
    return re.fullmatch(r"\d+(\.\d+)?%|\d+", data.strip()) is not None


def held_out(hashes: Any, part: str) -> Any:
    """Return which samples are kept for evaluation: those whose hashes are smallest.

    The choice depends on the samples alone, not on their order. Equal samples stay together, so none is in both parts.
    """
    import numpy as np

    number = float(part.strip().rstrip("%"))
    count = round(len(hashes) * number / 100) if part.strip().endswith("%") else int(number)
    if not 0 < count < len(hashes):
        raise SystemExit(f"{part} of {len(hashes)} samples are {count}: nothing would be left to train or evaluate on")
    chosen = hashes <= np.partition(hashes, count - 1)[count - 1]
    if chosen.all():
        raise SystemExit(
            f"{part} of {len(hashes)} samples: so many are identical that nothing would be left to train on"
        )
    return chosen


def hash_of(sample: bytes) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(sample, digest_size=8).digest(), "little")
