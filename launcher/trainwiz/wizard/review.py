"""The review: every value with its source, and a way to change each line before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.message import Message
from trainwiz.questions import question_for
from trainwiz.questions.training import never
from trainwiz.vocabulary import spelled
from trainwiz.wizard import summary
from trainwiz.wizard.interview import REVIEW, Interview, wrapped
from trainwiz.wizard.terminal import Action, Asked, size

if TYPE_CHECKING:
    from trainwiz.decide import Decided, Source

WRITE, DETAILS, SUMMARY = "write", "details", "summary"
_WIDE_ENOUGH = 60


def review(interview: Interview) -> None:
    """Show the plan until the person accepts it. A chosen line is asked again; `<` goes back to the questions."""
    details, pointed_at = False, WRITE
    while True:
        interview.save(interview.answers, REVIEW)
        decided = interview.decided()
        lines = rows(decided) if details else summary.lines(decided)
        reply = interview.put(_asked(decided, lines, pointed_at, details=details))
        chosen = reply.value or pointed_at
        if reply.action is Action.HELP:
            interview.talk(_explained(reply.at, rows(decided)))
            pointed_at = reply.at
        elif reply.action is Action.BACK and details:
            details, pointed_at = False, DETAILS
        elif reply.action is Action.BACK:
            interview.go_back()
            pointed_at = WRITE
        elif chosen == WRITE:
            return
        elif chosen in (DETAILS, SUMMARY):
            details, pointed_at = chosen == DETAILS, WRITE if chosen == SUMMARY else SUMMARY
        else:
            # A line of the short list stands for more than its key.
            interview.answer(question_for(chosen)) if details else interview.change(chosen)
            # In the short list, Enter then writes; in the long one, a neighbor may be next.
            pointed_at = chosen if details else WRITE


def _asked(decided: Decided, lines: Mapping[str, str], pointed_at: str, *, details: bool) -> Asked:
    if details:
        other = (SUMMARY, t("back to the summary"))
        choices = ((WRITE, t("write the project")), other, *lines.items())
    else:
        other = (DETAILS, t("details: all {n} values that matter to this plan", n=len(rows(decided))))
        choices = ((WRITE, t("write the project")), *lines.items(), other)
    return Asked(
        prompt=t("The plan: press Enter to write it, or choose a line to change"),
        default=pointed_at if pointed_at in dict(choices) else WRITE,
        choices=choices,
        search=details,
        words={key: _words(key) for key in lines} if details else {},
        at_once=WRITE,
    )


def rows(decided: Decided) -> Mapping[str, str]:
    """One line per key that matters to this plan: the value, where it comes from, and why."""
    from trainwiz.plan import fields

    asked = [key for key in fields() if _matters(key, decided)]
    # On a narrow terminal, aligned columns would leave no room for the values.
    width, room = (max(map(len, asked)), 14) if size().columns >= _WIDE_ENOUGH else (0, 0)
    shown = {}
    for key in asked:
        value = decided.plan.get(key)
        words = columns.pad("–" if value is None else spelled(value), room)
        shown[key] = f"{key:<{width}} {words} {said_source(decided.sources[key])}"
    return shown


def _words(key: str) -> tuple[str, str]:
    """What a key's line is found by besides what it shows: its question, and the answers to choose from."""
    question = question_for(key)
    answers = [f"{choice.value} {_bilingual(choice.label)}" for choice in question.choices]
    return f"{key} {_bilingual(question.prompt)}", " ".join(answers)


def _bilingual(words: Message) -> str:
    """Words with the English ones, by which people search whatever their language is."""
    shown = text(words)
    return shown if shown == words.template else f"{shown} {words.template}"


def said_source(source: Source) -> str:
    """Where a value comes from, and why."""
    kinds = {"found": t("found"), "default": t("default"), "yours": t("yours"), "file": t("file")}
    return t("{source}: {reason}", source=kinds[source.kind], reason=text(source.reason))


def _matters(key: str, decided: Decided) -> bool:
    """Whether a key can be asked, and its value changes anything in this plan, or is somebody's answer."""
    from trainwiz.plan import flat

    try:
        question = question_for(key)
    except KeyError:
        return False
    if decided.sources[key].kind in ("yours", "file"):
        return True
    # The keys that another question sets together with its own are never asked alone.
    return decided.plan.get(key) is not None if question.when is never else question.when(flat(decided.plan))


def _explained(key: str, lines: Mapping[str, str]) -> str:
    if key not in lines:
        return wrapped(t("Nothing is written until you choose to write. You can also edit trainwiz.yaml later."))
    # A narrow terminal cuts the reason off in the list; here all of it is shown.
    return "\n".join([wrapped(" ".join(lines[key].split())), wrapped(Message(question_for(key).help))])
