"""Several runs in one log: the last one counts, and a failure after which another run went well is none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainwiz.diagnose import log_text
from trainwiz.diagnose.log_text import Line

_STARTED = re.compile(
    r"nohup: ignoring input|"
    r"(?:\S+ )*?\[INFO\] \[(?:runner|launch)\.py:\d+:main\] (?:cmd = |WORLD INFO DICT)|"
    r".{0,120}Setting OMP_NUM_THREADS environment variable for each process|"
    r".{0,80}Restarting worker group|"
    r"(?:[$+#] |.{0,60}\S[$#] )(?:\w+=\S+ )*(?:torchrun|deepspeed|accelerate launch|srun|python[\d.]*) \S"
)
"""What launchers and shells write when they start a program: what stands before it is another run."""
_BEGUN = re.compile(
    r"\| distributed init \(rank 0\)|"
    r"(?:\S+ ){0,6}Distributed environment: \S+|"
    r"(?:.{0,80}\W)?\*{3,} Running training \*{3,}|"
    r"(?:INFO: )?GPU available: \w+"
)
"""What programs write when they begin; another rank may have failed just before, so a launcher must have ended."""
_FAILED = re.compile(
    r".*exits with return code = -?[1-9]|  exitcode +: -?[1-9]|.{0,80}CANCELLED AT|.{0,60}\bKilled$|"
    r"srun: error: .*(?:Exited with exit code [1-9]|Killed)|.*(?:SignalException: |ChildFailedError)"
)
"""What launchers and shells report of a failure."""
_RAISED = re.compile(r"\s*Traceback \(most recent call last\)|(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)\b(?::|$)")
"""The first line of a traceback, and its last."""
_ENDS_WELL = re.compile(
    r"(?:.{0,80}\W)?Process \d+ exits successfully|`?Trainer\.fit`? stopped: `?max_\w+=|"
    r"(?:.{0,60}\W)?[Tt]raining (?:pipeline )?(?:has )?(?:completed?|finished)(?: successfully)?\W{0,3}$"
)
"""What is written when a run has come to its end."""
_GOES = re.compile(
    r"\b(?:step|iter|iteration|epoch|update|loss|train_loss)s?\b\W{0,5}\d|\d(?:it/s|s/it)\b", re.IGNORECASE
)
"""Words of a training that goes on."""
_NUMBERS = re.compile(r"\d+")
_LETTERS = 12
"""A first line with fewer letters says nothing of its program."""
_BEGINNING = 60
"""Lines in which launchers and several ranks may write that a run begins."""


def last(lines: Sequence[Line]) -> Sequence[Line] | None:
    """The lines of the last run of a log that has several; None for a log with one."""
    places = _beginnings(lines)
    if not places:
        return None
    begin = places[-1]
    for place in reversed(places[:-1]):
        if begin - place > _BEGINNING or any(_is_later(line.text) for line in lines[place:begin]):
            break
        begin = place
    return lines[begin:] if begin else None


def _is_later(text: str) -> bool:
    """Whether a line is one of a run that is past its beginning: it trains, or failed."""
    return bool(_GOES.search(text) or _FAILED.match(text) or _RAISED.match(text))


def went_well(lines: Sequence[Line]) -> bool:
    """Whether lines without a failure are those of a training that goes on, or came to its end."""
    if log_text.is_finished(lines) or any(_ENDS_WELL.match(line.text) for line in lines):
        return True
    return any(_GOES.search(line.text) for line in lines)


def _beginnings(lines: Sequence[Line]) -> list[int]:
    """Where runs begin: at a line that says so, or at the first line of the log, written once more."""
    found = {i for i, line in enumerate(lines) if _STARTED.match(line.text)} | set(_repeated(lines))
    ended = False
    for i, line in enumerate(lines):
        if ended and _BEGUN.match(line.text):
            found.add(i)
        ended = (ended or bool(_FAILED.match(line.text))) and i not in found
    return sorted(found)


def _repeated(lines: Sequence[Line]) -> list[int]:
    """Where the first line of the log is written again, unless it is one of many that a run writes."""
    first = _plain(lines[0].text) if lines else ""
    says_nothing = sum(c.isalpha() for c in first) < _LETTERS or log_text.is_progress(lines[0].text)
    if says_nothing or _GOES.search(first) or first.startswith("Traceback"):
        return []
    same = [i for i, line in enumerate(lines) if i > _BEGINNING // 10 and _plain(line.text) == first]
    gaps = [later - earlier for earlier, later in zip([0, *same], same, strict=False)]
    return same if all(gap > _BEGINNING // 10 for gap in gaps) and len(same) < max(3, len(lines) // 200) else []


def _plain(text: str) -> str:
    return _NUMBERS.sub("#", text.strip())
