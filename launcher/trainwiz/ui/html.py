"""HTML pages from Jinja2 templates, which escape every value; control characters are marked."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from trainwiz.ui.safe import sanitized_html


def rendered(template: str, **values: Any) -> str:
    """A page, from its template's text and the values in it."""
    return sanitized_html(_compiled(template).render(values))


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    """A page's template, from its text. The board renders the same one again and again."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template)
