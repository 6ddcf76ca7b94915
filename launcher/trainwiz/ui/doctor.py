"""The checkup as a table: what was found, good or not, and what to type."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from trainwiz import columns
from trainwiz.checkup import Line
from trainwiz.finding import Level
from trainwiz.language import t, text
from trainwiz.ui import console

_MARKS: dict[Level | None, tuple[str, str]] = {
    None: ("✓", "green"),
    Level.HINT: ("·", "cyan"),
    Level.WARNING: ("!", "bold yellow"),
    Level.ERROR: ("✗", "bold red"),
}

_LOUD = (Level.ERROR, Level.WARNING)
PIPED_WIDTH = 120


def show(lines: Sequence[Line]) -> None:
    """The table on stdout, as wide as the terminal."""
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    # Lines are broken here: the library knows how wide Chinese is, but not where it may break.
    table.add_column(overflow="fold")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    room = width - len("✓  ") - len("  ") - max((columns.width(text(line.title)) for line in lines), default=0)
    for line in lines:
        mark, style = _MARKS[line.level]
        words = f"{text(line.found)}  {line.rule}" if line.rule else text(line.found)
        found = Text("\n".join(columns.wrap(words, room)), style=style if line.level in _LOUD else "")
        if line.rule:
            found.highlight_words([line.rule], style="dim")
        if line.fix:
            fix = "\n".join(columns.wrap(text(line.fix), room, first="→ ", rest="  "))
            found.append(f"\n{fix[0]}", style="green").append(fix[1:], style="default not bold")
        table.add_row(Text(mark, style=style), Text(text(line.title)), found)
    colour = console.coloured(sys.stdout)
    drawn = io.StringIO()
    Console(
        file=drawn, width=width, highlight=False, force_terminal=colour, color_system="standard" if colour else None
    ).print(table)
    for row in drawn.getvalue().splitlines():
        console.data(row.rstrip())
    errors, warnings = count(lines)
    verdict = (
        t(
            "errors: {errors}, warnings: {warnings}; a training would fail on this machine",
            errors=errors,
            warnings=warnings,
        )
        if errors
        else t("a training can run on this machine; warnings: {warnings}", warnings=warnings)
    )
    console.data(console.styled(verdict, "error" if errors else "good", sys.stdout))


def to_dict(line: Line) -> dict[str, Any]:
    """A line for JSON, in the reader's language; `level` is good, hint, warning or error."""
    return {
        "subject": line.subject,
        "title": text(line.title),
        "found": text(line.found),
        "level": line.level.value if line.level else "good",
        "fix": text(line.fix) if line.fix else None,
        "rule": line.rule,
    }


def count(lines: Sequence[Line]) -> tuple[int, int]:
    """Errors and warnings among them."""
    levels = [line.level for line in lines]
    return levels.count(Level.ERROR), levels.count(Level.WARNING)
