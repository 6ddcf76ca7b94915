"""Finding a known cause in the lines of a log."""

from __future__ import annotations

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
"""Of one pattern in one log: more say nothing new."""
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")
"""What Python's `warnings` print."""
_NATIVE = re.compile(
    r"(?:torch|triton|deepspeed)\.|(?:[\w.]+\.)?(?:(?:Runtime|OS|IO|Import|Memory|System|Connection\w*|Timeout|EOF|BrokenPipe|"
    r"CalledProcess)Error|SystemExit)\b"
)
"""Exceptions that native code, another process or the network is behind, and what they printed before is of it."""
_BEFORE = 40
"""Lines before a traceback that belong to it: native code prints what is wrong, then Python raises."""


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A signature that fits, the line that shows it, and what its pattern caught.

    `final`: the line belongs to the last words of the rank that wrote it.
    """

    signature: Signature
    line: Line
    values: Mapping[str, str]
    final: bool


def recognise(
    lines: Sequence[Line], signatures: Sequence[Signature] = SIGNATURES, *, rank: int | None = None
) -> Recognised | None:
    """The cause that the lines show best, None where none is known.

    What stands in a rank's last traceback, or after it, counts before what was only logged earlier; then the order
    of the table; then the earliest line, since the first failure takes the others down. Where the rank ended with an
    exception that nothing explains, what was logged earlier is not made its cause. With `rank`, the lines of other
    ranks are left out.
    """
    lines = [line for line in lines if rank is None or line.rank in (None, rank)]
    ends = list(accumulate(len(line.text) + 1 for line in lines))
    whole = "\n".join(line.text for line in lines)
    last = _last_words(lines)
    explained: set[int | None] = set()
    best: tuple[tuple[bool, bool, int, int], Recognised] | None = None
    for place, signature in enumerate(signatures):
        for match in _found(signature, whole):
            i = bisect_right(ends, max(match.start(), match.end() - 1))
            if _is_source(lines, i) or (_WARNING.match(lines[i].text) and not signature.warned):
                continue
            earlier = i < last[lines[i].rank].begin
            if not earlier:
                explained.add(lines[i].rank)
            key = (signature.aftermath, earlier, place, i)
            if best is None or key < best[0]:
                values = {name: value.strip() for name, value in match.groupdict(default="").items()}
                best = key, Recognised(signature=signature, line=lines[i], values=values, final=not earlier)
    if best is None or best[1].final or best[1].line.rank in explained:
        return best[1] if best else None
    return None if last[best[1].line.rank].own_exception(best[0][-1]) else best[1]


@dataclass(frozen=True)
class _LastWords:
    """Where a rank's last words begin; the exception they end with; the lines in which tracebacks ended before."""

    begin: int
    exception: str
    raised: frozenset[int]

    def own_exception(self, i: int) -> bool:
        """Whether the rank ended with an exception that line `i`, which was written earlier, has nothing to do with.

        The traceback of another rank, which nothing labels, may be the cause of what native code then raises here.
        """
        return bool(self.exception) and (i not in self.raised or not _NATIVE.match(self.exception))


def _found(signature: Signature, text: str) -> list[re.Match[str]]:
    return [match for pattern in signature.patterns for match in islice(pattern.finditer(text), _MATCHES)]


def _is_source(lines: Sequence[Line], i: int) -> bool:
    """Whether the line is source code that a traceback shows: it says what could be raised, not what was."""
    line = lines[i]
    if not line.text.startswith("    "):
        return False
    above = next((lines[k] for k in range(i - 1, max(-1, i - 64), -1) if lines[k].rank == line.rank), None)
    return above is not None and above.text.lstrip().startswith('File "')


def _last_words(lines: Sequence[Line]) -> dict[int | None, _LastWords]:
    """For each rank its last words: its last traceback, and what native code printed before it; else its last lines."""
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
        raised = frozenset(places[k] for start, end in blocks for k in range(start, end))
        found[rank] = _LastWords(places[max(0, begin)], exception.text if exception else "", raised)
    return found
