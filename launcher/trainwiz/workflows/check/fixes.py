"""`trainwiz check --fix`: what the findings would change, as a diff first."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainwiz.language import t
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.finding import Finding
    from trainwiz.workflows.check.configurations import Files

_MOST = 200
"""Changes; a file that still has something to mend then goes round in circles."""


def mended(files: Files, select: Sequence[str], ignore: Sequence[str]) -> Files:
    """The files after every fix of an error or a warning that can be made without a doubt, one after the other."""
    from trainwiz import config
    from trainwiz.config.edit import edited
    from trainwiz.finding import Level

    tried: set[tuple[object, ...]] = set()
    for _ in range(_MOST):
        for finding in files.findings(select, ignore):
            name = (finding.file, finding.rule, finding.where)
            if not finding.fix or not finding.fix.changes or finding.level is Level.HINT or name in tried:
                continue
            tried.add(name)
            path = finding.file or ""
            text = edited(files.documents[path], finding.fix.changes)
            if text is not None and text != files.documents[path].text:
                documents = {**files.documents, path: config.read(path, text)}
                files = dataclasses.replace(files, documents=documents)
                break
        else:
            break
    return files


def mended_plan(path: str, found: Sequence[Finding]) -> tuple[str, str]:
    """A plan's text, and the same with every change that its findings propose and that makes the plan they mean."""
    from trainwiz import config
    from trainwiz import plan as plans
    from trainwiz.config.edit import edited
    from trainwiz.errors import PlanError
    from trainwiz.finding import Level
    from trainwiz.store import configurations

    before = document = configurations.read(path)
    for finding in found:
        if not finding.fix or not finding.fix.changes or finding.level is Level.HINT:
            continue
        text = edited(document, finding.fix.changes)
        if text is None:
            continue
        changed = config.read(path, text)
        try:
            meant = plans.with_changes(plans.parse(document.values, path), finding.fix.changes)
            if plans.parse(changed.values, path) == meant:
                document = changed
        except PlanError:
            continue
    return before.text, document.text


def apply(before: Mapping[str, str], after: Mapping[str, str], *, confirmed: bool) -> bool:
    """Show what changes, ask, and write. Whether it was written; without a terminal only `confirmed` writes."""
    from trainwiz.store import configurations

    changed = {path: text for path, text in after.items() if text != before[path]}
    for path, text in changed.items():
        _show(path, before[path], text)
    if not changed:
        console.talk(t("nothing that could be changed without asking what is meant"))
        return False
    if not confirmed and not _asked():
        console.talk(t("nothing was written; --yes writes it"))
        return False
    for path, text in changed.items():
        configurations.write(path, text)
        console.talk(t("{path}: written", path=path))
    return True


def _show(path: str, old: str, new: str) -> None:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    for line in lines:
        console.talk(line, style={"-": "error", "+": "good"}.get(line[:1]))


def _asked() -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    console.talk(t("Write this? [y/N]"))
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是")
