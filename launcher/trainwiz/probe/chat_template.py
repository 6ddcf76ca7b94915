"""Whether a plan's chat template is usable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from trainwiz import files
from trainwiz import vocabulary as v
from trainwiz.language import t

_LARGEST = 1 << 20
"""Bytes of a template: the longest that are published have 30 kB."""
_MARKS = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""transformers' own tags, which Jinja does not know."""


def problem(name: str, root: Path) -> str:
    """Why a name, or a file relative to `root`, is not a chat template; empty if no reason is found."""
    if name in get_args(v.ChatTemplate):
        return ""
    try:
        text = files.read_text(root / name, most=_LARGEST)
    except (OSError, ValueError) as error:
        return t("no template has this name, and no such file can be read: {error}", error=str(error))
    # Imported here: plans without such a file must not wait for it.
    import jinja2

    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True).parse(_MARKS.sub("", text))
    except jinja2.TemplateSyntaxError as error:
        return t("line {line}: {error}", line=error.lineno, error=error.message or "")
    except RecursionError:
        return t("nested too deeply")
    if "messages" not in text:
        return t("it does not use messages")
    return ""
