"""Tables on stdout: aligned columns without boxes, so that grep and awk can read them.

Widths are those of `columns`, where a Chinese character takes two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from trainwiz import columns
from trainwiz.ui import console

_GAP = "  "


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a row."""

    text: str
    """Without line breaks or control characters."""
    style: str = ""
    """A style of `console.styled`; empty for none."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of a checklist."""

    mark: str
    """One character that says whether it is good."""
    style: str
    """Of the mark, and of `found` where `loud`."""
    title: str
    """What was looked at."""
    found: str
    """What it is."""
    fix: str = ""
    """What to do about it; shown below, behind an arrow."""
    loud: bool = False
    """Whether `found` has the style of the mark."""


# docs/decisions/cli.md: No rich in our own code
def show(rows: Sequence[Sequence[Cell]], *, optional: Sequence[int] = (), least_last: int = 0) -> None:
    """Print rows of the same length, of which the first is the header.

    On a terminal no line is wider than it: the columns of `optional` are left out, in this order, until `least_last`
    columns of the screen are left for the last column, and what is still too long is cut. Elsewhere all is shown.
    """
    room = console.room(sys.stdout)
    widths = [max(columns.width(cell.text) for cell in column) for column in zip(*rows, strict=True)]
    shown = list(range(len(widths)))
    for column in optional:
        if room is None or sum(widths[i] + len(_GAP) for i in shown[:-1]) + least_last <= room:
            break
        shown.remove(column)
    for row in rows:
        console.data(_line([row[i] for i in shown], [widths[i] for i in shown], room))


def show_checks(checks: Sequence[Check]) -> None:
    """Print a checklist: mark, title, what was found, and what to do below it."""
    out = sys.stdout
    widest = max((columns.width(check.title) for check in checks), default=0)
    for check in checks:
        head = f"{check.mark}{_GAP}{columns.pad(check.title, widest)}{_GAP}"
        indent = " " * columns.width(head)
        first, *rest = console.fitted(check.found, first=head, rest=indent, stream=out)
        style = check.style if check.loud else ""
        title = console.styled(check.mark, check.style, out) + head.removeprefix(check.mark)
        console.data(title + console.styled(first.removeprefix(head), style, out))
        for line in rest:
            console.data(indent + console.styled(line.removeprefix(indent), style, out))
        if check.fix:
            for line in console.fitted(check.fix, first=f"{indent}→ ", rest=f"{indent}  ", stream=out):
                console.data(console.styled(line, "good", out))


def _line(cells: Sequence[Cell], widths: Sequence[int], room: int | None) -> str:
    parts: list[str] = []
    left = room
    for i, cell in enumerate(cells):
        if not any(other.text for other in cells[i:]) or (left is not None and left < 1):
            break
        words = cell.text if i == len(cells) - 1 else columns.pad(cell.text, widths[i])
        if left is not None and columns.width(words.rstrip()) > left:
            parts.append(console.styled(f"{columns.cut(words, left - 1)}…", cell.style, sys.stdout))
            break
        spaces = words[len(words.rstrip()) :]
        parts.append(console.styled(words.rstrip(), cell.style, sys.stdout) + spaces)
        if left is not None:
            left -= columns.width(words) + len(_GAP)
    return _GAP.join(parts).rstrip()
