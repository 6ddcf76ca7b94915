"""Keeping secrets out of what is shown and recorded: by the name of an option or variable, and by known shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
_NAME = re.compile(r"(?i)(?:token|secret|passw(?:or)?d|api_?key|credentials?|access_?key)s?$")
# Hugging Face, OpenAI and GitHub tokens by their published prefixes; a password inside a URL.
_VALUE = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_)[A-Za-z0-9_-]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def arguments(argv: Sequence[str]) -> list[str]:
    """Arguments with the values of options that sound like secrets, and values that look like some, hidden."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        option, equals, _ = word.partition("=")
        is_secret = option.startswith("-") and bool(_NAME.search(option.replace("-", "_")))
        if hide_next:
            shown.append(HIDDEN)
        elif is_secret and equals:
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(_VALUE.sub(HIDDEN, word))
        hide_next = is_secret and not equals and not hide_next
    return shown


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with secret ones hidden."""
    return {name: HIDDEN if _NAME.search(name) else _VALUE.sub(HIDDEN, value) for name, value in variables.items()}
