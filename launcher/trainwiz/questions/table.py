"""What a question is. Nothing here imports pydantic: the first question must be on the screen at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwiz.message import Message

Values = Mapping[str, Any]
"""The plan's values by dotted key, as far as they are known."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One legal answer, as it is typed, and what it means."""

    value: str
    label: Message


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question.

    `key` names it; where it settles several keys, `sets` lists them, `read` turns a typed answer into a text per key
    (or a message that says what is wrong with it), and `show` turns the values back into what one would type. `first`
    is the default of the question that is asked before anything is known, with its reason; all others come from
    `decide`. Empty `choices` mean free text.
    """

    key: str
    prompt: Message
    help: Message
    gate: Literal["basic", "advanced"] = "advanced"
    choices: tuple[Choice, ...] = ()
    sets: tuple[str, ...] = ()
    when: Callable[[Values], bool] = lambda _: True
    first: tuple[str, Message] | None = None
    reader: Callable[[str, Values], dict[str, str] | Message] | None = None
    shower: Callable[[Values], str] | None = None
    prompter: Callable[[Values], Message] | None = None

    def __post_init__(self) -> None:
        if not self.sets:
            object.__setattr__(self, "sets", (self.key,))

    @property
    def section(self) -> str:
        """The part of the plan it belongs to."""
        return self.key.partition(".")[0]

    @property
    def composite(self) -> bool:
        """Whether one answer settles several keys."""
        return self.reader is not None

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
        value = values.get(self.key)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "null" if value is None else str(value)
