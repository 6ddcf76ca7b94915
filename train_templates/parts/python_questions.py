"""The embedded conversations: questions about Python, which its documentation answers."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

from conversations import Conversation

MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)


def embedded_conversations(split: str) -> Iterator[Conversation]:
    """Yield questions about Python, answered by its documentation. Every tenth answer is for evaluation."""
    documented: dict[str, str] = {}  # by text, because a function may have several names
    for module in map(importlib.import_module, MODULES.split()):
        for name, thing in sorted(vars(module).items()):
            members = sorted(vars(thing).items()) if isinstance(thing, type) else ()
            for path, member in ((name, thing), *((f"{name}.{member}", value) for member, value in members)):
                text = inspect.getdoc(member) if callable(member) and not re.search(r"(^|\.)_", path) else None
                if text and len(text) >= 40:
                    documented.setdefault(text, path if module.__name__ == "builtins" else f"{module.__name__}.{path}")
    for i, (text, name) in enumerate(documented.items()):
        if (i % 10 == 9) == (split == "validation"):
            first, _, rest = text.partition("\n\n")
            said = [f"What is {name}?", first, *(["Tell me more.", rest.strip()] if rest else [])]
            roles = ["user", "assistant"] * (len(said) // 2)
            messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
            yield Conversation(messages, [role == "assistant" for role in roles], name)
