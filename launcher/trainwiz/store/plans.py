"""Reading plans, with each mistake explained by file, line and column, and changing values in a plan's text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz import config
from trainwiz import plan as plans
from trainwiz.config import Document
from trainwiz.config.edit import edited as edited_text
from trainwiz.config.edit import with_comment
from trainwiz.errors import PlanError, UsageError
from trainwiz.finding import Fix, Place, Violation, remedy
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.render import PLAN_FILE
from trainwiz.shell_words import quoted
from trainwiz.store import configurations


def find(folder: str | Path) -> Path:
    """The plan of a project: `folder/trainwiz.yaml`, or `folder` itself where it is a file. Raises `UsageError`."""
    path = Path(folder)
    if path.is_file():
        return path
    if (path / PLAN_FILE).is_file():
        return path / PLAN_FILE
    if not path.exists():
        raise UsageError(
            say("folder {folder} does not exist", folder=path),
            say("create a project there: `trainwiz init {folder}`", folder=quoted(path)),
        )
    if not path.is_dir():
        raise UsageError(say("{path} is not a regular file", path=path))
    raise UsageError(
        say("{folder} is not a project: it contains no {file}", folder=path, file=PLAN_FILE),
        say(
            "change to a project folder or pass one, or create a project: trainwiz init {folder}",
            folder=quoted(path),
        ),
    )


def read(path: str | Path) -> Plan:
    """The plan in a file. Raises `UsageError` where it cannot be read, `PlanError` naming every wrong value."""
    return parse(document(path))


def document(path: str | Path) -> Document:
    """The text and the values of a file. Raises `UsageError`, with the line, where there are no values to read."""
    found = configurations.readable(configurations.read(str(path)))
    for duplicate in found.duplicates:
        first, last = found.at(duplicate.first), found.at(duplicate.last)
        message = say(
            "{file}: {key} appears twice, on lines {first} and {second}",
            file=found.path,
            key=".".join(duplicate.path),
            first=first.line,
            second=last.line,
        )
        raise UsageError(message, say("delete one of them"), place=last)
    return found


def parse(document: Document) -> Plan:
    """The plan that a document's values make. Raises `PlanError` with the line of every wrong value."""
    try:
        return plans.parse(document.values, document.path)
    except PlanError as error:
        raise _located(error, document) from None


def values_of(document: Document) -> dict[str, Any]:
    """The values that a document gives, by dotted key, whether they make a whole plan or not.

    Raises `PlanError` with the line of every wrong value.
    """
    try:
        return plans.parse_values(plans.dotted(document.values))
    except PlanError as error:
        raise _located(error, document) from None


def _located(error: PlanError, document: Document) -> PlanError:
    places = places_of(document, error.problems)
    problems = [
        say("line {line}: {problem}", line=place.line, problem=problem) if place else problem
        for problem, place in zip(error.problems, places, strict=True)
    ]
    head = error.message if error.remedy else None
    return PlanError(problems, document.path, head=head, remedy=_remedy(error, document), places=places)


def _remedy(error: PlanError, document: Document) -> Message | None:
    """What to type where keys are missing: in a project, init takes the plan's values as answers by itself."""
    path = Path(document.path)
    if error.remedy is None or path.name != PLAN_FILE:
        return error.remedy
    return say(
        "run: trainwiz init {folder}; it keeps the values in the file and decides the rest (--defaults --yes: "
        "without questions)",
        folder=quoted(path.parent),
    )


def places_of(document: Document, problems: Sequence[Message]) -> list[Place | None]:
    """The place of the key that each problem names; None for a key that the document does not have."""
    keys = [str(problem.values.get("key") or "") for problem in problems]
    named = [(key,) in document.entries or (key.partition(".")[0],) in document.entries for key in keys]
    return [document.place(key) if known else None for key, known in zip(keys, named, strict=True)]


def mistakes(document: Document) -> tuple[Violation, ...]:
    """Why a readable document is not a plan: keys given twice, wrong values, missing keys."""
    duplicates = []
    for duplicate in document.duplicates:
        first, path = document.at(duplicate.first), ".".join(duplicate.path)
        message = say("{key} is already set on line {first}", key=path, first=first.line)
        fix = remedy("delete line {first} or this one", first=first.line)
        duplicates.append(Violation(message, fix, where=path, place=document.at(duplicate.last)))
    try:
        plans.parse(document.values, document.path)
        wrong = []
    except PlanError as error:
        keys = [str(problem.values.get("key") or "") for problem in error.problems]
        advice = _remedy(error, document)
        completion = Fix(message=advice) if advice else None
        wrong = [
            Violation(problem, completion, where=key or None, place=document.place(key))
            for key, problem in zip(keys, error.problems, strict=True)
        ]
    return (*duplicates, *wrong)


def reasons(text: str) -> dict[str, str]:
    """The comment behind each value of a plan's text, by dotted key; nothing for a text that cannot be read."""
    return dict(_comments(config.read(PLAN_FILE, text)))


def _comments(document: Document) -> Iterator[tuple[str, str]]:
    for path, entry in document.entries.items():
        if entry.key and "\n" not in document.text[entry.key.start : entry.value.end].rstrip():
            line_end = document.text.find("\n", entry.value.end)
            behind = document.text[entry.value.end : line_end if line_end >= 0 else None].strip()
            if behind.startswith("#"):
                yield ".".join(path), behind[1:].strip()


def changed(document: Document, changes: Mapping[str, Any], *, reason: str) -> Document | None:
    """A plan's document with values changed where they are, each with the reason in place of its old one.

    The document need not make a whole plan. None where its text cannot be changed so that it says exactly the values
    that are meant, or where one of them is not legal.
    """
    text = edited_text(document, changes, reason=reason, keep_null=True)
    if text is None:
        return None
    after = config.read(document.path, text)
    try:
        meant = plans.parse_values({**values_of(document), **changes})
        return after if values_of(after) == meant else None
    except PlanError:
        return None


def completed(document: Document, plan: Plan, reasons: Mapping[str, str]) -> str | None:
    """The text of a document that says a part of this plan, with each missing key added behind its section's others.

    A text that says the whole plan is returned as it is. None for a document that says anything else, or whose text
    cannot be completed. `reasons` holds the comments of the added values by dotted key.
    """
    try:
        given = values_of(document)
        if any(plan.get(key) != value for key, value in given.items()):
            return None
    except PlanError:
        return None
    missing = {key: value for key, value in plans.flat(plan).items() if key not in given and value != {}}
    if not any(plans.fields()[key].is_required() for key in missing):
        return document.text
    after = document
    for key, value in missing.items():
        text = edited_text(after, {key: value}, reason=reasons.get(key, ""), keep_null=True)
        if text is None:
            return None
        after = config.read(document.path, text)
    return after.text


def refreshed(document: Document, plan: Plan, reasons: Mapping[str, str], before: Mapping[str, str]) -> str:
    """The text of a document with this plan's values and the reasons for them.

    Comments that are not as they were generated (`before`, by dotted key) stay, unless their value changes. A key that
    the document leaves out is added where its value is not the one that leaving it out means. Raises `UsageError` for
    a text that cannot be edited so.
    """
    given, comments = values_of(document), dict(_comments(document))
    after = document
    for key, value in plans.flat(plan).items():
        field = plans.fields()[key]
        if given.get(key, field.get_default(call_default_factory=True)) != value:
            text = edited_text(after, {key: value}, reason=reasons.get(key, ""), keep_null=True)
            if text is None:
                raise _not_in_place(document.path)
            after = config.read(document.path, text)
        elif key in comments and comments[key] == before.get(key) != reasons.get(key, ""):
            after = with_comment(after, key, reasons.get(key, ""))
    if parse(after) != plan:
        raise _not_in_place(document.path)
    return after.text


def _not_in_place(path: str | Path) -> UsageError:
    return UsageError(
        say("{file} cannot be edited in place", file=path),
        say("write its sections as nested keys, as trainwiz init does"),
    )


def edited(path: str | Path, changes: Mapping[str, Any], *, comment: str) -> str:
    """A plan's text with values changed where they are, and the comment as their reason; all else stays.

    Raises `UsageError` for a file that is written in a way that cannot be changed so.
    """
    after = changed(document(path), changes, reason=comment)
    if after is None:
        raise _not_in_place(path)
    return after.text
