"""The chat template that a plan names: whether it can be one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from trainwiz import vocabulary as v
from trainwiz.language import t

_MARKS = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""transformers' own tags, which Jinja does not know."""


def problem(name: str, root: Path) -> str:
    """Why a name or a file, whose path counts from `root`, is no chat template; empty: nothing is known against it."""
    if name in get_args(v.ChatTemplate):
        return ""
    try:
        text = (root / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return t("no such name, and no file that can be read: {error}", error=str(error))
    # Imported here: plans without such a file must not wait for it.
    import jinja2

    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True).parse(_MARKS.sub("", text))
    except jinja2.TemplateSyntaxError as error:
        return t("line {line}: {error}", line=error.lineno, error=error.message or "")
    if "messages" not in text:
        return t("it does not read messages")
    return ""
