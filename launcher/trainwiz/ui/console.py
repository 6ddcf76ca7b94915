"""Plain and styled lines, and lines of files with a caret. Color only on a terminal that wants it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trainwiz import columns
from trainwiz.errors import PlanError, TrainwizError
from trainwiz.language import t, text
from trainwiz.message import Message
from trainwiz.record import tokens
from trainwiz.ui.safe import STYLES, escaped_json, plain, safe, safe_json

if TYPE_CHECKING:
    from trainwiz.finding import Place

WIDEST = 100
"""Columns; longer lines are hard to read."""
_PIPED = 160
"""Columns of an excerpt where there is no terminal."""


def colored(stream: TextIO) -> bool:
    """Whether the stream is a terminal that shows color (NO_COLOR and TERM=dumb count)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(words: str, style: str, stream: TextIO | None = None) -> str:
    """The words in a style (error, warning, hint, good, dim, bold), or as they are for no style or without color."""
    return f"\x1b[{STYLES[style]}m{words}\x1b[0m" if style and words and colored(stream or sys.stderr) else words


def fitted(words: str, *, first: str, rest: str, stream: TextIO) -> list[str]:
    """The words in lines that fit the terminal, behind `first` and `rest`; in one line where there is none."""
    if (columns_left := room(stream)) is None:
        return [first + words]
    return columns.wrap(words, min(WIDEST, columns_left), first=first, rest=rest)


def room(stream: TextIO) -> int | None:
    """The columns that a line may take: those of the terminal, None where the stream is not one."""
    return width(stream) if stream.isatty() else None


def width(stream: TextIO) -> int:
    """COLUMNS, or the columns of the stream's own terminal: stdout may be a file while stderr is a terminal."""
    with contextlib.suppress(OSError, ValueError):
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def near(path: Path) -> Path:
    """The path as seen from the working directory, where that is shorter; as it is where that folder is gone."""
    try:
        here = Path.cwd()
    except OSError:
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def excerpt(place: Place, style: str, stream: TextIO) -> list[str]:
    """A place's line with carets below the piece that is meant; long lines are cut around it.

    Nothing where the text of the line is unknown.
    """
    if not place.source.strip():
        return []
    number = f"  {place.line} | "
    room = (width(stream) if stream.isatty() else _PIPED) - columns.width(number)
    # Control characters must not reach the terminal; a tab is as wide as the spaces that replace it.
    # Before anything is cut: a secret is recognized by its context.
    clean = ["    " if c == "\t" else c if c.isprintable() else "�" for c in tokens.starred(place.source)]
    start, end = place.column - 1, place.column - 1 + place.width
    before, piece, behind = "".join(clean[:start]), "".join(clean[start:end]), "".join(clean[end:])
    if columns.width(before) > room // 2:
        kept = before.lstrip()
        before = kept if columns.width(kept) <= room // 2 else "… "
    piece = columns.cut(piece, max(1, room - columns.width(before)))
    behind = columns.cut(behind, max(0, room - columns.width(before + piece)))
    edge = " " * (len(number) - 2) + "| "
    carets = styled("^" * max(1, columns.width(piece)), style, stream)
    return [
        styled(number, "dim", stream) + before + piece + behind,
        styled(edge, "dim", stream) + " " * columns.width(before) + carets,
    ]


def _show_excerpt(place: Place) -> None:
    for line in excerpt(place, "error", sys.stderr):
        talk(line)


_rows_talked = 0
"""Lines of the terminal that were printed on stderr."""


def rows_talked() -> int:
    """A number that grows with each line printed for the user."""
    return _rows_talked


def talk(message: Message | str = "", *, style: str | None = None) -> None:
    """Print a line for the user, on stderr."""
    global _rows_talked
    shown = safe(styled(text(message), style or ""))
    if columns_left := room(sys.stderr):
        _rows_talked += sum(max(1, -(-columns.width(line) // columns_left)) for line in plain(shown).split("\n"))
    print(shown, file=sys.stderr, flush=True)


def talk_diff(lines: Iterable[str]) -> None:
    """Print a unified diff, on stderr."""
    for line in lines:
        talk(line, style={"-": "error", "+": "good"}.get(line[:1]))


def write(descriptor: int, data: bytes) -> None:
    """Write all of the bytes, which a terminal or a pipe may take in several parts."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_results = 0
"""How much was printed on stdout."""


def results() -> int:
    """A number that grows with each line of the command's result."""
    return _results


def data(line: str) -> None:
    """Print a line of the command's result, on stdout."""
    global _results
    _results += 1
    print(safe(line), flush=True)


def data_json(value: Any, *, as_written: bool = False) -> None:
    """Print the command's result as JSON, on stdout; `as_written`: also what looks like a secret in it."""
    global _results
    _results += 1
    shown = escaped_json if as_written else safe_json
    # What the encoding lacks is an escape, not a `?`: programs read this.
    lacks = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in ("utf-8", "utf8")
    print(shown(json.dumps(value, indent=2, ensure_ascii=lacks)), flush=True)


def failure(error: TrainwizError) -> None:
    """Print a known error: what is wrong, with the numbers, then what to do."""
    _marked(text(error.message), t("error: "), "error")
    if error.place:
        _show_excerpt(error.place)
    if isinstance(error, PlanError):
        for problem, place in zip(error.problems, error.places, strict=True):
            for line in fitted(text(problem), first="  ", rest="    ", stream=sys.stderr):
                talk(line)
            if place:
                _show_excerpt(place)
    if error.remedy:
        _marked(text(error.remedy), "→ ", "good")


def failure_json(error: TrainwizError, exit_code: int) -> None:
    """The same for a program, on stdout."""
    problems = [text(problem) for problem in error.problems] if isinstance(error, PlanError) else []
    said = {"message": text(error.message), "remedy": text(error.remedy) if error.remedy else None}
    with contextlib.suppress(BrokenPipeError):
        data_json({"error": {**said, "problems": problems, "exit_code": exit_code}})


def _marked(words: str, mark: str, style: str) -> None:
    first, *rest = fitted(words, first=mark, rest="  ", stream=sys.stderr)
    talk(styled(mark, style) + first.removeprefix(mark))
    for line in rest:
        talk(line)
