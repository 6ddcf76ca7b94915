"""Text that a terminal only shows: foreign keys, logs and records may hold what moves its cursor or sets its title."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from trainwiz.record import tokens

STYLES = {"error": "1;31", "warning": "1;33", "hint": "1;36", "good": "32", "dim": "2", "bold": "1"}
"""The parameters of SGR (ECMA-48, 8.3.117) for each style."""
_OWN = "|".join(re.escape(f"\x1b[{code}m") for code in ("0", *STYLES.values()))
# C0 without tab and newline, DEL, C1, other ends of lines, and the marks that turn the direction of what follows.
_SHOWN = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROLS = rf"[\x00-\x08\x0b-\x1f{_SHOWN}]"
_STYLED = re.compile(_OWN)
_FOUND = re.compile(f"({_OWN})|(\r$)|{_CONTROLS}", re.MULTILINE)
_ON_PAGES = re.compile(_CONTROLS)
# What logs are full of: colors, and how progress bars begin their line, or one above it, again.
_DRAWN = re.compile(rf"(\x1b\[[0-9;]{{0,20}}[AKm])|[\x00-\x07\x0b\x0c\x0e-\x1f{_SHOWN}]")
_BEGUN = re.compile(r"\x1b(\[[0-9;]{0,20})?\Z")


def sanitized(text: str) -> str:
    """The text with a mark in place of each control character; trainwiz's own styles, tabs and line ends stay."""
    return _FOUND.sub(lambda found: found.group(1) or ("" if found.group(2) else "�"), text)


def sanitized_html(html: str) -> str:
    """A page with a mark in place of each control character: one of them turns the direction of what follows."""
    return _ON_PAGES.sub("�", html)


class Drawn:
    """A log, piece by piece, as a terminal may show it: colors and progress bars stay, other commands are marked."""

    def __init__(self) -> None:
        self._decoded = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._begun = ""

    def piece(self, data: bytes) -> bytes:
        """What to show of the next bytes; a command that has only begun waits for its end."""
        text = self._begun + self._decoded(data)
        begun = _BEGUN.search(text)
        self._begun = begun.group() if begun else ""
        shown = text[: begun.start()] if begun else text
        return _DRAWN.sub(lambda found: found.group(1) or "�", shown).encode()


def plain(text: str) -> str:
    """The text without trainwiz's own styles."""
    return _STYLED.sub("", text)


def safe(text: str) -> str:
    """The same without passwords in URLs, which findings repeat from a plan."""
    return sanitized(tokens.without_passwords(text))


def escaped_json(text: str) -> str:
    """JSON in which control characters are escaped."""
    return re.sub(f"[{_SHOWN}]", lambda found: f"\\u{ord(found.group()):04x}", text)


def safe_json(text: str) -> str:
    """The same without passwords in URLs."""
    # A URL ends with its line, which is \\n within a string.
    return escaped_json("\\n".join(map(tokens.without_passwords, text.split("\\n"))))


def arguments(given: Sequence[str]) -> str:
    """Words of a command line as they may be repeated: without secrets."""
    from trainwiz.record import redaction  # here: few commands repeat any

    return " ".join(redaction.arguments(given))
