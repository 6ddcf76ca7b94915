"""The reader's language: choose it, and translate messages into it.

The only user of the gettext catalogue. A process has one language, set once by `choose`;
a project's files keep theirs (`spoken`).
"""

from __future__ import annotations

import contextlib
import functools
import gettext
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainwiz.message import Message

_CATALOGUES = {"zh": "zh_CN"}
_LOCALE_DIR = Path(__file__).parent / "locale"

_COUNTED = re.compile(
    r"(?<!of the )\{(\w+)(:[^{}]*)?\} (CPU rank|update|sample|epoch|token|step|rank|GPU|machine|node|row|"
    r"document|file|run|micro-batch|checkpoint|core|process|byte|parameter|image|picture|column|character|day|hour|host|label|attempt|restart)"
    r"(?:es|s)\b"
    r"(?! (?:are|give|have|make|need|were)\b)"
)
"""A number and the noun that it counts, but not as the subject of a verb in the plural."""

_NUMBERED = re.compile(r"\{\d\}")
_LONGEST = 1000
"""Characters of what generated code said; the time to recognize a longer text grows with its square."""


class _Catalogue(gettext.GNUTranslations):
    """The sentences of a language, among them those that generated code says: their values are numbered."""

    @functools.cached_property
    def said(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        """How each of these reads in English, and its translation; the longest first, which says most."""
        known = [sentence for sentence in vars(self)["_catalog"] if isinstance(sentence, str) and "{1}" in sentence]
        known.sort(key=len, reverse=True)
        return tuple((_pattern(sentence), self.gettext(sentence)) for sentence in known)


_translations: gettext.NullTranslations = gettext.NullTranslations()
_current = "en"
_typed = ""


def choose(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Set the language from `--lang`, then TRAINWIZ_LANG, then the locale; return it. Unknown means English."""
    global _typed
    _typed = _flag(argv)
    _use(_typed or _wanted(environ))
    return _current


def typed() -> str:
    """The language that `--lang` chose; empty where it was not typed."""
    return _typed


@contextlib.contextmanager
def spoken(name: str) -> Iterator[None]:
    """Another language for a while: that of a project, whose reader may be somebody else."""
    before = _current
    _use(_normal(name or before))
    try:
        yield
    finally:
        _use(before)


def _use(name: str) -> None:
    global _translations, _current
    _current, _translations = name, gettext.NullTranslations()
    if name in _CATALOGUES:
        languages = [_CATALOGUES[name]]
        _translations = gettext.translation("trainwiz", _LOCALE_DIR, languages, _Catalogue, fallback=True)


def current() -> str:
    """The language in use: en or zh."""
    return _current


def text(message: Message | str) -> str:
    """The message in the reader's language. A plain string is data and passes through unchanged."""
    if isinstance(message, str):
        return message
    template = _translations.gettext(message.template) if message.template else ""
    if not message.values:
        return template
    if 1 in message.values.values():
        template = _COUNTED.sub(lambda found: _of_one(found, message.values), template)
    return template.format(**{name: _shown(value) for name, value in message.values.items()})


def _shown(value: object) -> object:
    return text(value) if isinstance(value, Message) else retold(value) if isinstance(value, str) else value


def retold(said: str) -> str:
    """What generated code said, which is in English, in the reader's language; any other text as it is."""
    if not isinstance(_translations, _Catalogue) or not (" " in said and len(said) <= _LONGEST):
        return said
    for pattern, template in _translations.said:
        if found := pattern.fullmatch(said):
            return template.format("", *map(retold, found.groups()))
    return _translations.gettext(said)


def _pattern(sentence: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, _NUMBERED.split(sentence))), re.DOTALL)


def t(template: str, /, **values: object) -> str:
    """Translate a literal template at once, for edges that print it."""
    return text(Message(template, values))


def _of_one(found: re.Match[str], values: Mapping[str, object]) -> str:
    """One number with its noun, which is in the singular where the number is 1."""
    name, form, noun = found.groups()
    return f"{{{name}{form or ''}}} {noun}" if values[name] == 1 else found[0]


def _flag(argv: Sequence[str]) -> str:
    for i, arg in enumerate(argv):
        if arg == "--" or (arg.endswith(".py") and "launch" in argv[:i]):
            break  # what follows are the script's own arguments
        if arg == "--lang" and i + 1 < len(argv):
            return _normal(argv[i + 1])
        if arg.startswith("--lang="):
            return _normal(arg.partition("=")[2])
    return ""


def _wanted(environ: Mapping[str, str]) -> str:
    for name in ("TRAINWIZ_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(name):
            return _normal(environ[name])
    return "en"


def _normal(name: str) -> str:
    return "zh" if name.lower().replace("-", "_").split("_")[0].split(".")[0] == "zh" else "en"
