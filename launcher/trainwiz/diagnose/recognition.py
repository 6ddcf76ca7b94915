"""Finding a known cause in the lines of a log."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from trainwiz.diagnose import log_text
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line
from trainwiz.diagnose.signature import Signature

_MATCHES = 64
"""Matches of one pattern in one log; more show nothing new."""
# docs/decisions/diagnosis.md: What is tried again, and what a launcher does after a failure, is no cause
_WARNING = re.compile(
    r"\S.*:\d+: \w*Warning: |Warning: |WARNING:(?!torch\.distributed)\w[\w.]*:|"
    r".{0,200}\b[Rr]etrying (?:\(Retry\(|in \d)"
)
"""A line printed by Python's `warnings`, by a logger as one, or by what tries once more: the program goes on."""
# IPython's tracebacks show the lines around each call, with their numbers.
_NUMBERED = re.compile(r"(?:-+> ?| +)\d+(?: |$)")
_CELL = re.compile(r"(?:File \S+:\d+, in |Cell In ?\[\d+\], line \d+|<ipython-input-|[~/]\S+ in \w+\()")
_NATIVE = re.compile(
    r"(?:torch|triton|deepspeed|ray)\.|AssertionError: failed to get register_center_actor|"
    r"(?:[\w.]+\.)?(?:(?:Runtime|OS|IO|Import|Memory|System|Connection\w*"
    r"|Timeout|EOF|BrokenPipe|"
    r"CalledProcess)Error|SystemExit)\b"
)
"""Exceptions that come from native code, another process or the network; the lines before them belong to them."""
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?!SignalException)\w*(?:Error|Exception)\b(?::|$)", re.MULTILINE)
"""The line of an exception, but of the one by which a launcher ends that is told to."""
_PROGRESS = re.compile(r"\b(?:step|iter|iteration|epoch|update|loss)\b\W{0,4}\d|\d(?:it/s|s/it)\b", re.IGNORECASE)
"""Words of a training that goes on."""
_BEFORE = 40
"""Lines before a traceback that belong to it: native code prints the problem, then Python raises."""


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """A signature that fits a log."""

    signature: Signature
    """The row of the table of causes."""
    line: Line
    """The line that shows it."""
    values: Mapping[str, str]
    """The named groups of its pattern."""
    final: bool
    """Whether the line belongs to the end of its rank's log."""
    warned: bool = False
    """Whether a warning of Python's `warnings` shows it: the program went on."""
    follows: bool = False
    """Whether a failure that a launcher reported before led to it."""


# docs/decisions/diagnosis.md: A failure is recognized by the place of its words in the log
def recognize(
    lines: Sequence[Line], signatures: Sequence[Signature] = SIGNATURES, *, rank: int | None = None
) -> Recognized | None:
    """The most likely cause; None if no signature fits.

    A match in or after a rank's last traceback counts before one that was logged earlier, and a warning counts only
    where nothing else is found; then the order of the signatures decides; then a line that says what the sentence
    names; then the earliest, since the first failure causes the others. If a rank ended with an exception that no
    signature explains, a line logged earlier is not taken for its cause. With `rank`, the lines of other ranks are left
    out.
    """
    text = _text(tuple(line for line in lines if rank is None or line.rank in (None, rank)))
    lines, last = text.lines, text.last
    explained: set[int | None] = set()
    best: tuple[tuple[bool, bool, int, bool, int], Recognized] | None = None
    for place, signature in enumerate(signatures):
        for match in text.found(signature):
            i = bisect_right(text.ends, max(match.start(), match.end() - 1))
            own = last[lines[i].rank]
            warned = bool(_WARNING.match(lines[i].text))
            if _is_source(lines, i) or (warned and not signature.as_warning):
                continue
            if signature.at_exit and own.explains(i):
                continue
            earlier = i < own.begin or warned
            if not earlier:
                explained.add(lines[i].rank)
            follows = signature.follows is not None and bool(signature.follows.search(text.whole, 0, match.start()))
            came_of = follows or (signature.asked and text.failed_before(match.start()))
            values = {name: value.strip() for name, value in match.groupdict(default="").items()}
            says_less = bool(values) and not any(values.values())
            key = (signature.secondary or warned or came_of, earlier, place, says_less, i)
            if best is None or key < best[0]:
                best = (
                    key,
                    Recognized(
                        signature=signature,
                        line=lines[i],
                        values=values,
                        final=not earlier,
                        warned=warned,
                        follows=follows,
                    ),
                )
    if best is None or best[1].final or best[1].line.rank in explained:
        return best[1] if best else None
    return None if last[best[1].line.rank].own_exception(best[0][-1]) else best[1]


@dataclass(frozen=True)
class _LastWords:
    """The end of a rank's log."""

    begin: int
    """The index of its first line."""
    exception: str
    """The exception with which the rank ended; empty: none."""
    raised: frozenset[int]
    """The indices of all lines of tracebacks."""

    def explains(self, i: int) -> bool:
        """Whether line `i` was written while the rank ended with an exception."""
        return bool(self.exception) and self.begin <= i < max(self.raised) + log_text.LAST_LINES

    # docs/decisions/diagnosis.md: An exception of the script is explained only by its own traceback
    def own_exception(self, i: int) -> bool:
        """Whether the rank ended with an exception that is unrelated to line `i`, which was written earlier.

        The traceback of another rank, which no prefix marks, may be the cause of an exception from native code.
        """
        return bool(self.exception) and (i not in self.raised or not _NATIVE.match(self.exception))


class _Text:
    """The lines of a log in which causes are looked for, with what was found: one diagnosis asks several times."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self.lines = lines
        self.whole = "\n".join(line.text for line in lines)
        self.ends = list(accumulate(len(line.text) + 1 for line in lines))
        """Where each line ends in the whole."""
        self.last = _last_words(lines)
        self._found: dict[Signature, list[re.Match[str]]] = {}

    def found(self, signature: Signature) -> list[re.Match[str]]:
        """The matches of its patterns in the whole."""
        if signature not in self._found:
            matches = (islice(pattern.finditer(self.whole), _MATCHES) for pattern in signature.patterns)
            self._found[signature] = [match for some in matches for match in some]
        return self._found[signature]

    def failed_before(self, end: int) -> bool:
        """Whether an exception stands before a place of the whole, and no rank went on after it."""
        last = max((raised.end() for raised in _RAISED.finditer(self.whole, 0, end)), default=None)
        return last is not None and _PROGRESS.search(self.whole, last, end) is None


_text = functools.lru_cache(maxsize=3)(_Text)


def _is_source(lines: Sequence[Line], i: int) -> bool:
    """Whether the line is source code shown by a traceback; it holds messages that were not raised."""
    line = lines[i]
    if _NUMBERED.match(line.text) and any(_CELL.match(near.text) for near in lines[max(0, i - 64) : i]):
        return True
    if not line.text.startswith("    "):
        return False
    above = next((lines[k] for k in range(i - 1, max(-1, i - 64), -1) if lines[k].rank == line.rank), None)
    return above is not None and above.text.lstrip().startswith('File "')


def _last_words(lines: Sequence[Line]) -> dict[int | None, _LastWords]:
    """By rank, the end of its log: its last traceback and what native code printed before it; else its last lines."""
    by_rank: dict[int | None, list[int]] = {}
    for i, line in enumerate(lines):
        by_rank.setdefault(line.rank, []).append(i)
    found = {}
    for rank, places in by_rank.items():
        own = [lines[i] for i in places]
        blocks = tuple(log_text.tracebacks(own))
        exception = log_text.exception(own[slice(*blocks[-1])]) if blocks else None
        before = _BEFORE if exception is None or _NATIVE.match(exception.text) else 0
        begin = blocks[-1][0] - before if blocks else len(own) - log_text.LAST_LINES
        # A file may hold several runs; the last one need not have come as far as a traceback.
        if exception is not None and log_text.ends_bare([line for line in own if line.number > exception.number]):
            begin, exception = len(own) - log_text.LAST_LINES, None
        raised = frozenset(places[k] for start, end in blocks for k in range(start, end))
        found[rank] = _LastWords(places[max(0, begin)], exception.text if exception else "", raised)
    return found
