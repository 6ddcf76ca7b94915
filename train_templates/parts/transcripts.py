"""Conversations that are written as one text: `Human: … Assistant: …`."""

from __future__ import annotations

import re
from typing import Any

ROLES = {"Human": "user", "Assistant": "assistant"}


def is_transcript(text: Any) -> bool:
    """Return whether a text is a conversation."""
    return isinstance(text, str) and re.match(r"\s*Human:", text) is not None


def is_open_transcript(text: str) -> bool:
    """Return whether a text is a conversation whose last answer is to be written."""
    return is_transcript(text) and re.search(r"\n\s*Assistant:\s*$", text) is not None


def transcript(text: str) -> list[dict[str, Any]]:
    """Return the messages of a transcript. If an empty line is before an answer, one is before each message."""
    gap = r"\n\n" if "\n\nAssistant:" in text else r"\n"
    _, *parts = re.split(rf"(?:^|{gap})\s*(Human|Assistant):", f"\n\n{text.lstrip()}")
    return [{"role": ROLES[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]
