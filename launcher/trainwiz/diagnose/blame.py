"""Which rank failed by itself, if the first to end had only lost the connection to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainwiz.diagnose import log_text
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line
from trainwiz.diagnose.recognition import recognize
from trainwiz.outcome import STOPPED_CODE, Outcome, shell_code

_CAUSES = tuple(signature for signature in SIGNATURES if not signature.at_exit)


def blamed(outcome: Outcome, logs: Mapping[int, Sequence[Line]]) -> Outcome:
    """The outcome with the rank to blame as the first that failed, and with its exit code.

    A rank that raises may end after those that lost the connection to it. So the first to end is not to blame if the
    end of its log only shows a lost connection, and another rank failed otherwise without having been terminated.
    """
    first = outcome.first_failed
    if first is None or not _lost_a_peer(logs.get(first, ())):
        return outcome
    failed = [rank for rank, code in sorted(outcome.codes.items()) if rank != first and code not in (0, None)]
    suspects = [rank for rank in failed if _by_itself(outcome, rank, logs.get(rank, ()))]
    if not suspects:
        return outcome
    code = outcome.codes[suspects[0]] or 0
    own = outcome.exit_code if _taken_down(outcome, suspects[0]) else shell_code(code)
    return dataclasses.replace(outcome, first_failed=suspects[0], exit_code=own)


def culprits(outcome: Outcome, logs: Mapping[int, Sequence[Line]]) -> tuple[int, ...]:
    """The ranks that failed by themselves, those that a signal ended first; empty where all only lost others."""
    failed = [rank for rank, code in sorted(outcome.codes.items()) if code not in (0, STOPPED_CODE, None)]
    found = [rank for rank in failed if _by_itself(outcome, rank, logs.get(rank, ()))]
    return tuple(sorted(found, key=lambda rank: (outcome.codes[rank] or 0) > 0))


def _by_itself(outcome: Outcome, rank: int, lines: Sequence[Line]) -> bool:
    if _lost_a_peer(lines):
        return False
    return not _taken_down(outcome, rank) or log_text.exception(lines) is not None


def _taken_down(outcome: Outcome, rank: int) -> bool:
    return outcome.codes[rank] == -15 or rank in outcome.killed


def _lost_a_peer(lines: Sequence[Line]) -> bool:
    blocks = tuple(log_text.tracebacks(lines))
    found = recognize(lines[blocks[-1][0] if blocks else -log_text.LAST_LINES :], _CAUSES)
    return found is not None and found.signature.secondary
