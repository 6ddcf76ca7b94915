"""Preferences as people store them: two answers of which one is better, or an answer with a judgement.

Each row of a dataset has one of these forms. The conversation around the answers is read as in conversations.py.

- `chosen` and `rejected` as texts, beside `prompt`, `question` or `instruction` (with `input`, `system`, `history`)
- both as messages: the answers beside a `prompt`, `messages` or `conversations`, or whole conversations
- both as transcripts: "Human: … Assistant: …"
- only the rejected one named, as `rejected_response`: the usual answer is the chosen one
- `prompt` and `completion`, or `messages`, with a `label` (`kto_tag`) that says whether the answer is good

A row that cannot be used ends the program with an error that gives its place and the reason.
"""

from __future__ import annotations

import itertools
import json

# feature: embedded_data
from collections.abc import Iterator

# end: embedded_data
from dataclasses import dataclass
from typing import Any

import conversations

# feature: embedded_data
import python_questions

# end: embedded_data
from conversations import (
    ANSWERS,
    QUESTIONS,
    ROLES,
    TALKS,
    Conversation,
    Message,
    conversation_of,
    in_list,
    parsed,
    shown,
    taken,
)
from transcripts import is_transcript, transcript

CHOSEN = ("chosen", "chosen_response", "chosen_messages", "preferred_output", "preferred")
REJECTED = ("rejected", "rejected_response", "rejected_messages", "non_preferred_output", "dispreferred")
LABELS = ("label", "kto_tag")
TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
RATINGS = {"overall_score", "score", "rating", "rank"}
ASKING = ("user", "system", "developer")
# feature: embedded_data
EMBEDDED_DISTANCE = 7  # distance between a question of the embedded data and the answer that is wrong for it
# end: embedded_data


@dataclass
class Preference:
    """The answers to one prompt."""

    chosen: Conversation | None
    """The conversation with the good answer, of which only the answer is learned."""
    rejected: Conversation | None
    """The one with the bad answer. None, of either: the row has one answer only."""
    columns: tuple[str, ...] = ()
    """The columns that were read."""
    reversed: str = ""
    """The columns of ratings by which the rejected answer is the better one."""
    place: str = ""
    """The file and line, or the row, for errors."""

    @property
    def answers(self) -> list[Conversation]:
        """The conversations that there are."""
        return [talk for talk in (self.chosen, self.rejected) if talk]


# feature: embedded_data
def embedded_preferences(split: str) -> Iterator[Preference]:
    """Yield questions about Python with the right answer, and with the answer to another question."""
    talks = [talk for talk in python_questions.embedded_conversations(split) if len(talk.messages) == 2]
    for i, talk in enumerate(talks):
        wrong = talks[(i + EMBEDDED_DISTANCE) % len(talks)].messages[1]
        other = Conversation([talk.messages[0], wrong], [False, True], talk.place)
        yield Preference(talk, other, place=talk.place)


# end: embedded_data
def preference_of(row: Any) -> Preference:
    """Return the preference of a row. Raises `ValueError` with the reason if it cannot be used."""
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object: {shown(row)}")
    columns = {name: value for name, value in row.items() if value is not None}
    names = [name for name, value in columns.items() if value not in ("", []) or name in (*CHOSEN, *REJECTED)]
    if isinstance(columns.get("input"), dict):  # OpenAI's form: the messages and tools are one column
        columns |= columns.pop("input")
    chosen, rejected = taken(columns, *CHOSEN), taken(columns, *REJECTED)
    if chosen is None and rejected is not None:
        chosen = usual_answer(columns, rejected)
    if chosen is None and rejected is None:
        found = judged(columns)
    elif chosen is None or rejected is None:
        there, lacking = ("rejected", "chosen") if chosen is None else ("chosen", "rejected")
        raise ValueError(f"it has a {there} answer, but no {lacking} one")
    else:
        found = compared(columns, answer_of(columns, chosen), answer_of(columns, rejected))
    ignored = set.intersection(*(talk.ignored for talk in found.answers))
    found.columns = tuple(name for name in names if name not in ignored)
    found.reversed = reversed_by(row)
    return found


def usual_answer(columns: dict[str, Any], rejected: Any) -> Any:
    """Remove and return the answer that is the good one where only a rejected one is named; None: there is none.

    ms-swift has it so: `messages` that end with an answer, or a `response`, beside `rejected_response` or
    `rejected_messages`.
    """
    name = next((name for name in TALKS if name in columns), None)
    if name is None:
        return taken(columns, *ANSWERS)
    talk = parsed(columns[name])
    start = last_answer([{**said, "role": ROLES.get(str(said.get("role", said.get("from"))).lower())} for said in talk])
    if start == len(talk):
        return None
    if isinstance(rejected, list) and is_whole(rejected):
        return columns.pop(name)
    columns[name] = talk[:start]
    return talk[start:]


def reversed_by(row: dict[str, Any]) -> str:
    """Return the columns, such as score_chosen and score_rejected, that rate the rejected answer higher; or nothing."""
    for name, good in row.items():
        other = name.replace("chosen", "rejected")
        rates = other != name and any(word in name for word in ("score", "rating"))
        numbers = [number(rating) for rating in (good, row.get(other))] if rates else []
        if numbers and None not in numbers and numbers[0] < numbers[1]:
            return f"{name}, {other}"
    return ""


def number(rating: Any) -> float | None:
    """Return a rating as a number, which a table holds as text; None: it is none."""
    try:
        return None if isinstance(rating, bool) or rating is None else float(rating)
    except (TypeError, ValueError):
        return None


def judged(columns: dict[str, Any]) -> Preference:
    """Return the preference of a row with one answer and a label."""
    names = ", ".join(columns)
    label = taken(columns, *LABELS)
    if label is None and (name := rated(columns)):
        raise ValueError(
            f"{name} holds {len(columns[name])} rated answers, which do not make a pair: write the best one as chosen "
            "and a worse one as rejected (UltraFeedback has them so in "
            "HuggingFaceH4/ultrafeedback_binarized::train_prefs)"
        )
    if label is None and (name := next((name for name in ANSWERS if of_texts(columns.get(name))), "")):
        raise ValueError(
            f"{name} is a list of texts, of which none is named as the better one; if that is always the first, set "
            f"data.columns to chosen={name}.0,rejected={name}.1"
        )
    if label is None:
        found = names or "no columns"
        raise ValueError(f"neither chosen and rejected answers nor an answer with a label; it has {found}")
    good = TRUTHS.get(str(label).strip().lower())
    if good is None:
        raise ValueError(f"the label is {label!r}; an answer is good (true, 1) or bad (false, 0)")
    talk = conversation_of(asked(columns))
    learn_from(talk, last_answer(talk.messages), "the row")
    return Preference(talk, None) if good else Preference(None, talk)


def of_texts(value: Any) -> bool:
    """Return whether a value is a list of several texts."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(text, str) for text in value)


def rated(columns: dict[str, Any]) -> str:
    """Return the column that holds several answers with a rating each, as UltraFeedback has them; empty: none does."""
    for name, value in columns.items():
        parts = [part.keys() if isinstance(part, dict) else set() for part in value] if isinstance(value, list) else []
        if parts and all(names & RATINGS and not names & {"role", "from"} for names in parts):
            return name
    return ""


def compared(columns: dict[str, Any], chosen: Any, rejected: Any) -> Preference:
    """Return the preference of a row with two answers."""
    if is_whole(chosen) != is_whole(rejected):
        raise ValueError("one of chosen and rejected is a whole conversation, and the other is an answer only")
    drop_repeated_answer(columns, chosen)
    if is_whole(chosen):
        drop_repeated(columns, chosen, rejected)
    good, bad = (conversation_of(joined(columns, answer)) for answer in (chosen, rejected))
    pairs = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(good.messages, bad.messages, strict=False)))
    shared = min(len(pairs), len(good.messages) - 1, len(bad.messages) - 1)
    if good.messages == bad.messages:  # reported, and kept: the loss is that of a model without a preference
        shared = last_answer(good.messages)
    if not any(message["role"] == "user" for message in good.messages[:shared]):
        raise ValueError("chosen and rejected do not begin with the same question")
    learn_from(good, shared, "chosen")
    learn_from(bad, shared, "rejected")
    return Preference(good, bad)


def last_answer(messages: list[Message]) -> int:
    """Return where the answer to the last question begins."""
    return 1 + max((i for i, message in enumerate(messages) if message["role"] in ASKING), default=-1)


def learn_from(talk: Conversation, start: int, name: str) -> None:
    """Let only what the assistant says from a message on be learned."""
    answers = [i for i in range(start, len(talk.messages)) if talk.messages[i]["role"] == "assistant"]
    if not answers or answers[-1] != len(talk.messages) - 1:
        raise ValueError(f"{name} does not end with an answer of the assistant")
    if start == 0:
        raise ValueError(f"{name} begins with the answer: there is no prompt")
    talk.learned = [i in answers for i in range(len(talk.messages))]
    talk.empty = sum(not any(talk.messages[i].get(field) for field in conversations.SAYS) for i in answers)


def answer_of(columns: dict[str, Any], answer: Any) -> Any:
    """Return an answer as text, or as a list of messages."""
    if isinstance(answer, dict):  # LLaMA-Factory's: one message
        return [answer]
    if not isinstance(answer, str):
        return answer
    if answer.lstrip().startswith("[{"):  # a table may hold messages as JSON text
        try:
            messages = json.loads(answer)
        except ValueError:
            messages = []
        if messages and all(isinstance(said, dict) and {"role", "from"} & said.keys() for said in messages):
            return parsed(answer)  # which refuses a key that is given twice
    asks = any(name in columns for name in (*QUESTIONS, *TALKS))
    return transcript(answer) if is_transcript(answer) and not asks else answer


def is_whole(answer: Any) -> bool:
    """Return whether an answer is a list of messages that begins with a question."""
    if not isinstance(answer, list):
        return False
    if not answer or not isinstance(answer[0], dict):
        raise ValueError(f"not a list of messages: {shown(answer)}")
    return ROLES.get(str(answer[0].get("role", answer[0].get("from"))).lower()) not in ("assistant", "call")


def drop_repeated_answer(columns: dict[str, Any], chosen: Any) -> None:
    """Remove the columns that repeat the chosen answer. Raises `ValueError` if one says something else."""
    last = chosen[-1] if isinstance(chosen, list) and chosen and isinstance(chosen[-1], dict) else {}
    said = str(last.get("content", last.get("value", chosen))).strip()
    for name in [name for name in ANSWERS if name in columns]:
        if columns[name] != chosen and str(columns[name]).strip() not in ("", said):
            raise ValueError(f"it has chosen and rejected answers and a further one in {name}; delete or rename it")
        del columns[name]


def drop_repeated(columns: dict[str, Any], chosen: Any, rejected: Any) -> None:
    """Remove the columns that repeat what both conversations say. Raises `ValueError` if they say something else."""
    for name in [name for name in (*QUESTIONS, *TALKS) if name in columns]:
        value = in_list(columns.pop(name))
        if value in ("", []):
            continue
        messages = parsed(value) if name in TALKS else value
        if isinstance(messages, str):
            said = [text.get("content", text.get("value")) for text in chosen if isinstance(text, dict)]
            repeats = is_transcript(messages) or messages.strip() in [str(text).strip() for text in said]
        else:
            repeats = messages in (chosen, rejected) or (
                messages == chosen[: len(messages)] and messages == rejected[: len(messages)]
            )
        if not repeats:
            raise ValueError(f"chosen is a whole conversation, and {name} is none of its messages: {shown(value)}")


def joined(columns: dict[str, Any], answer: Any) -> dict[str, Any]:
    """Return the row of the conversation that ends with an answer."""
    if is_whole(answer):
        return {**columns, "messages": answer}
    columns = asked(columns)
    name = next((name for name in TALKS if name in columns), None)
    if name is None and not any(question in columns for question in (*QUESTIONS, "input", "context")):
        found = ", ".join(columns) or "nothing else"
        raise ValueError(f"it has answers, and neither messages nor a question beside them; it has {found}")
    if name is None:
        return {**columns, "completion": answer}
    talk = parsed(columns.pop(name))
    if not isinstance(talk, list) or not talk:
        raise ValueError(f"{name} is not a list of messages: {shown(talk)}")
    if ROLES.get(str(talk[-1].get("role", talk[-1].get("from"))).lower()) == "assistant":
        raise ValueError(f"{name} ends with an answer, and chosen and rejected are further ones; delete it")
    messages = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
    return {**columns, "messages": talk + messages}


def asked(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns, with messages in place of a prompt that is a transcript."""
    columns = dict(columns)
    name = next((name for name in QUESTIONS if is_transcript(columns.get(name))), None)
    if name is None:
        return columns
    messages = transcript(columns.pop(name))
    if messages[-1] == {"role": "assistant", "content": ""}:  # where the answer goes
        messages.pop()
    return {**columns, "prompt": messages}


def notes_on(found: Preference) -> list[str]:
    """Return notes on a preference."""
    notes = [f"read from {', '.join(found.columns)}"] * bool(found.columns)
    if found.chosen and found.rejected and found.chosen.messages == found.rejected.messages:
        notes.append("chosen and rejected are equal, and nothing is learned from them")
    notes += [f"the rejected answer is rated higher than the chosen one: {found.reversed}"] * bool(found.reversed)
    notes += ["empty answers, of which only the end is learned"] * any(talk.empty for talk in found.answers)
    return notes
