"""Why a file of data cannot be read as what it is named, and what makes it readable."""

from __future__ import annotations

import codecs
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.message import Message, say

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MOSTLY = 0.8
"""The share of Chinese characters beyond ASCII that tells a text in GB18030 from bytes that decode by chance.

GB18030 contains GBK and GB2312, in which Excel and Notepad save on Chinese Windows.
"""


class Unreadable(Exception):
    """A file that cannot be read; the text says why."""

    def __init__(self, reason: str, remedy: Message | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy
        """What makes it readable; None: nothing better than the formats of the task is known."""


def separated(file: Path, separator: str) -> Unreadable:
    """Of a table whose columns are separated by another character than its ending says."""
    return Unreadable(
        t("{file}: its columns are separated by {separator}, not by commas", file=file.name, separator=repr(separator)),
        say(
            "convert it: {command} < {file} > commas-{file}",
            command='python -c "import csv, sys; '
            f'csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter={separator!r}))"',
            file=shlex.quote(file.name),
        ),
    )


def undecodable(file: Path, start: bytes, line: int) -> Unreadable:
    """Of a file whose beginning is not UTF-8 in this line."""
    encoding = encoding_of(start)
    if not encoding:
        return Unreadable(
            t("{file}: line {line} is not valid UTF-8", file=file.name, line=line),
            say("save the file as UTF-8; file -i {file} guesses what it is now", file=shlex.quote(file.name)),
        )
    return Unreadable(
        t("{file}: line {line} is not UTF-8, but {encoding}", file=file.name, line=line, encoding=encoding),
        say(
            "save the file as UTF-8, or convert it: iconv -f {encoding} -t UTF-8 {file} > utf8-{file}",
            encoding=encoding,
            file=shlex.quote(file.name),
        ),
    )


def encoding_of(start: bytes) -> str:
    """What bytes that are not UTF-8 are most likely in: UTF-16, GB18030, or unknown (empty)."""
    if start.startswith(_MARKS):
        return "UTF-16"
    text = codecs.getincrementaldecoder("gb18030")(errors="replace").decode(start)
    beyond = [character for character in text if not character.isascii()]
    return "GB18030" if beyond and sum(map(_is_chinese, beyond)) >= _MOSTLY * len(beyond) else ""


def _is_chinese(character: str) -> bool:
    """Whether it is punctuation or one of GB2312's 3755 usual characters; Latin and Cyrillic decode to rarer ones."""
    if "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef":
        return True
    code = character.encode("gb18030", "replace")
    return len(code) == 2 and 0xB0 <= code[0] <= 0xD7 and code[1] >= 0xA1


def not_an_object(file: Path, number: int, line: bytes) -> Unreadable:
    """Of a line, with its line break, that is not the JSON object it should be."""
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
        elif goes_on and line.lstrip().startswith(b"{"):
            told = say("write each row in a line of its own: jq -c . {file} > rows.jsonl", file=shlex.quote(file.name))
        elif line.lstrip().startswith(b"{"):
            told = None
        else:
            return Unreadable(t("{file}: line {line} is not a JSON object", file=file.name, line=number))
        return Unreadable(
            t("{file}: line {line} is not a JSON object: {reason}", file=file.name, line=number, reason=reason), told
        )
    return Unreadable(t("{file}: line {line} is not a JSON object", file=file.name, line=number))


def one_object(file: Path, row: Mapping[str, Any]) -> Unreadable:
    """Of a file that is a single JSON object over several lines."""
    return Unreadable(t("{file} is one JSON object, not a list of rows", file=file.name), rows_within(file, row))


def rows_within(file: Path, row: Mapping[str, Any]) -> Message | None:
    """How to get at the rows of a file whose only row has them in one of its values; None if it has none."""
    for name, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return say(
                "the rows are in {name}: jq -c {query} {file} > rows.jsonl",
                name=json.dumps(name, ensure_ascii=False),
                query=shlex.quote(f".{json.dumps(name, ensure_ascii=False)}[]"),
                file=shlex.quote(file.name),
            )
    return None
