"""Known causes in a few words that people quote without the name of the exception."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line
from trainwiz.diagnose.recognition import Recognized
from trainwiz.diagnose.signature import Signature

_SHORT = 16
"""Lines; in more of them, a sentence is one of many that a program wrote."""
_LITERAL = 20
"""Letters that a sentence shares with the pattern, apart from what its groups name; fewer are a coincidence."""
_NAMED = re.compile(r"\^?\w+(?:Error|Exception): (?=[A-Za-z`'\"])")


def recognize(lines: Sequence[Line]) -> Recognized | None:
    """A cause that a line shows whose exception is not named; None if there are too many lines, or none shows one."""
    if len(lines) > _SHORT:
        return None
    for signature, pattern in _patterns():
        for line in lines:
            match = pattern.search(line.text)
            if match and len(match[0]) - sum(map(len, filter(None, match.groups()))) >= _LITERAL:
                values = {name: value.strip() for name, value in match.groupdict(default="").items()}
                return Recognized(signature=signature, line=line, values=values, final=False)
    return None


@functools.cache
def _patterns() -> tuple[tuple[Signature, re.Pattern[str]], ...]:
    """The patterns that begin with the name of an exception, without it."""
    return tuple(
        (signature, re.compile(rf"(?<!\w)(?:{pattern.pattern[named.end() :]})", re.MULTILINE))
        for signature in SIGNATURES
        if not signature.secondary
        for pattern in signature.patterns
        if (named := _NAMED.match(pattern.pattern))
    )
