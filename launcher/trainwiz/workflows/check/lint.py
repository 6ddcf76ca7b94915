"""`trainwiz lint`: judge training scripts by their text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from trainwiz import rules
from trainwiz.errors import UsageError
from trainwiz.finding import Edit, Finding, Level, Place, errors
from trainwiz.message import Message, say
from trainwiz.process import pool
from trainwiz.rules import selection
from trainwiz.script import Script
from trainwiz.store import scripts as store
from trainwiz.ui import console, findings

_Refusal = tuple[Message, Message | None, Place | None]
"""Why a script cannot be read: an exception, as it comes from another process."""


def lint(
    scripts: Sequence[str],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    format: str = "",
    json: bool,
    fix: bool = False,
    yes: bool = False,
) -> int:
    """Lint, fix if asked to, and return the exit code: 1 on a finding of level error, 2 where a script cannot be read.

    Of several scripts, the others are judged nevertheless. Raises `UsageError`.
    """
    chosen_format = findings.chosen_format(format, as_json=json)
    if not scripts:
        raise UsageError(say("no script given"), say("run: trainwiz lint train.py"))
    store.refresh_modules()
    wanted, left_out = selection.prefixes(select) or ("TW",), selection.prefixes(ignore)
    if fix:
        _fix(list(dict.fromkeys(scripts)), wanted, left_out, yes=yes)
        store.refresh_modules()
    # Each is read and let go again: thousands of parsed scripts would fill gigabytes.
    judge = functools.partial(_of_file, wanted=wanted, left_out=tuple(left_out))
    with pool.rarely_collecting():
        judged = list(pool.mapped(judge, [*dict.fromkeys(scripts)]))
    refused = [UsageError(result[0], result[1], place=result[2]) for result in judged if isinstance(result, tuple)]
    if refused and len(refused) == len(judged):
        raise refused[0]
    named = [finding for result in judged if isinstance(result, list) for finding in result]
    found = list({(f.rule, f.place, str(f.message)): f for f in named}.values())
    findings.write(found, chosen_format)
    for error in refused:
        console.failure(error)
    return 2 if refused else 1 if errors(found) else 0


# docs/decisions/files.md: `--fix` changes only what needs no question
def _fix(paths: Sequence[str], wanted: tuple[str, ...], left_out: Sequence[str], *, yes: bool) -> None:
    """Make the changes of one finding after the other, as long as each leaves fewer findings than there were."""
    from trainwiz.workflows.check import fixes  # here, since it imports what only configurations need

    before = {path: store.read_text(path) for path in paths}
    after = {path: _fixed(path, text, wanted, left_out) for path, text in before.items()}
    fixes.apply(before, after, confirmed=yes)


def _fixed(path: str, text: str, wanted: tuple[str, ...], left_out: Sequence[str]) -> str:
    found = _findings(store.with_modules(path, text), wanted, left_out)
    refused: set[Edit] = set()
    while edits := [e for f in found for e in _edits(f) if e.file == path and e not in refused]:
        changed = _edited(text, edits[0])
        refused.add(edits[0])
        try:
            left = _findings(store.with_modules(path, changed), wanted, left_out)
        except UsageError:
            continue  # it would no longer be Python
        if len(left) < len(found):
            text, found, refused = changed, left, set()
    return text


def _edits(finding: Finding) -> tuple[Edit, ...]:
    return finding.fix.edits if finding.fix and finding.level is not Level.HINT else ()


def _edited(text: str, edit: Edit) -> str:
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    return "".join([*lines[: edit.first - 1], *(line + end for line in edit.lines), *lines[edit.last :]])


def _findings(script: Script | None, wanted: tuple[str, ...], left_out: Sequence[str]) -> list[Finding]:
    """What the rules find, from the first line to the last; comments in the script leave rules out."""
    if script is None:
        return []
    found = rules.check(rules.Facts(script=script), rules=_chosen(wanted), ignore=left_out)
    kept = [f for f in found if f.place is None or _is_meant(script, f.rule, f.place)]
    order = [part.file for part in reversed(script.parts)]
    return sorted(
        kept, key=lambda f: (order.index(f.place.file), f.place.line, f.place.column) if f.place else (0, 0, 0)
    )


def _is_meant(script: Script, rule: str, place: Place) -> bool:
    """Whether no comment leaves a finding out, and the script may come to its place."""
    return not script.ignores(rule, place) and script.is_reached(place)


@functools.cache
def _chosen(wanted: tuple[str, ...]) -> tuple[rules.Rule, ...]:
    return tuple(rule for rule in rules.of_scripts() if rule.id.startswith(wanted))


def _of_file(path: str, wanted: tuple[str, ...], left_out: tuple[str, ...]) -> list[Finding] | _Refusal:
    try:
        return _findings(store.with_modules(path), wanted, left_out)
    except UsageError as error:
        return error.message, error.remedy, error.place
