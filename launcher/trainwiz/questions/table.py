"""What a question is. Nothing here imports pydantic: the first question must be on the screen at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwiz.message import Message, say
from trainwiz.vocabulary import spelled

Values = Mapping[str, Any]
"""The plan's values by dotted key, as far as they are known."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One legal answer, as it is typed, and what it means."""

    value: str
    """What is typed, and stands in the plan."""
    label: Message
    """What it means, in one line."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. What every default but `first` is, and why, comes from `decide`."""

    key: str
    """The key of the plan that names it."""
    prompt: Message
    """What is asked: `Learning rate`."""
    help: str
    """What the answer does, when to change it, and what it costs: a sentence of the catalogue, as a rule's manual."""
    gate: Literal["basic", "advanced"] = "advanced"
    """Whether it is asked at once, or only where a person chooses it in the review."""
    asked: Callable[[Values], bool] = lambda _: True
    """Whether a basic one is asked at once, by what is known; else it is in the review only."""
    choices: tuple[Choice, ...] = ()
    """The legal answers; empty for free text."""
    sets: tuple[str, ...] = ()
    """The keys that the answer sets, where they are more than `key`."""
    when: Callable[[Values], bool] = lambda _: True
    """Whether it is asked, by what is known."""
    first: tuple[str, Message] | None = None
    """Default and reason of the question that is asked before anything is known."""
    reader: Callable[[str, Values], dict[str, str] | Message] | None = None
    """Turns a typed answer into a text for each of `sets`, or says what is wrong with it. It may settle others, too."""
    shower: Callable[[Values], str] | None = None
    """The inverse of `reader`."""
    paths: bool = False
    """Whether files and folders can be typed, one or several with commas between; Tab then completes them."""
    of_columns: Callable[[Values], bool] = lambda _: False
    """Whether the answer is one of the data's columns, by what is known; the first row's are then the choices."""
    prompter: Callable[[Values], Message] | None = None
    """The prompt, where it depends on what is known."""

    def __post_init__(self) -> None:
        if not self.sets:
            object.__setattr__(self, "sets", (self.key,))

    def prompt_for(self, values: Values) -> Message:
        """What to ask, in words that fit what is known."""
        return self.prompter(values) if self.prompter else self.prompt

    def read(self, typed: str, values: Values) -> dict[str, str] | Message:
        """The text for each key that the answer settles, or what is wrong with its form."""
        return self.reader(typed, values) if self.reader else {self.key: typed}

    def show(self, values: Values) -> str:
        """The values as one would type them."""
        if self.shower:
            return self.shower(values)
        return spelled(values.get(self.key))


YES_NO = (Choice(value="true", label=say("yes")), Choice(value="false", label=say("no")))
