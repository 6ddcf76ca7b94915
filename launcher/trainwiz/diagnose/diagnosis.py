"""The probable cause of a failed run, and what to do, from how it ended and what its ranks wrote."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainwiz import shell_words
from trainwiz.diagnose import attempts, launchers, log_text, quoted, tools, unexplained
from trainwiz.diagnose.endings import BY_CODE, DISK_FILLED, EXITED, KILLED_FOR_MEMORY
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line
from trainwiz.diagnose.recognition import Recognized, recognize
from trainwiz.diagnose.signature import Signature
from trainwiz.message import Message, say
from trainwiz.outcome import SIGNAL_BASE, Outcome, signal_name

_FROM_OUTSIDE = (-9, -15, -1)
"""Signals from outside: only the last lines of the log can be related to them."""
_ABORTED = -6
_ABORTS = ("connection_lost", "no_answer", "rendezvous_lost", "native_exception")
"""Secondary causes after which native code aborts; they say more than that."""
_ENDED_WELL = re.compile(r"\b(?<!Abort )(?:finished|completed?|done|succe\w+|saved)\b", re.IGNORECASE)
"""The last words of a program that did not fail because of its warnings."""
_GOES_ON = 50
"""Lines; a program that wrote so many after a failure went on."""
_MIB = 2**20
_NEARLY_FULL = 0.05
_FULL_BYTES = 2**16
"""With less free space not even a traceback could be written."""


Certainty = Literal["shown", "likely", "guessed", "unknown"]
_SUSPECTS = 2
_COMMAND = "your launch command"
_LAUNCH = re.compile(r"trainwiz launch(?! --config)")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was wrong with a run, as far as its outcome and its logs show."""

    name: str
    """The signature's; `unknown` if none fits."""
    rank: int | None
    """The rank that failed first; None: the log does not say."""
    how: Message
    """How that rank ended: its exit code or signal."""
    cause: Message
    """What went wrong, in one sentence."""
    remedy: Message
    """What to do about it, or where to look."""
    evidence: tuple[str, ...] = ()
    """The line of the log that shows the cause."""
    line: int | None = None
    """The number of that line in the log, counted from 1."""
    exception: str = ""
    """The line that names the exception which the rank ended with."""
    last: tuple[str, ...] = ()
    """The last traceback of that rank, or its last lines."""
    observed: tuple[Message, ...] = ()
    """What the memory and the disk showed at the end."""
    followed: tuple[int, ...] = ()
    """The ranks that failed only because this one did."""
    transient: bool | None = None
    """Whether the same launch may succeed when it is repeated; None: unknown."""
    plan_change: str = ""
    """The kind of plan change that helps, as `plan_changes.candidates` takes it; empty: none."""
    known: bool = True
    """Whether a signature fits."""
    certainty: Certainty = "unknown"
    """How sure the cause is: shown by the end of the log, logged before it, guessed from how the rank ended."""
    suspects: tuple[tuple[str, Message], ...] = ()
    """Other causes that the log mentions: names and causes, the more likely one first."""
    tool: str = "trainwiz"
    """The tool that wrote the log, as far as it shows; empty: a script of somebody's own."""
    words: Mapping[str, str | Message] = dataclasses.field(default_factory=dict)
    """What that tool's users call the plan's keys in the remedy: a key of theirs, or words for a reader."""
    project: str = ""
    """The folder of the run's project, for what is suggested; empty: the current one, or none."""

    def to_dict(self) -> dict[str, object]:
        """Plain values, in English, for records and `--json`."""
        return {
            "name": self.name,
            "known": self.known,
            "rank": self.rank,
            "how": str(self.how).strip(),
            "cause": str(self.cause).strip(),
            "remedy": in_words_of(str(self.remedy), self.words, _COMMAND),
            "certainty": self.certainty,
            "suspects": [{"name": name, "cause": str(cause)} for name, cause in self.suspects],
            "tool": self.tool,
            "evidence": list(self.evidence),
            "line": self.line,
            "exception": self.exception,
            "observed": [str(message) for message in self.observed],
            "followed_ranks": list(self.followed),
            "passing": self.transient,
            "last_lines": list(self.last),
        }


def diagnose(outcome: Outcome, logs: Mapping[int, str | Sequence[Line]], *, log: str = "") -> Diagnosis | None:
    """What was wrong with a run; None if it succeeded or was asked to stop.

    `logs` are the ranks' logs, by rank; `log` is the name of that of the rank that failed first, for the remedy.
    """
    rank = outcome.first_failed
    code = outcome.codes.get(rank) if rank is not None else None
    if outcome.exit_code == 0 or rank is None or code is None:
        return None
    if outcome.interrupted and outcome.exit_code == SIGNAL_BASE + (outcome.signal or 0):
        return None
    lines = log_text.without_ignored(_lines(logs.get(rank, "")))
    failed_after = tuple(r for r, c in sorted(outcome.codes.items()) if r != rank and c not in (0, None))
    return _of(
        lines, rank=rank, code=code, log=log or f"rank-{rank}.log", observed=outcome.observed, followed=failed_after
    )


def of_log(text: str | Sequence[Line], *, log: str) -> Diagnosis | None:
    """What was wrong, from a log alone, whatever program wrote it; None if it shows no failure."""
    lines = log_text.without_ignored(_lines(text))
    if log_text.is_trackers(lines):
        return None
    last = attempts.last(lines)
    if last is not None:
        found = _of_run(last, log=log)
        if found is not None or attempts.went_well(last):
            return found
    return _of_run(lines, log=log)


def _of_run(lines: Sequence[Line], *, log: str) -> Diagnosis | None:
    """The same of a log with one run."""
    whole = "\n".join(line.text for line in lines)
    failure = launchers.first_failure(whole)
    rank, code = failure or (None, None)
    found = (recognize(lines, rank=rank) if rank is not None else None) or recognize(lines)
    blocks = tuple(log_text.tracebacks(lines))
    pasted = log_text.bare_exception(lines)
    shows = failure is not None or bool(blocks) or pasted is not None or (found and _is_a_failure(found, lines))
    if not shows and quoted.recognize(lines) is None:
        return None
    if rank is None or _only_followed(lines, rank, blocks):
        first = _first(lines, blocks, found)
        rank, code = (rank, code) if first is None else (first, code if first == rank else None)
    tool, words = tools.of_log(whole)
    diagnosis = dataclasses.replace(_of(lines, rank=rank, code=code, log=log), tool=tool, words=words)
    return dataclasses.replace(diagnosis, how=_goes_on(lines, diagnosis)) if code is None else diagnosis


def _goes_on(lines: Sequence[Line], diagnosis: Diagnosis) -> Message:
    """How it failed; if many lines follow the failure, it may not have been the end."""
    exception = log_text.exception(lines)
    failed = max(exception.number if exception else 0, diagnosis.line or 0)
    # Indented lines may belong to the exception.
    after = [line for line in lines if line.number > failed and not line.text.startswith((" ", "\t"))]
    if not failed or (len(after) < _GOES_ON and not log_text.is_finished(after)):
        return diagnosis.how
    return say("the log contains a failure, but continues for {n} more lines", n=lines[-1].number - failed)


def _of(
    lines: Sequence[Line],
    *,
    rank: int | None,
    code: int | None,
    log: str,
    observed: Mapping[str, int] | None = None,
    followed: tuple[int, ...] = (),
) -> Diagnosis:
    own, exception = _ended_with(lines, rank, code)
    found = recognize(lines, rank=rank)
    said_more = exception is not None and not log_text.is_launchers(exception)
    if said_more and found is not None and (found.signature.name == "child_failed" or found.follows):
        found = None  # a rank said more than its launcher
    if found is not None and found.signature.name == "ray_task" and log_text.checked_in_title(own):
        found = None  # the title says what the task checked
    if found is None and exception is not None:
        words = log_text.words_of(exception, own)
        if words != exception.text or exception not in own:  # a terminal broke its line, or a sentence quotes it
            found = recognize([dataclasses.replace(exception, text=words)])
    if found is None and exception is None and (raised := log_text.cut_raise(own)):
        found = recognize([raised])
        found = found and dataclasses.replace(found, line=own[-1])
    if found is None and rank is not None and (exception is None or exception.rank not in (None, rank)):
        # The rank wrote nothing about its end; another rank's log may show why, unless it only lost the connection.
        found = recognize(lines, [s for s in SIGNATURES if not s.secondary])
    if found is None and exception is None and code is None:
        found = quoted.recognize(lines)
    found = _refined(found, lines)
    code = _as_signal(code)
    # A thread of a process group that still runs when the interpreter exits aborts it, also after an exception.
    explained = code == _ABORTED and log_text.ends_with_exception(own)
    chosen, values, shown = _choose(found, None if explained else code, observed or {})
    if chosen is None and exception is None:
        chosen, values = _without_exception(code, observed or {}), {"log": log}
    if chosen is None:
        cause, remedy = unexplained.explain(exception, code, own, log)
        shown = exception
    else:
        cause, remedy = Message(chosen.cause.template, values), Message(chosen.remedy.template, values)
    return Diagnosis(
        name=chosen.name if chosen else "unknown",
        rank=rank,
        how=_how(rank, code),
        cause=cause,
        remedy=remedy,
        evidence=(shown.text,) if shown else (),
        line=shown.number if shown else None,
        exception=exception.text if exception else "",
        last=log_text.last_words(own),
        observed=tuple(_observations(observed or {})),
        followed=followed,
        transient=chosen.transient if chosen else None,
        plan_change=chosen.plan_change if chosen else "",
        known=chosen is not None,
        certainty=_certainty(chosen, shown, found),
        suspects=_suspects(lines, rank, chosen, shown),
    )


def _refined(found: Recognized | None, lines: Sequence[Line]) -> Recognized | None:
    """What the lines of all ranks together say of a cause that one rank's lines show."""
    closer = [s for s in SIGNATURES if found and s.refines == found.signature.name]
    return (recognize(lines, closer) if closer else None) or found


def _ended_with(lines: Sequence[Line], rank: int | None, code: int | None) -> tuple[Sequence[Line], Line | None]:
    """The lines of a rank, and the one that names the exception which it ended with.

    Not all that a rank writes has its prefix: where its own lines name none, those without a prefix may, then any.
    """
    ranks = [line for line in lines if line.rank == rank]
    choices = [ranks or lines]
    if rank is not None or code is None:
        choices += [[line for line in lines if line.rank in (None, rank)], lines]
    for own in choices:
        # Python ends with 1 after an exception; a traceback may have been pasted without its first line.
        exception = log_text.exception(own) or (None if code and code != 1 else log_text.bare_exception(own))
        if exception is not None:
            return own, exception
    return choices[0], None


def in_words_of(remedy: str, words: Mapping[str, str | Message], command: str) -> str:
    """A remedy in any language with a tool's own names for the plan's keys and for the launch."""
    if not words:
        return remedy
    for key in sorted(words, key=len, reverse=True):
        remedy = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.]\w)", str(words[key]), remedy)
    return remedy.replace("trainwiz launch --resume", command).replace("trainwiz launch", command)


def in_project(remedy: str, project: str) -> str:
    """A remedy in any language whose launches are those of a project in another folder."""
    if project in ("", "."):
        return remedy
    command = f"trainwiz launch {shell_words.quoted(project)}"
    return _LAUNCH.sub(lambda _: command, remedy)


def _certainty(chosen: Signature | None, shown: Line | None, found: Recognized | None) -> Certainty:
    if chosen is None:
        return "unknown"
    if shown is None or found is None:
        return "guessed"
    return "shown" if found.final and not chosen.secondary else "likely"


def _suspects(
    lines: Sequence[Line], rank: int | None, chosen: Signature | None, shown: Line | None
) -> tuple[tuple[str, Message], ...]:
    """The next causes that the log mentions, in other lines than the explained one."""
    # A launcher's report that a rank failed is no cause beside one.
    left = [s for s in SIGNATURES if s is not chosen and s.name != "child_failed"]
    suspects: list[tuple[str, Message]] = []
    for _ in range(_SUSPECTS + 2):
        found = recognize(lines, left, rank=rank)
        if found is None or len(suspects) == _SUSPECTS:
            break
        left.remove(found.signature)
        if found.line != shown:
            suspects.append((found.signature.name, Message(found.signature.cause.template, found.values)))
    return tuple(suspects)


def _choose(
    found: Recognized | None, code: int | None, observed: Mapping[str, int]
) -> tuple[Signature | None, Mapping[str, str], Line | None]:
    """The signature, what fills in its words, and the line that shows it."""
    if observed.get("oom_kills") and (code == -9 or (found and found.signature.name == "loader_killed")):
        return KILLED_FOR_MEMORY, {}, None
    by_code = BY_CODE.get(code) if code is not None else None
    if found and by_code and (_says_less(found, code) or (code in _FROM_OUTSIDE and not found.final)):
        found = None
    if found:
        return found.signature, found.values, found.line
    return by_code, {}, None


def _says_less(found: Recognized, code: int | None) -> bool:
    """Whether a secondary cause says less than the exit code."""
    aborts = code == _ABORTED and found.final and found.signature.name in _ABORTS
    return found.signature.secondary and not aborts


def _without_exception(code: int | None, observed: Mapping[str, int]) -> Signature | None:
    """The cause of an end without an exception."""
    if observed.get("disk_free_bytes", _FULL_BYTES) < _FULL_BYTES:
        return DISK_FILLED
    # Code 1 is also that of `sys.exit("words")`, and of many shells and launchers for any failure.
    return EXITED if code is not None and code > 1 else None


def _first(lines: Sequence[Line], blocks: Sequence[tuple[int, int]], found: Recognized | None) -> int | None:
    """The rank that failed first, if no launcher says so: the one whose cause is not another rank's failure."""
    if found and not found.signature.secondary:
        return found.line.rank
    ranks = [lines[start].rank for start, _ in blocks]
    own = [rank for rank in ranks if rank is not None and recognize(lines, rank=rank) is None]
    return next(iter(own or ranks), found.line.rank if found else None)


def _only_followed(lines: Sequence[Line], rank: int, blocks: Sequence[tuple[int, int]]) -> bool:
    """Whether the rank that a launcher names lost only its connection, while another rank says what went wrong."""
    own = recognize(lines, rank=rank)
    if own is None or not own.signature.secondary or own.line.rank != rank:
        return False
    others = {lines[start].rank for start, _ in blocks} - {rank, None}
    found = [recognize(lines, rank=other) for other in others]
    return any(other is None or not other.signature.secondary for other in found)


def _lines(text: str | Sequence[Line]) -> Sequence[Line]:
    return log_text.read(text) if isinstance(text, str) else text


def _is_a_failure(found: Recognized, lines: Sequence[Line]) -> bool:
    if found.warned:
        return not _ended_well(lines)
    words = ("Error", "error", "Killed", "CANCELLED", "nan")
    if found.final or any(word in found.line.text for word in words):
        return True
    return "NCCL WARN" in found.line.text and not _ended_well(lines)


def _ended_well(lines: Sequence[Line]) -> bool:
    return log_text.is_finished(lines) or bool(_ENDED_WELL.search(log_text.last_of_script(lines)))


def _as_signal(code: int | None) -> int | None:
    # A shell or a container between trainwiz and the rank reports signal n as 128 + n.
    return SIGNAL_BASE - code if code and code > SIGNAL_BASE and SIGNAL_BASE - code in BY_CODE else code


def _how(rank: int | None, code: int | None) -> Message:
    if rank is None:
        if code is None:
            return say("the log ends with a failure")
        if code < 0:
            return say("ended by {signal}", signal=signal_name(-code))
        return say("ended with exit code {code}", code=code)
    if code is None:
        return say("rank {rank} failed first", rank=rank)
    if code < 0:
        return say("rank {rank} failed first, ended by {signal}", rank=rank, signal=signal_name(-code))
    return say("rank {rank} failed first with exit code {code}", rank=rank, code=code)


def _observations(observed: Mapping[str, int]) -> list[Message]:
    """Problems with memory and disks at the end of the run."""
    found = []
    if kills := observed.get("oom_kills"):
        found.append(say("out-of-memory kills counted by the cgroup during the run: {n}", n=kills))
    for place, key in (("/dev/shm", "shm"), ("runs/", "disk")):
        free, total = observed.get(f"{key}_free_bytes"), observed.get(f"{key}_total_bytes")
        if free is not None and total and free < _NEARLY_FULL * total:
            found.append(
                say(
                    "{place} was almost full: {free} MiB of {total} MiB free",
                    place=place,
                    free=free // _MIB,
                    total=total // _MIB,
                )
            )
    return found
