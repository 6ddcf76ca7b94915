"""Sentences for people, kept apart from the language they are shown in.

The core never knows which language is in use: it makes a `Message` from an English template and its values;
`language.text` turns it into the reader's language at the edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


# docs/decisions/cli.md: Sentences are messages, translated at the edge
@dataclass(frozen=True)
class Message:
    """An English template with the values to fill in.

    `values` may hold further messages; they are translated with the outer one. `str()` gives English.
    """

    template: str
    """One English sentence with names in braces; the key in the catalogue."""
    values: Mapping[str, object] = field(default_factory=dict)
    """What stands in place of each name."""

    def __str__(self) -> str:
        return self.template.format(**self.values) if self.values else self.template


def say(template: str, /, **values: object) -> Message:
    """Make a message. The template must be a literal, so that the catalogue's extractor finds it."""
    return Message(template, values)
