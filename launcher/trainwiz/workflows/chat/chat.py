"""`trainwiz chat`: a conversation with a trained model; and `trainwiz sample`: what it makes of one prompt."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from trainwiz.errors import Cancelled, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.store.runs import LATEST
from trainwiz.ui import chat_output, console
from trainwiz.workflows.chat import answers, model
from trainwiz.workflows.chat.answers import STOPPED, Answer, Choice, Model
from trainwiz.workflows.chat.model import Wanted

_COMMAND = re.compile(r"/[a-z]+")


def chat(wanted: Wanted, choice: Choice, system: str) -> int:
    """Answer line by line until the input ends: from a terminal, or from a pipe, whose lines are the questions."""
    found = model.found(wanted)
    with answers.started(found, wanted.python) as session:
        chats = session.facts["chat"]
        if system and not chats:
            raise answers.problem({"problem": "no_template"})
        if not chats:
            chat_output.aside(t("its tokenizer has no chat template: it continues each line as a separate text"))
        if sys.stdin.isatty():
            _tell_commands(chats=chats)
        else:
            console.talk(t("reading questions from standard input, one per line, until it ends"), style="dim")
        return _converse(session, choice, system)


def told(target: str, prompts: list[str]) -> tuple[str, list[str]]:
    """Interprets the words of `sample`: a single one with spaces that names no path is a prompt."""
    lone = not prompts and any(map(str.isspace, target)) and not os.path.exists(os.path.expanduser(target))
    return (LATEST, [target]) if lone else (target, prompts)


def sample(wanted: Wanted, choice: Choice, prompts: list[str], *, times: int, raw: bool, as_json: bool) -> int:
    """Print what the model makes of each prompt, `times` over. `raw` continues the text even of a chat model."""
    if not prompts:
        if sys.stdin.isatty():
            raise UsageError(say("no prompt"), say('pass one: trainwiz sample DIR "Once upon a time"'))
        console.talk(t("reading the prompt from standard input, until it ends"), style="dim")
        prompts = [sys.stdin.read().rstrip("\n")]
        if not prompts[0].strip():  # known before a model is looked for and loaded
            raise UsageError(say("the prompt is empty"), say("pass a text: trainwiz sample DIR TEXT"))
    found = model.found(wanted)
    written = []
    with answers.started(found, wanted.python) as session:
        as_text = raw or not session.facts["chat"]
        for i, prompt in enumerate(prompt for prompt in prompts for _ in range(times)):
            question = {"text": prompt} if as_text else {"messages": [_message("user", prompt)]}
            # Each has a seed of its own, or all would be the same.
            own = choice if choice.seed is None else dataclasses.replace(choice, seed=choice.seed + i)
            if as_text and not as_json:
                chat_output.piece(prompt)
            answer = session.answer(question, own, (lambda _: None) if as_json else chat_output.piece)
            if as_json:
                written.append({"prompt": prompt, **vars(answer)})
            else:
                chat_output.end_answer()
                chat_output.notes(answer)
            if answer.reason == STOPPED:
                break
    if as_json:
        console.data_json(written, as_written=True)
    return Cancelled.exit_code if answer.reason == STOPPED else 0


def _converse(session: Model, choice: Choice, system: str) -> int:
    messages, chats = _begun(system), session.facts["chat"]
    failed = False
    for line in _lines():
        command, _, rest = line.partition(" ")
        if command == "/exit":
            break
        if chats and command in ("/reset", "/system"):
            system = rest.strip() if command == "/system" else system
            messages = _begun(system)
            console.talk(t("a new conversation"), style="dim")
            continue
        if sys.stdin.isatty() and _COMMAND.fullmatch(line):
            _tell_commands(chats=chats)
            continue
        if chats:
            answer = _answered(session, {"messages": [*messages, _message("user", line)]}, choice)
        else:
            answer = _answered(session, {"text": _message("user", line)["content"]}, choice)
        failed = answer is None
        if answer is not None:
            messages += [_message("user", line), _message("assistant", answer.text)]
        if sys.stdin.isatty():
            continue
        if failed:
            break
        if answer is not None and answer.reason == STOPPED:
            return Cancelled.exit_code
    return int(failed)


def _tell_commands(*, chats: bool) -> None:
    all_commands = t("/reset starts over, /system TEXT sets the system prompt, /exit or Ctrl-D quits")
    chat_output.aside(all_commands if chats else t("/exit or Ctrl-D quits"))


def _answered(session: Model, question: dict[str, Any], choice: Choice) -> Answer | None:
    """The answer, which was shown behind the text that it continues; None where there was none, which was said."""
    chat_output.piece(question.get("text", ""))
    try:
        answer = session.answer(question, choice, chat_output.piece)
    except answers.Unanswered as problem:
        if "text" in question:
            chat_output.end_answer()
        console.failure(problem)
        return None
    chat_output.end_answer()
    chat_output.notes(answer)
    return answer


def _begun(system: str) -> list[dict[str, str]]:
    return [_message("system", system)] if system else []


def _message(role: str, content: str) -> dict[str, Any]:
    # What is not valid UTF-8 comes from a terminal as surrogates, which no tokenizer reads.
    return {"role": role, "content": content.encode("utf-8", "replace").decode()}


def _lines() -> Iterator[str]:
    """What the user types, without empty lines, until the input ends."""
    if not sys.stdin.isatty():
        yield from filter(None, (line.strip() for line in sys.stdin))
        return
    with contextlib.suppress(ImportError):
        __import__("readline")  # then `input` edits the line, and arrows bring back what was typed
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            console.talk()
            return
        if line:
            yield line
