"""What a model writes, as it comes: on stdout, without control characters."""

from __future__ import annotations

import sys
from typing import Protocol

from trainwiz.language import t
from trainwiz.ui import console
from trainwiz.ui.safe import sanitized


class Answer(Protocol):
    """How an answer ended."""

    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def reason(self) -> str: ...


def piece(text: str) -> None:
    """A part of an answer, at once."""
    sys.stdout.write(sanitized(text))
    sys.stdout.flush()


def end_answer() -> None:
    """The line after an answer."""
    sys.stdout.write("\n")
    sys.stdout.flush()


def aside(words: str) -> None:
    """trainwiz's own messages during the conversation, in lines that fit the terminal."""
    for line in console.fitted(words, first="", rest="", stream=sys.stderr):
        console.talk(line, style="dim")


def notes(answer: Answer) -> None:
    """Why the answer ended early, if it did; and its speed, for a person at a terminal."""
    if answer.reason == "length":
        aside(t("[cut off after {n} tokens; for more, use --max-tokens]", n=answer.tokens))
    elif answer.reason == "stopped":
        aside(t("[stopped]"))
    if sys.stdin.isatty() and sys.stderr.isatty() and answer.seconds > 0:
        speed = answer.tokens / answer.seconds
        aside(t("[{n} tokens, {speed:.1f} per second]", n=answer.tokens, speed=speed))
