"""The questions, as data: what is asked, in which order, what it means, and which answers are legal.

A question settles one or several keys of the plan (`sets`). The basic ones come first, the advanced ones behind one
gate. `question_for` gives the one that a key is changed by, `key_help` the entry of every key for `explain keys`.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.message import Message
from trainwiz.questions.advanced import ADVANCED
from trainwiz.questions.basic import BASIC
from trainwiz.questions.table import Choice, Question, Values

__all__ = ["ADVANCED", "BASIC", "Choice", "Question", "Values", "key_help", "question_for"]


def question_for(key: str) -> Question:
    """The question that changes this one key. Raises `KeyError` for a key that is never asked."""
    for question in (*ADVANCED, *BASIC):
        if question.sets == (key,):
            return question
    for question in BASIC:
        if key in question.sets:
            return question
    raise KeyError(key)


def key_help() -> Mapping[str, Message]:
    """What, when and cost of every key that can be answered, in the plan's order."""
    return {q.key: q.help for q in sorted((*BASIC, *ADVANCED), key=_plan_order)}


def _plan_order(question: Question) -> int:
    sections = (
        "task",
        "engine",
        "seed",
        "model",
        "data",
        "machine",
        "strategy",
        "precision",
        "batch",
        "schedule",
        "optimizer",
        "checkpoint",
        "tracking",
        "supervision",
    )
    return sections.index(question.section)
