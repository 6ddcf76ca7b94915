"""Tables and checklists: aligned, within the terminal, and readable by grep where there is none."""

import io
import sys

import pytest
from wcwidth import wcswidth

from trainwiz.ui import table
from trainwiz.ui.table import Cell, Check


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(patch: pytest.MonkeyPatch, columns: int = 80, *, color: bool = False) -> Terminal:
    """What standard output is from now on. Not a fixture: pytest sets its own before the test begins."""
    stream = Terminal()
    patch.setattr(sys, "stdout", stream)
    patch.setenv("COLUMNS", str(columns))
    patch.setenv("NO_COLOR", "" if color else "1")
    patch.setenv("TERM", "xterm")
    return stream


def rows(*lines: str) -> list[list[Cell]]:
    return [[Cell(text=word) for word in line.split("|")] for line in lines]


RUNS = rows("RUN|STATE|LOSS|WHY", "one|完成|1.5|", "two-two|failed|-|out of memory on rank 3 of 8, in update 17")


def test_a_pipe_gets_aligned_lines_without_color_or_spaces_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    table.show(RUNS, optional=(2,), least_last=99)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "RUN      STATE   LOSS  WHY",
        "one      完成    1.5",
        "two-two  failed  -     out of memory on rank 3 of 8, in update 17",
    ]


@pytest.mark.parametrize("columns", [10, 16, 30, 40, 80])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, columns)
    table.show(RUNS)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert all(wcswidth(line) <= columns for line in lines), lines
    assert lines[-1].endswith("…") == (columns not in (16, 80))


@pytest.mark.parametrize(("columns", "shown"), [(39, True), (38, False)])
def test_columns_are_left_out_for_the_last_one(columns: int, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, columns)
    table.show(RUNS, optional=(2,), least_last=16)
    assert ("LOSS" in stream.getvalue()) == shown


def test_color_is_that_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, color=True)
    table.show([[Cell(text="a"), Cell(text="b", style="good"), Cell(text="c")]])
    assert stream.getvalue() == "a  \x1b[32mb\x1b[0m  c\n"


CHECKS = [
    Check(mark="✓", style="good", title="torch", found="2.13"),
    Check(
        mark="✗", style="error", title="显存", found="too little of it for this", fix="take a smaller model", loud=True
    ),
]


def test_a_checklist_in_a_pipe_has_a_line_for_each_check_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    table.show_checks(CHECKS)
    assert capsys.readouterr().out.splitlines() == [
        "✓  torch  2.13",
        "✗  显存   too little of it for this",
        "          → take a smaller model",
    ]


def test_a_checklist_on_a_terminal_is_broken_and_colored(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, 26, color=True)
    table.show_checks(CHECKS)
    assert stream.getvalue().splitlines() == [
        "\x1b[32m✓\x1b[0m  torch  2.13",
        "\x1b[1;31m✗\x1b[0m  显存   \x1b[1;31mtoo little of it\x1b[0m",
        "          \x1b[1;31mfor this\x1b[0m",
        "\x1b[32m          → take a smaller\x1b[0m",
        "\x1b[32m            model\x1b[0m",
    ]
