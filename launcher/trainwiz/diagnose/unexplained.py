"""The message for a failure that no known cause explains."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz.diagnose import cut_calls, general, log_text, subject
from trainwiz.diagnose.log_text import Frame, Line
from trainwiz.message import Message, say


def explain(exception: Line | None, code: int | None, lines: Sequence[Line], log: str) -> tuple[Message, Message]:
    """A cause and a remedy, from the words of the exception, else from what the lines show of one."""
    # What follows the exception may be another traceback, without the exception that ends it.
    calls = log_text.frames([line for line in lines if exception is None or line.number <= exception.number])
    if exception and (explained := _by_its_words(exception, calls, lines, log)):
        return explained
    own = _own(calls)
    if exception and own:
        return (
            say("unknown exception; your own code was in {function}, {place}", function=own.function, place=own.place),
            say("start at {place}; the full traceback is in {log}", place=own.place, log=log),
        )
    remedy = say(
        "read {log} from the first error; for more output, run: PYTHONFAULTHANDLER=1 "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL trainwiz launch",
        log=log,
    )
    if exception and calls:
        return say("unknown exception, raised in {raised}", raised=_raised_in(calls[-1])), remedy
    if exception:
        return say("unknown failure; see the exception"), remedy
    if cause := _cut(lines):
        if found := cut_calls.of(calls):
            cause = say("{cause} (about: {subject})", cause=cause, subject=found.about)
            return cause, say(
                "read the full log: the exception is on the line after the last call; {usual}", usual=found.remedy
            )
        return cause, say("read the full log: the exception is on the line after the last call")
    last = log_text.last_of_script(lines)
    if code == 1 and last:  # sys.exit("words") prints them
        return (
            say("the script exited without an exception; its last message was: {words}", words=last),
            say("fix the error in that message; the earlier output is in {log}", log=log),
        )
    return say("unknown failure: the rank ended without an exception"), remedy


def _by_its_words(
    exception: Line, calls: Sequence[Frame], lines: Sequence[Line], log: str
) -> tuple[Message, Message] | None:
    said = log_text.words_of(exception, lines)
    meaning = general.explanation(
        said, calls[-1].source if calls else "", installed=bool(calls) and calls[-1].package is not None
    )
    if meaning is None:
        return None
    signature, match = meaning
    own = _own(calls)
    raised = _raised_in(calls[-1]) if calls else log
    values = {"where": own.place if own else log, "raised": raised} | match.groupdict()
    cause, remedy = Message(signature.cause.template, values), Message(signature.remedy.template, values)
    if signature in general.IN_ITS_OWN_WORDS and (found := subject.of(said)):
        cause = say("{cause} (about: {subject})", cause=cause, subject=found.about)
        remedy = found.remedy
    if own:
        cause = say(
            "{cause}; your own code was in {function}, {place}", cause=cause, function=own.function, place=own.place
        )
    return cause, remedy


def _cut(lines: Sequence[Line]) -> Message | None:
    """What a traceback shows that ends before its exception."""
    if named := log_text.cut_notebook(lines):
        return say("the log ends inside a traceback, before the message of its {exception}", exception=named)
    cut = log_text.cut_call(lines)
    checked = log_text.checked_in_title(lines)
    if checked:
        return say("a check failed: {condition}", condition=checked)
    if cut is None:
        return say("the log ends inside a traceback, before its exception") if log_text.is_cut(lines) else None
    if raises := log_text.RAISES.match(cut.source):
        return say(
            "the log ends inside a traceback, before its exception; the last line of code raises {exception}: {words}",
            exception=raises["exception"],
            words=raises["words"],
        )
    if checks := log_text.CHECKS.match(cut.source):
        return say(
            "the log ends inside a traceback, before its exception; the last line of code checks that {condition}",
            condition=checks["condition"],
        )
    return say(
        "the log ends inside a traceback, before its exception; the last call it shows is {function}, {place}",
        function=cut.function,
        place=_raised_in(cut),
    )


def _own(calls: Sequence[Frame]) -> Frame | None:
    """The innermost call of the user's own code."""
    return next((call for call in reversed(calls) if call.package is None), None)


def _raised_in(call: Frame) -> str:
    return f"{call.package}, {call.place}" if call.package else call.place
