"""The questions, as data: what is asked, in which order, what it means, and which answers are legal.

A question settles one or several keys of the plan (`sets`). The basic ones are asked one after the other, all
can be answered in the review. `question_for` gives the one that changes a key.
"""

from __future__ import annotations

from trainwiz.questions.advanced import ADVANCED
from trainwiz.questions.basic import BASIC
from trainwiz.questions.table import Choice, Question, Values

__all__ = ["ADVANCED", "BASIC", "Choice", "Question", "Values", "question_for"]


def question_for(key: str) -> Question:
    """The question that changes this one key. Raises `KeyError` for a key that is never asked."""
    for question in (*ADVANCED, *BASIC):
        if question.sets == (key,):
            return question
    for question in BASIC:
        if key in question.sets:
            return question
    raise KeyError(key)
