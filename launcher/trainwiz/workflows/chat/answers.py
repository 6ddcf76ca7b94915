"""A model that was started, and its answers as they come."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.probe import chat, interpreter
from trainwiz.process.dialogue import Dialogue
from trainwiz.ui import chat_output
from trainwiz.workflows.chat.model import Answerer

STOPPED = "stopped"


class Unanswered(TrainwizError):
    """The model cannot answer this; it can be asked something else."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the tokens of an answer are chosen."""

    max_tokens: int = 512
    """The most tokens of an answer."""
    temperature: float = 0.7
    """0 always takes the most likely token."""
    top_p: float = 0.9
    """The share of probability that is chosen from."""
    seed: int | None = None
    """Makes answers repeatable; None: they differ."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer."""

    text: str
    """All of it, decoded."""
    tokens: int
    """How many were written."""
    seconds: float
    """That it took."""
    reason: str
    """Why it ended: `end`, `length` or `stopped`."""


class Model:
    """A model that answers one question after another."""

    def __init__(self, dialogue: Dialogue, facts: Mapping[str, Any]) -> None:
        self._dialogue = dialogue
        self.facts = facts

    def answer(self, question: Mapping[str, Any], choice: Choice, write: Callable[[str], None]) -> Answer:
        """Ask, and write each piece as it comes. The first Ctrl-C ends the answer only. Raises `TrainwizError`."""
        self._dialogue.send({**question, **vars(choice)})
        pieces: list[str] = []
        with self._dialogue.on_interrupt({"stop": True}):
            while said := self._dialogue.receive():
                if "problem" in said:
                    raise problem(said)
                if "end" in said:
                    return Answer(text="".join(pieces), **said["end"])
                pieces.append(said["piece"])
                write(said["piece"])
        raise _died(self._dialogue)


@contextlib.contextmanager
def started(answerer: Answerer, python: str | None) -> Iterator[Model]:
    """Load the model in the Python that trains. Raises `TrainwizError`."""
    executable = interpreter.located(python or sys.executable)
    chat_output.aside(t("loading {folder}", folder=os.path.relpath(answerer.folder)))
    argv = [executable, str(chat.PROGRAM), str(answerer.folder), answerer.device]
    try:
        dialogue = Dialogue(argv, cwd=str(answerer.cwd), environ={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
    except OSError as error:
        raise TrainwizError(
            say("{python} could not be started: {problem}", python=executable, problem=error.strerror or error)
        ) from None
    with dialogue:
        first = dialogue.receive()
        if first is None:
            raise _died(dialogue)
        if "problem" in first:
            raise problem(first)
        facts = first["ready"]
        chat_output.aside(
            t(
                "{n:,} parameters in {dtype} on {device}",
                n=facts["parameters"],
                dtype=facts["dtype"],
                device=facts["device"],
            )
        )
        yield Model(dialogue, facts)


def _died(dialogue: Dialogue) -> TrainwizError:
    return TrainwizError(
        say("the model's process ended: {problem}", problem=dialogue.last_line or t("it produced no output")),
        say("if memory ran out, try --cpu, or a machine with more memory"),
    )


def problem(said: Mapping[str, Any]) -> Unanswered:
    """What the program said of a problem, for the person."""
    detail = said.get("detail", "")
    told: dict[str, tuple[Message, Message | None]] = {
        "no_tokenizer": (
            say("cannot load the tokenizer in the model's folder: {detail}", detail=detail),
            say("copy tokenizer.json and tokenizer_config.json from the model that it was trained from"),
        ),
        "not_loaded": (say("the model was not loaded: {detail}", detail=detail), None),
        "no_template": (
            say("its tokenizer has no chat template: this model continues texts, and was not trained to answer"),
            say("remove --system: the model then continues each line"),
        ),
        "refused": (say("the chat template rejects the conversation: {detail}", detail=detail), None),
        "too_long": (
            say(
                "the conversation has {n} tokens, but the model is limited to {room}, including its answer",
                n=said.get("tokens"),
                room=said.get("room"),
            ),
            say("start a new one: /reset"),
        ),
        "empty": (say("the prompt is empty"), None),
    }
    message, remedy = told.get(said["problem"], (say("the model failed: {detail}", detail=detail), None))
    return Unanswered(message, remedy)
