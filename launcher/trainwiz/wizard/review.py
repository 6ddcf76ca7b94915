"""The review: every value with its source, and a way to change each line before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.message import Message
from trainwiz.questions import question_for
from trainwiz.vocabulary import spelled
from trainwiz.wizard.interview import REVIEW, Interview, wrapped
from trainwiz.wizard.terminal import Action, Asked, size

if TYPE_CHECKING:
    from trainwiz.decide import Decided, Source

WRITE = "write"
_WIDE_ENOUGH = 60


def review(interview: Interview) -> None:
    """Show the whole plan until the person accepts it. A chosen line is asked again; `<` goes back to the questions."""
    pointed_at = WRITE
    while True:
        interview.save(interview.answers, REVIEW)
        lines = rows(interview.decided())
        reply = interview.ask(
            Asked(
                prompt=t("The plan: press Enter to write it, or choose a line to change"),
                default=pointed_at,
                choices=((WRITE, t("write the project")), *lines.items()),
            ),
            None,
        )
        chosen = reply.value or pointed_at
        if reply.action is Action.BACK:
            interview.run(interview.last_step())
        elif reply.action is Action.HELP:
            interview.talk(_explained(reply.at, lines))
        elif chosen == WRITE:
            return
        else:
            interview.answer(question_for(chosen))
        pointed_at = WRITE if reply.action is Action.BACK else reply.at or chosen


def rows(decided: Decided) -> Mapping[str, str]:
    """One line per key that can be asked: the value, where it comes from, and why."""
    from trainwiz.plan import fields

    asked = [key for key in fields() if _is_asked(key)]
    # On a narrow terminal, aligned columns would leave no room for the values.
    width, room = (max(map(len, asked)), 14) if size().columns >= _WIDE_ENOUGH else (0, 0)
    shown = {}
    for key in asked:
        value = decided.plan.get(key)
        words = columns.pad("–" if value is None else spelled(value), room)
        shown[key] = f"{key:<{width}} {words} {said_source(decided.sources[key])}"
    return shown


def said_source(source: Source) -> str:
    """Where a value comes from, and why."""
    kinds = {"found": t("found"), "default": t("default"), "yours": t("yours"), "file": t("file")}
    return f"{kinds[source.kind]}: {text(source.reason)}"


def _is_asked(key: str) -> bool:
    try:
        return bool(question_for(key))
    except KeyError:
        return False


def _explained(key: str, lines: Mapping[str, str]) -> str:
    if key in ("", WRITE):
        return wrapped(t("Nothing is written until you choose to write. You can also edit trainwiz.yaml later."))
    # A narrow terminal cuts the reason off in the list; here all of it is shown.
    return "\n".join([wrapped(" ".join(lines[key].split())), wrapped(Message(question_for(key).help))])
