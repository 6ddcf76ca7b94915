"""Finding a known cause in the lines of a log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from trainwiz.diagnose import reading
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.reading import Line
from trainwiz.diagnose.signature import Signature

_MATCHES = 64
"""Of one pattern in one log: more say nothing new."""
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")
"""What Python's `warnings` print."""
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
    of the table; then the earliest line, since the first failure takes the others down. With `rank`, the lines of
    other ranks are left out.
    """
    lines = [line for line in lines if rank is None or line.rank in (None, rank)]
    ends = list(accumulate(len(line.text) + 1 for line in lines))
    whole = "\n".join(line.text for line in lines)
    final = _final(lines)
    best: tuple[tuple[bool, bool, int, int], Recognised] | None = None
    for place, signature in enumerate(signatures):
        for match in _found(signature, whole):
            i = bisect_right(ends, max(match.start(), match.end() - 1))
            if _is_source(lines, i) or (_WARNING.match(lines[i].text) and not signature.warned):
                continue
            earlier = i < final.get(lines[i].rank, 0)
            key = (signature.aftermath, earlier, place, i)
            if best is None or key < best[0]:
                values = {name: value.strip() for name, value in match.groupdict(default="").items()}
                best = key, Recognised(signature=signature, line=lines[i], values=values, final=not earlier)
    return best[1] if best else None


def _found(signature: Signature, text: str) -> list[re.Match[str]]:
    return [match for pattern in signature.patterns for match in islice(pattern.finditer(text), _MATCHES)]


def _is_source(lines: Sequence[Line], i: int) -> bool:
    """Whether the line is source code that a traceback shows: it says what could be raised, not what was."""
    line = lines[i]
    if not line.text.startswith("    "):
        return False
    above = next((lines[k] for k in range(i - 1, max(-1, i - 64), -1) if lines[k].rank == line.rank), None)
    return above is not None and above.text.lstrip().startswith('File "')


def _final(lines: Sequence[Line]) -> dict[int | None, int]:
    """For each rank, where its last words begin: just before its last traceback, else its last lines."""
    by_rank: dict[int | None, list[int]] = {}
    for i, line in enumerate(lines):
        by_rank.setdefault(line.rank, []).append(i)
    starts = {}
    for rank, places in by_rank.items():
        own = [lines[i] for i in places]
        blocks = tuple(reading.tracebacks(own))
        begin = blocks[-1][0] - _BEFORE if blocks else len(own) - reading.LAST_LINES
        starts[rank] = places[max(0, begin)]
    return starts
