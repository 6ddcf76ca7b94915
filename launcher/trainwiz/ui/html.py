"""HTML pages from Jinja2 templates, which escape every value."""

from __future__ import annotations

import functools

import jinja2


@functools.cache
def compiled(template: str) -> jinja2.Template:
    """A page's template, from its text. The board renders the same one again and again."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template)
