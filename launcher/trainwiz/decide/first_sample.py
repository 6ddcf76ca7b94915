"""The first row of the data as a conversation: who says what, and what of it is learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz import columns

_TALKS = ("messages", "conversations", "conversation")
_QUESTIONS = ("instruction", "prompt", "query", "question", "problem")
_ANSWERS = ("output", "completion", "response", "answer", "solution")
_SYSTEMS = ("system", "system_prompt")
_LEARNED = frozenset({"assistant", "gpt", "bot", "model"})
_FLAGS = ("weight", "loss", "train", "loss_scale", "loss_weight")
_MOST_TURNS = 4
_MOST_CHARACTERS = 24
"""The columns, words and flags that the generated conversations.py reads."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A message of the first conversation."""

    role: str
    """As the data says it."""
    text: str
    """Its beginning."""
    learned: bool
    """Whether the model learns to write it."""


def turns(first: Mapping[str, Any]) -> tuple[Turn, ...]:
    """The first messages of a row; none where its format is another one."""
    found = _spoken(first)
    system = next((first[name] for name in _SYSTEMS if isinstance(first.get(name), str) and first[name]), "")
    if system and found and found[0].role not in ("system", "developer"):
        found = (Turn(role="system", text=_beginning(system), learned=False), *found)
    return found[:_MOST_TURNS]


def _spoken(first: Mapping[str, Any]) -> tuple[Turn, ...]:
    talk = next((first[name] for name in _TALKS if isinstance(first.get(name), list)), None)
    if talk is not None:
        return _of_messages(talk)
    question = next((first[name] for name in _QUESTIONS if isinstance(first.get(name), str)), None)
    answer = next((first[name] for name in _ANSWERS if isinstance(first.get(name), str)), None)
    if question is None or answer is None:
        return ()
    asked = " ".join(part for part in (question, first.get("input")) if isinstance(part, str))
    spoken = [*_earlier(first.get("history")), ("user", asked), ("assistant", answer)]
    return tuple(
        Turn(role=role, text=_beginning(text), learned=role in _LEARNED)
        for role, text in spoken
        if isinstance(text, str) and text
    )


def _earlier(history: Any) -> Iterator[tuple[str, Any]]:
    """Earlier questions and answers, which are in pairs."""
    for pair in history if isinstance(history, list) else ():
        if isinstance(pair, list | tuple):
            yield from zip(("user", "assistant"), pair, strict=False)


def _of_messages(talk: Sequence[Any]) -> tuple[Turn, ...]:
    found = []
    for message in talk[:_MOST_TURNS]:
        if not isinstance(message, Mapping):
            return ()
        role, said = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(said, str):
            return ()
        left_out = any(name in message and not message[name] for name in _FLAGS)
        found.append(Turn(role=role, text=_beginning(said), learned=role in _LEARNED and not left_out))
    return tuple(found)


def _beginning(text: str) -> str:
    line = columns.one_line(text)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
