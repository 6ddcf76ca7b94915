"""The crash card: who failed first and how, the last lines, the cause with its evidence, the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from trainwiz import columns
from trainwiz.diagnose.diagnosis import in_project, in_words_of
from trainwiz.language import t, text
from trainwiz.message import Message
from trainwiz.record import tokens
from trainwiz.ui import console
from trainwiz.ui.safe import safe
from trainwiz.vocabulary import spelled

if TYPE_CHECKING:
    from trainwiz.diagnose import Diagnosis

_INDENT = "  "
_EMPTY = " :：,，"
"""Left at the end of a sentence where the log did not name the thing."""
_EVIDENCE = 200
"""Characters that are shown of a line of evidence. Some messages fill a page, and the log has all of it."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A change of the plan that was solved and checked."""

    changes: Mapping[str, tuple[Any, Any]]
    """Old and new value by key."""
    why: Message
    """The reason for these values."""
    line: str
    """The command that applies it."""
    saves: Message | None = None
    """The change of the forecast memory; None if it does not shrink, or is unknown."""

    def recorded_changes(self) -> dict[str, dict[str, Any]]:
        """The values before and after, by their keys, as records and `--json` have them."""
        return {key: {"from": old, "to": new} for key, (old, new) in self.changes.items()}


def show(diagnosis: Diagnosis, *, log: str, fix: Fix | None = None, stream: TextIO | None = None) -> None:
    """Print the card on stderr. `log` names the log that the evidence's line number refers to."""
    stream = stream or sys.stderr
    for line in card(diagnosis, log=log, fix=fix, stream=stream):
        print(safe(line), file=stream, flush=True)


def card(diagnosis: Diagnosis, *, log: str, fix: Fix | None, stream: TextIO) -> Iterator[str]:
    """The card's lines; they fit the terminal, if `stream` is one."""
    yield from _wrapped(text(diagnosis.how), "", stream, style="bold")
    if diagnosis.followed:
        ranks = ", ".join(str(rank) for rank in diagnosis.followed)
        yield from _wrapped(t("ranks that ended as a result: {ranks}", ranks=ranks), "", stream, style="dim")
    for line in diagnosis.last:
        yield console.styled(_cut(f"{_INDENT}| {line}", stream), "dim", stream)
    if diagnosis.exception and not _shown_whole(diagnosis, stream):
        yield from _wrapped(diagnosis.exception[:_EVIDENCE], t("exception: "), stream)
    yield from _wrapped(text(diagnosis.cause).rstrip(_EMPTY), t("cause: "), stream, style="bold")
    yield from _evidence(diagnosis, log, stream)
    words = {key: word if isinstance(word, str) else text(word) for key, word in diagnosis.words.items()}
    remedy = in_words_of(text(diagnosis.remedy), words, t("your launch command"))
    remedy = in_project(remedy, diagnosis.project)
    yield from _wrapped(remedy, "→ ", stream, style="good")
    yield from _doubts(diagnosis, stream)
    if fix:
        yield from _fix(fix, stream)


def _doubts(diagnosis: Diagnosis, stream: TextIO) -> Iterator[str]:
    """How sure it is, where it is not certain, and what else may have been wrong."""
    if diagnosis.certainty == "likely":
        yield from _wrapped(t("likely, but not certain: the log continues after these lines"), "", stream, style="dim")
    elif diagnosis.certainty == "guessed":
        yield from _wrapped(t("guessed from how it ended: the log does not name a cause"), "", stream, style="dim")
    for _, cause in diagnosis.suspects:
        yield from _wrapped(text(cause).rstrip(_EMPTY), t("if not, check: "), stream, style="dim")


def _shown_whole(diagnosis: Diagnosis, stream: TextIO) -> bool:
    """Whether the whole exception is elsewhere on the card: as evidence, or among the last lines."""
    if any(diagnosis.exception in words for words in diagnosis.evidence):
        return True
    line = f"{_INDENT}| {diagnosis.exception}"
    return diagnosis.exception in diagnosis.last and _cut(line, stream) == line


def _evidence(diagnosis: Diagnosis, log: str, stream: TextIO) -> Iterator[str]:
    for whole in diagnosis.evidence:
        words = whole if len(whole) <= _EVIDENCE else whole[:_EVIDENCE] + "…"
        where = t("{log}, line {line}: {words}", log=log, line=diagnosis.line, words=words) if diagnosis.line else words
        yield from _wrapped(where, t("evidence: "), stream)
    for message in diagnosis.observed:
        yield from _wrapped(text(message), t("evidence: "), stream)


def _fix(fix: Fix, stream: TextIO) -> Iterator[str]:
    yield from _wrapped(t("suggested change to the plan, solved and checked ({why}):", why=text(fix.why)), "", stream)
    for key, (old, new) in fix.changes.items():
        yield _cut(f"{_INDENT}{key}: {spelled(old)} → {spelled(new)}", stream)
    if fix.saves:
        yield from _wrapped(text(fix.saves), _INDENT, stream)
    yield from _wrapped(t("apply it: {line}", line=fix.line), "", stream, style="bold")


def _wrapped(words: str, first: str, stream: TextIO, *, style: str | None = None) -> Iterator[str]:
    for line in console.fitted(words, first=first, rest=" " * columns.width(first), stream=stream):
        yield console.styled(_cut(line, stream), style, stream) if style else _cut(line, stream)


def _cut(line: str, stream: TextIO) -> str:
    """The line, cut at the terminal's edge, since the log has all of it; a pipe gets all of it, too."""
    line = tokens.without_passwords(line)  # before it is cut: a password is recognized by what follows it
    if not stream.isatty():
        return line
    width = console.width(stream)
    return columns.shortened(line, width)
