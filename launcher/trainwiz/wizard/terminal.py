"""Questions on a terminal, their answers, and the terminal's size. Light: questionary is not imported here."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Action(Enum):
    """What a user can do instead of answering."""

    BACK = "back"
    HELP = "help"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question as it is shown."""

    prompt: str
    """The question."""
    default: str
    """What Enter accepts."""
    reason: str = ""
    """Why that is the default."""
    proposed: bool = False
    """Whether the default is no value of the plan yet, so that Enter counts as typing it."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values, each with its line in the list; without any, an answer is typed."""
    paths: bool = False
    """Whether Tab completes the names of files and folders."""
    search: bool = False
    """Whether typing leaves those lines of the list that contain all typed words."""
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What else a line is found by, by its value: its name, which counts most, and what else it is about."""
    at: str = ""
    """The choice that is pointed at first; empty: the default."""
    at_once: str = ""
    """What Ctrl-W chooses from anywhere in the list."""
    gauge: Callable[[str], str] | None = None
    """What an answer means for memory, in one line, while it is typed or pointed at."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the user answered or did instead."""

    value: str = ""
    """What was typed or chosen; empty for Enter alone."""
    action: Action | None = None
    """None where the question was answered."""
    at: str = ""
    """The value of the list's line that was pointed at."""
    rows: int = 0
    """Lines of the terminal that the answered question keeps."""


def plain(typed: str) -> str:
    """What was typed, with the full-width forms of a Chinese keyboard as ASCII: ８，０００ is 8,000, and 0。1 is 0.1.

    A text with other characters than these stays as it is, and so does the name of a file that exists. Several lines,
    as somebody pastes them, have commas between.
    """
    typed = ", ".join(filter(None, map(str.strip, typed.splitlines())))
    halved = unicodedata.normalize("NFKC", typed.replace("。", ".").replace("、", ","))
    return halved if halved.isascii() and not os.path.lexists(os.path.expanduser(typed)) else typed


def available() -> bool:
    """Whether there is a terminal to ask on."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not is_dumb()


def is_dumb() -> bool:
    """Whether the terminal cannot move its cursor, so that no question can be drawn on it."""
    return os.environ.get("TERM") == "dumb"


def size() -> os.terminal_size:
    """Columns and lines of the terminal that questions are asked on, whatever stdout is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()
