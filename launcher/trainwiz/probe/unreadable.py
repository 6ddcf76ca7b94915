"""Why a data file cannot be read in the format that its name says, and what makes it readable."""

from __future__ import annotations

import codecs
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.shell_words import quoted

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PART_OF_ZEROS = 4
"""If more than one byte in this many is zero, a text has two bytes per character."""
_CONTENTS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"7z\xbc\xaf": "7z",
    b"\x89HDF": "HDF5",
    b"%PDF-": "PDF",
    b"SQLite format 3": "SQLite",
    b"\xd0\xcf\x11\xe0": "DOC/XLS",
    b"version https://git": "Git LFS",
    b"<!doctype html": "HTML",
    b"<html": "HTML",
}
"""What files are, by their first bytes."""
_NAMED = {"gzip": ".gz", "zstd": ".zst", "Parquet": ".parquet"}
"""The endings of file names that are read."""
_OF_ROWS = (".jsonl", ".ndjson", ".jsonlines", ".json", ".csv", ".tsv", ".parquet", ".arrow")
"""The endings of names of files that hold rows."""
_MOSTLY = 0.8
"""The share of Chinese characters beyond ASCII that tells a text in GB18030 from bytes that decode by chance.

GB18030 contains GBK and GB2312, in which Excel and Notepad save on Chinese Windows.
"""


class Unreadable(Exception):
    """A file that cannot be read; the text says why."""

    def __init__(self, reason: str, remedy: Message | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy
        """What makes it readable; None: only the formats of the task are known."""


def separated(file: Path, separator: str) -> Unreadable:
    """Of a table whose columns are separated by another character than its ending says."""
    return Unreadable(
        t("{file}: its columns are separated by {separator}, not by commas", file=file.name, separator=repr(separator)),
        say(
            "convert it: {command} < {file} > commas-{file}",
            command='python -c "import csv, sys; '
            f'csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter={separator!r}))"',
            file=quoted(file.name),
        ),
    )


def undecodable(file: Path, start: bytes, line: int) -> Unreadable:
    """Of a file whose beginning is not UTF-8 in this line."""
    if what := _contents_of(start):
        return mistaken(file, what)
    encoding = encoding_of(start)
    if not encoding:
        return Unreadable(
            t("{file}: line {line} is not valid UTF-8", file=file.name, line=line),
            say("save the file as UTF-8; file -i {file} guesses what it is now", file=quoted(file.name)),
        )
    return Unreadable(
        t("{file}: line {line} is not UTF-8, but {encoding}", file=file.name, line=line, encoding=encoding),
        say(
            "save the file as UTF-8, or convert it: iconv -f {encoding} -t UTF-8 {file} > utf8-{file}",
            encoding=encoding,
            file=quoted(file.name),
        ),
    )


def refuse_mistaken(file: Path, start: bytes) -> None:
    """Raise `Unreadable` for a file whose first bytes are those of something else than its name says."""
    what = _contents_of(start)
    if what == "HTML" and not any(part.lower() in _OF_ROWS for part in file.suffixes):
        return  # a page is a text, too
    if what and not file.name.lower().endswith(_NAMED.get(what, "/")):
        raise mistaken(file, what)


def is_of_two_bytes(start: bytes) -> bool:
    """Whether a text is UTF-16 without a mark: in most languages that is valid UTF-8, with zeros between letters."""
    return start.count(b"\0") > len(start) // _PART_OF_ZEROS


def mistaken(file: Path, what: str) -> Unreadable:
    """Of a file that holds something else than its name says."""
    if what == "Git LFS":
        return Unreadable(
            t("{file} was not downloaded: it is a pointer of Git LFS", file=file.name), say("run: git lfs pull")
        )
    if what in _NAMED:
        told = say("name it {file}", file=file.name.removesuffix(_NAMED[what]) + _NAMED[what])
    elif what == "HTML":
        told = say("download the file itself: a web page was saved instead")
    else:
        told = say("unpack or convert it to a format that is read")
    return Unreadable(
        t("{file} cannot be read: despite its name, its content is {format}", file=file.name, format=what), told
    )


def _contents_of(start: bytes) -> str:
    """What a file is by its first bytes; empty if it is unknown."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:20].lower()
    return next((what for begins, what in _CONTENTS.items() if start.startswith(begins) or text.startswith(begins)), "")


def encoding_of(start: bytes) -> str:
    """The most likely encoding of bytes that are not UTF-8: UTF-16, GB18030, or unknown (empty)."""
    if start.startswith(_MARKS):
        return "UTF-16"
    if is_of_two_bytes(start):
        return "UTF-16LE" if start[1::2].count(0) > start[::2].count(0) else "UTF-16BE"
    text = codecs.getincrementaldecoder("gb18030")(errors="replace").decode(start)
    beyond = [character for character in text if not character.isascii()]
    return "GB18030" if beyond and sum(map(_is_chinese, beyond)) >= _MOSTLY * len(beyond) else ""


def _is_chinese(character: str) -> bool:
    """Whether it is punctuation or one of GB2312's 3755 usual characters; Latin and Cyrillic decode to rarer ones."""
    if "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef":
        return True
    code = character.encode("gb18030", "replace")
    return len(code) == 2 and 0xB0 <= code[0] <= 0xD7 and code[1] >= 0xA1


def not_an_object(file: Path, number: int, line: bytes, behind: bytes = b"") -> Unreadable:
    """Of a line, with its line break, that is not the JSON object it should be; `behind` is what follows it."""
    if what := _contents_of(line):
        return mistaken(file, what)
    if line.startswith(_MARKS) or is_of_two_bytes(line):
        return undecodable(file, line, number)
    try:
        json.loads(line)
    except UnicodeDecodeError:
        return undecodable(file, line, number)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        goes_on = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())
        if number > 1 and not line.endswith(b"\n"):
            told: Message | None = say(
                "the file ends in the middle of a row: copy or download it again, or delete this line"
            )
        elif _is_behind_a_comma(line):
            told = say("remove the commas between the rows: {command}", command=_without_commas(file))
        elif goes_on and line.lstrip().startswith(b"{"):
            told = _over_lines(file, line, behind)
        elif line.lstrip().startswith(b"{"):
            told = None
        else:
            return Unreadable(t("{file}: line {line} is not a JSON object", file=file.name, line=number))
        return Unreadable(
            t("{file}: line {line} is not a JSON object: {reason}", file=file.name, line=number, reason=reason), told
        )
    return Unreadable(t("{file}: line {line} is not a JSON object", file=file.name, line=number))


def repeated_key(file: Path, number: int, key: str) -> Unreadable:
    """Of a row with an object that gives a key twice: only one of the values would be read."""
    return Unreadable(
        t('{file}: row {number}: the key "{key}" is given twice', file=file.name, number=number, key=key),
        say("rename one of them, or write both values in one list"),
    )


def half_a_character(file: Path, number: int, half: str) -> Unreadable:
    """Of a row with half of a character that JSON writes as two escapes."""
    return Unreadable(
        t("{file}: row {number}: a character is cut in half: {half}", file=file.name, number=number, half=half),
        say("delete the escape of the half, or write the whole character; texts cut by length often end so"),
    )


def _is_behind_a_comma(line: bytes) -> bool:
    """Whether a line is an object followed by a comma, as in a list without its brackets."""
    text = line.rstrip()
    if not text.endswith(b","):
        return False
    try:
        return isinstance(json.loads(text[:-1]), dict)
    except (ValueError, RecursionError):
        return False


def _over_lines(file: Path, line: bytes, behind: bytes) -> Message | None:
    """Of a line that begins an object and does not end it."""
    text = (line + behind).decode("utf-8-sig", "ignore").strip()
    try:
        row, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        follows = behind.lstrip().partition(b"\n")[0]
        if _is_object(follows):
            return say("the row ends in the middle: copy or download the file again, or delete this line")
        # What is read of a large file ends within its first object.
        if not (isinstance(error, json.JSONDecodeError) and error.pos >= len(text)):
            return None
    else:
        if not text[end:].strip() and (within := rows_within(file, row)):
            return within
    return say("write each row in a line of its own: jq -c . {file} > rows.jsonl", file=quoted(file.name))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _without_commas(file: Path) -> str:
    return f"sed 's/,[[:space:]]*$//' {quoted(file.name)} > rows.jsonl"


def not_a_list(file: Path, text: str, error: ValueError | RecursionError) -> Unreadable:
    """Of a .json file that begins like a list but is not one."""
    if not isinstance(error, json.JSONDecodeError):
        return Unreadable(t("{file} is not valid JSON", file=file.name))
    before, after = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    told = None
    if before.endswith(",") and after.startswith("]"):
        told = say("remove the comma before the last bracket, in line {line}", line=text[: len(before)].count("\n") + 1)
    elif before.endswith("]") and after.startswith(("[", "{")):
        told = say(
            "merge the lists into one: jq -c {query} {file} > rows.jsonl",
            query=shlex.quote('if type == "array" then .[] else . end'),
            file=quoted(file.name),
        )
    return Unreadable(
        t("{file}: line {line} is not valid JSON: {reason}", file=file.name, line=error.lineno, reason=error.msg), told
    )


def twice_named(file: Path, names: list[str]) -> Unreadable:
    """Of a table with two columns of the same name."""
    double = next(name for name in names if names.count(name) > 1)
    return Unreadable(
        t("{file}: line 1: two columns have the name {name}", file=file.name, name=json.dumps(double)),
        say("give one of them another name, or delete it"),
    )


def open_quote(file: Path, line: int) -> Unreadable:
    """Of a table with a quoted text that does not end as it must."""
    separator = "\t" if file.name.lower().endswith(".tsv") else ","
    return Unreadable(
        t(
            "{file}: line {line}: a quoted text has no closing quote, or does not end with its column",
            file=file.name,
            line=line,
        ),
        say(
            "double the quotes inside quoted texts; if quotes are ordinary characters: {command}",
            command='python -c "import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, '
            f'delimiter={separator!r}, quoting=csv.QUOTE_NONE))" < {quoted(file.name)} > quoted.csv',
        ),
    )


def holds_columns(row: Mapping[str, Any]) -> bool:
    """Whether an object holds a list, or numbered values, for each column, as pandas writes tables."""
    columns = [value if isinstance(value, list) else _numbered(value) for value in row.values()]
    same = len({len(column or ()) for column in columns}) == 1
    return same and all(column and not isinstance(column[0], dict) for column in columns)


def _numbered(value: Any) -> list[Any] | None:
    """The values of an object whose keys are 0, 1, 2, …; None: it is none."""
    if not isinstance(value, dict) or list(value) != [str(number) for number in range(len(value))]:
        return None
    return list(value.values())


def by_columns(file: Path) -> Unreadable:
    """Of a file that is a single object which holds columns."""
    return Unreadable(
        t("{file} is one object with all values of each column, not a list of rows", file=file.name),
        say(
            "convert it: {command} < {file} > rows.jsonl",
            command='python -c "import pandas, sys; pandas.read_json(sys.stdin).to_json(sys.stdout, '
            "orient='records', lines=True, force_ascii=False)\"",
            file=quoted(file.name),
        ),
    )


def one_object(file: Path, row: Mapping[str, Any]) -> Unreadable:
    """Of a file that is a single JSON object over several lines."""
    return Unreadable(t("{file} is one JSON object, not a list of rows", file=file.name), rows_within(file, row))


def rows_within(file: Path, row: Mapping[str, Any]) -> Message | None:
    """How to get the rows of a file whose only row has them in one of its values; None if it has none."""
    for name, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], dict) and not {"role", "from"} & value[0].keys():
            return say(
                "the rows are in {name}: jq -c {query} {file} > rows.jsonl",
                name=json.dumps(name, ensure_ascii=False),
                query=shlex.quote(f".{json.dumps(name, ensure_ascii=False)}[]"),
                file=quoted(file.name),
            )
    return None
