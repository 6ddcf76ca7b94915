"""The first rows of a file of data, as the generated sources.py reads them. Nothing large is imported or read."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainwiz.files import opened
from trainwiz.language import t
from trainwiz.probe import arrow_batches, parquet_pages, unreadable
from trainwiz.probe.unreadable import Unreadable
from trainwiz.quantities import size

TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
SAME = {".ndjson": ".jsonl", ".jsonlines": ".jsonl"}
"""Other endings of the same format."""
STORED = (".parquet", ".arrow")
COMPRESSED = (".gz", ".zst")
HEAD_BYTES = 1 << 20
"""How much of a file is looked at."""
_FIRST_BYTES = 64
"""How many of them are enough to recognize a file."""
_STORED_ROWS = 50
"""How many rows of a file in a binary format are looked at."""
_STORED_BYTES = 64 << 20
"""Their most bytes in all, and the most of one row."""
_MOST_AT_ONCE = 128 << 20
"""Bytes of what has to be decompressed as a whole before a row of it is seen."""
_MAGIC = b"ARROW1"
"""How an Arrow file begins, in which a stream follows."""
_BETWEEN = re.compile(r"[\s,]*")
Row = tuple[int, Mapping[str, Any]]
"""The line (or the item) of a row, and its columns."""


class Label(int):
    """A number of a ClassLabel column of datasets, shown as its name."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return self.names[self]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The beginning of a file."""

    rows: tuple[Row, ...] = ()
    """Its first rows; none where this cannot be known without another package."""
    whole: bool = False
    """Whether these are all."""
    total: int | None = None
    """How many rows the file has, if it says so itself."""


def kind(file: Path) -> str:
    """The suffix that says how a file is read, without that of its compression."""
    suffix = (file.with_suffix("") if file.suffix.lower() in COMPRESSED else file).suffix.lower()
    return SAME.get(suffix, suffix)


def plain(file: Path) -> bool:
    """Whether the size of a file is about that of its texts."""
    return file.suffix.lower() not in COMPRESSED and kind(file) not in STORED


def head(file: Path) -> Head:
    """The first rows. Raises `Unreadable`."""
    try:
        with opened(file) as stored:
            unreadable.refuse_mistaken(file, stored.read(_FIRST_BYTES))
        if kind(file) in STORED:
            return _readable(file)
        with _opened(file) as content:
            start = content.read(HEAD_BYTES + 1)
    except ImportError:
        return Head()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        problem = getattr(error, "strerror", None) or error
        raise Unreadable(t("{file} cannot be read: {problem}", file=file.name, problem=problem)) from None
    whole = len(start) <= HEAD_BYTES
    if not whole and kind(file) not in (".json", ".txt"):
        start = start[: start.rfind(b"\n") + 1]
        if not start:
            return Head()  # the first row is longer than what is looked at
    return Head(rows=tuple(_rows(file, start, whole)), whole=whole)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The content of a file, without its compression."""
    with opened(file) as stored:
        if file.suffix.lower() == ".gz":
            with gzip.open(stored) as content:
                yield content
        elif file.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(stored, compression="zstd") as content:
                yield content
        else:
            yield stored


def _readable(file: Path) -> Head:
    try:
        return _stored(file)
    except (ImportError, Unreadable):
        raise
    except Exception as error:  # pyarrow's own are of many kinds
        raise ValueError(str(error)) from None


def _stored(file: Path) -> Head:
    with opened(file) as stored:
        if kind(file) == ".arrow":
            return Head(rows=_first(_arrow(file)))
        from pyarrow import parquet

        table = parquet.ParquetFile(stored, buffer_size=HEAD_BYTES)
        total = table.metadata.num_rows
        columns = map(table.metadata.schema.column, range(table.metadata.num_columns))
        repeats = [column.max_repetition_level > 0 for column in columns]
        groups = [*range(_fitting(file, parquet_pages.of_groups(stored, repeats, _STORED_ROWS)))]
        rows = _first(table.iter_batches(batch_size=1, row_groups=groups, use_threads=False)) if groups else ()
        return Head(rows=rows, whole=total == len(rows), total=total)


def _fitting(file: Path, parts: Iterator[tuple[int, int]]) -> int:
    """How many parts hold the first rows, up to one that is too large to be read.

    `parts` says of each, which is decompressed as a whole, its rows and the bytes that these take. Raises `Unreadable`
    for a first row that is a bomb.
    """
    fitting = held = 0
    for rows, taken in parts:
        if taken > _MOST_AT_ONCE:
            if not fitting and taken > _STORED_BYTES * rows:
                each = size(taken / max(1, rows))
                raise Unreadable(t("{file}: its first rows take {size} of memory each", file=file.name, size=each))
            break
        fitting, held = fitting + 1, held + rows
        if held >= _STORED_ROWS:
            break
    return fitting


def _first(batches: Iterator[Any]) -> tuple[Row, ...]:
    """The first rows, up to a limited size: a few kB can expand to gigabytes."""
    rows: list[Row] = []
    taken = 0
    for batch in batches:
        for at in range(min(batch.num_rows, _STORED_ROWS - len(rows))):
            row = batch.slice(at, 1)
            row.validate(full=True)  # offsets that lead elsewhere would be followed
            taken += row.nbytes
            if taken > _STORED_BYTES:
                return tuple(rows)
            rows.append((len(rows) + 1, {**row.to_pylist()[0], **_labels(row)}))
        if len(rows) >= _STORED_ROWS:
            break
    return tuple(rows)


def _labels(row: Any) -> dict[str, Any]:
    """The labels of a row that have names in the file, as datasets writes them."""
    try:
        columns = json.loads((row.schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = {name: tuple(each["names"]) for name, each in columns.items() if each.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
    return {name: _label(row.column(name)[0].as_py(), each) for name, each in names.items()}


def _label(number: Any, names: tuple[str, ...]) -> Label | None:
    """The label of a number; -1 stands for one that is not known."""
    if type(number) is not int or not 0 <= number < len(names):
        return None
    label = Label(number)
    label.names = names
    return label


def _arrow(file: Path) -> Iterator[Any]:
    """The first batches, up to one that is too large to be read."""
    import pyarrow

    with pyarrow.memory_map(str(file)) as content:
        begin = 8 if content.read(len(_MAGIC)) == _MAGIC else 0
        content.seek(begin)
        fitting = _fitting(file, arrow_batches.of_batches(pyarrow.ipc.MessageReader.open_stream(content)))
        content.seek(begin)
        # The index at the end of a file could name batches elsewhere, whose sizes were not looked at.
        yield from itertools.islice(pyarrow.ipc.open_stream(content), fitting)


def _rows(file: Path, start: bytes, whole: bool) -> Iterator[Row]:
    if kind(file) in (".csv", ".tsv"):
        yield from _table(file, start, whole)
    elif kind(file) not in (".jsonl", ".json"):
        yield from _text(file, start, whole)
    elif start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _items(file, start, whole)
    else:
        yield from _lines(file, start, whole)


def _lines(file: Path, start: bytes, whole: bool) -> Iterator[Row]:
    if whole and kind(file) == ".json" and (only := _only_object(start)):
        raise unreadable.by_columns(file) if unreadable.holds_columns(only) else unreadable.one_object(file, only)
    lines = start.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        # The last line may be cut off.
        if line.strip() and (whole or kind(file) == ".jsonl" or line.endswith(b"\n")):
            yield number, _object(file, number, line, partial(_behind, lines, number))


def _behind(lines: Sequence[bytes], number: int) -> bytes:
    return b"".join(lines[number:])


def _only_object(start: bytes) -> dict[str, Any] | None:
    """The object that makes up a file, if it spans several lines or holds a whole table."""
    try:
        found = json.loads(start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return found if b"\n" in start.strip() or unreadable.holds_columns(found) else None


def _object(file: Path, number: int, line: bytes, behind: Callable[[], bytes] = bytes) -> Mapping[str, Any]:
    try:
        row = _of_messages(json.loads(line, object_pairs_hook=_with_each_key_once))
    except _RepeatedKey as error:
        raise unreadable.repeated_key(file, number, str(error)) from None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise unreadable.not_an_object(file, number, line, behind())
    _refuse_halves(file, number, row)
    return row


class _RepeatedKey(ValueError):
    """An object that gives a key twice."""


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python's json would keep the last value of a key that is given twice, and lose the others."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(next(name for name in names if names.count(name) > 1))
    return made


def _refuse_halves(file: Path, number: int, row: Mapping[str, Any]) -> None:
    """Raise `Unreadable` for a text with half of a character, which JSON can spell and no tokenizer reads."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise unreadable.half_a_character(file, number, ascii(str(error.object)[error.start])) from None


def _items(file: Path, start: bytes, whole: bool) -> Iterator[Row]:
    text = _decoded(file, start, whole).lstrip()
    if _is_list_per_line(text):
        for number, line in enumerate(text.split("\n") if whole else text.split("\n")[:-1], start=1):
            if line.strip():
                yield number, _object(file, number, line.encode())
        return
    try:
        items = json.loads(text, object_pairs_hook=_with_each_key_once) if whole else _first_items(file, text)
    except _RepeatedKey:
        items = _first_items(file, text)  # which knows the item
    except (ValueError, RecursionError) as error:
        raise unreadable.not_a_list(file, text, error) from None
    for number, item in enumerate(items, start=1):
        row = _of_messages(item)
        if not isinstance(row, dict):
            raise Unreadable(t("{file}: item {number} is not a JSON object", file=file.name, number=number))
        _refuse_halves(file, number, row)
        yield number, row


def _is_list_per_line(text: str) -> bool:
    """Whether each line is a conversation: a list of messages."""
    first, _, rest = text.partition("\n")
    try:
        return rest.lstrip().startswith("[") and isinstance(_of_messages(json.loads(first)), dict)
    except (ValueError, RecursionError):
        return False


def _of_messages(row: Any) -> Any:
    """A list of messages as a row that holds them, and any other row as it is, as in the generated sources.py."""
    said = (
        isinstance(row, list) and row and all(isinstance(each, dict) and {"role", "from"} & each.keys() for each in row)
    )
    return {"messages": row} if said else row


def _first_items(file: Path, text: str) -> Iterator[Any]:
    """The items at the beginning of a list; the last one may be cut off."""
    decoder, at, number = json.JSONDecoder(object_pairs_hook=_with_each_key_once), 1, 0
    while between := _BETWEEN.match(text, at):
        number += 1
        try:
            item, at = decoder.raw_decode(text, between.end())
        except _RepeatedKey as error:
            raise unreadable.repeated_key(file, number, str(error)) from None
        except (ValueError, RecursionError):
            return
        yield item


_OTHER_SEPARATORS = ";\t|"
"""What some programs write in a .csv file in place of commas."""


def _table(file: Path, start: bytes, whole: bool) -> Iterator[Row]:
    csv.field_size_limit(1 << 31)
    lines = list(io.StringIO(_decoded(file, start, whole), newline="\n"))  # str.splitlines also splits at U+2028
    reader = csv.reader(lines, delimiter="\t" if kind(file) == ".tsv" else ",", strict=True)
    line, names = 1, []
    try:
        names = next(reader, [])
        _refuse_names(file, names, lines)
        line = reader.line_num + 1
        for row in reader:
            if row:
                if len(row) != len(names) and not whole and reader.line_num == len(lines):
                    return  # it may go on behind what was read
                _refuse_row(file, line, row, names)
                yield line, dict(zip(names, row, strict=True))
            line = reader.line_num + 1
    except csv.Error:
        if whole or reader.line_num < len(lines):  # else it may go on behind what was read
            raise unreadable.open_quote(file, line) from None


def _refuse_names(file: Path, names: list[str], lines: list[str]) -> None:
    other = next((each for each in _OTHER_SEPARATORS if _separates(each, names, lines)), "")
    if other and kind(file) == ".csv":
        raise unreadable.separated(file, other)
    if len(set(names)) < len(names):
        raise unreadable.twice_named(file, names)


def _refuse_row(file: Path, line: int, row: list[str], names: list[str]) -> None:
    if len(row) != len(names):
        raise Unreadable(
            t(
                "{file}: line {line}: {fields} fields, but line 1 has {columns} column names",
                file=file.name,
                line=line,
                fields=len(row),
                columns=len(names),
            )
        )
    if row == names:
        raise Unreadable(
            t(
                "{file}: line {line}: repeats the column names, as if two files were joined; delete this line",
                file=file.name,
                line=line,
            )
        )
    if kind(file) == ".tsv" and any("\t" in text and "\n" in text for text in row):
        raise unreadable.open_quote(file, line)


def _separates(separator: str, names: list[str], lines: list[str]) -> bool:
    """Whether the columns of a .csv file are separated by this in place of commas."""
    if len(names) == 1:
        return separator in names[0]
    counts = {line.count(separator) for line in lines[:_STORED_ROWS] if line.strip()}
    return len(counts) == 1 and counts != {0} and any(len(line.split(",")) != len(names) for line in lines[1:])


def _text(file: Path, start: bytes, whole: bool) -> Iterator[Row]:
    if text := _decoded(file, start, whole):
        yield 1, {"text": text}


def _decoded(file: Path, start: bytes, whole: bool) -> str:
    if unreadable.is_of_two_bytes(start):
        raise unreadable.undecodable(file, start, 1)
    try:
        return start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(start) - 4:  # a character that is cut off
            return start[: error.start].decode("utf-8-sig")
        line = start.count(b"\n", 0, error.start) + 1
        raise unreadable.undecodable(file, start, line) from None


def columns_of(rows: tuple[Row, ...]) -> dict[str, Any]:
    """The columns of the first row with values, text cut to a line, so that a person recognizes them."""
    first = next((row for _, row in rows), {})
    return {name: " ".join(value[:200].split()) if isinstance(value, str) else value for name, value in first.items()}
