"""The reader's language: choose it, and translate messages into it.

The only user of the gettext catalogue. A process has one language, set once by `choose`.
"""

from __future__ import annotations

import gettext
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainwiz.message import Message

_CATALOGUES = {"zh": "zh_CN"}
_LOCALE_DIR = Path(__file__).parent / "locale"

_translations: gettext.NullTranslations = gettext.NullTranslations()
_current = "en"


def choose(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Set the language from `--lang`, then TRAINWIZ_LANG, then the locale; return it. Unknown means English."""
    global _translations, _current
    _current = _wanted(argv, environ)
    _translations = gettext.NullTranslations()
    if _current in _CATALOGUES:
        _translations = gettext.translation("trainwiz", _LOCALE_DIR, languages=[_CATALOGUES[_current]], fallback=True)
    return _current


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
    return template.format(**{k: text(v) if isinstance(v, Message) else v for k, v in message.values.items()})


def t(template: str, /, **values: object) -> str:
    """Translate a literal template at once, for edges that print it."""
    return text(Message(template, values))


def _wanted(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    for i, arg in enumerate(argv):
        if arg == "--" or (arg.endswith(".py") and "launch" in argv[:i]):
            break  # what follows are the script's own arguments
        if arg == "--lang" and i + 1 < len(argv):
            return _normal(argv[i + 1])
        if arg.startswith("--lang="):
            return _normal(arg.partition("=")[2])
    for name in ("TRAINWIZ_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(name):
            return _normal(environ[name])
    return "en"


def _normal(name: str) -> str:
    return "zh" if name.lower().replace("-", "_").split("_")[0].split(".")[0] == "zh" else "en"
