"""Findings in a source file, each under the line it is about, with a caret."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz import columns
from trainwiz.language import text
from trainwiz.ui import console
from trainwiz.ui import findings as plain

if TYPE_CHECKING:
    from trainwiz.finding import Finding, Place

_PIPED = 160
"""Columns of a shown line where there is no terminal."""


def show(findings: Sequence[Finding], lines: Mapping[str, Sequence[str]]) -> None:
    """The findings on stdout, then how many there are. `lines` holds the lines of each file."""
    for finding in findings:
        for line in _lines(finding, lines):
            console.data(line)
        console.data("")
    plain.show_summary(findings, as_data=True)


def to_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for `--json`, with file, line, column and width of each."""
    answer = plain.to_dict(findings)
    for record, finding in zip(answer["findings"], findings, strict=True):
        place = finding.place
        record["file"] = place.file if place else None
        record["line"] = place.line if place else None
        record["column"] = place.column if place else None
        record["width"] = place.width if place else None
    return answer


def _lines(finding: Finding, lines: Mapping[str, Sequence[str]]) -> list[str]:
    stream = sys.stdout
    level = console.styled(plain.level_name(finding.level.value), finding.level.value, stream)
    rule = console.styled(finding.rule, "bold", stream)
    place = finding.place
    shown = [f"{place.file}:{place.line}:{place.column}: {level} {rule}" if place else f"{level} {rule}"]
    shown += console.fitted(text(finding.message), first="  ", rest="  ", stream=stream)
    known = lines.get(place.file, ()) if place else ()
    if place and place.line <= len(known):
        shown += _marked(known[place.line - 1], place, finding.level.value)
    if finding.fix:
        first, *rest = console.fitted(text(finding.fix.message), first="  → ", rest="    ", stream=stream)
        shown += [first.replace("→", console.styled("→", "good", stream), 1), *rest]
    return shown


def _marked(line: str, place: Place, level: str) -> list[str]:
    """The line of the source, and carets below the piece that is meant; long lines are cut around it."""
    stream = sys.stdout
    number = f"  {place.line} | "
    room = (shutil.get_terminal_size().columns if stream.isatty() else _PIPED) - len(number)
    # What moves the cursor must not reach the terminal; a tab is as wide as the spaces it becomes.
    clean = ["    " if c == "\t" else c if c.isprintable() else "�" for c in line]
    before, piece = (
        "".join(clean[: place.column - 1]),
        "".join(clean[place.column - 1 : place.column - 1 + place.width]),
    )
    behind = "".join(clean[place.column - 1 + place.width :])
    if columns.width(before) > room // 2:
        kept = before.lstrip()
        before = kept if columns.width(kept) <= room // 2 else "… "
    piece = columns.cut(piece, max(1, room - columns.width(before)))
    behind = columns.cut(behind, max(0, room - columns.width(before + piece)))
    carets = console.styled("^" * max(1, columns.width(piece)), level, stream)
    edge = console.styled(" " * (len(number) - 2) + "| ", "dim", stream)
    return [
        console.styled(number, "dim", stream) + before + piece + behind,
        edge + " " * columns.width(before) + carets,
    ]
