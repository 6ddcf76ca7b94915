"""`trainwiz check --fix`: make the changes that the findings propose, and show them as a diff before writing."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainwiz import config
from trainwiz.config import Document
from trainwiz.config.edit import edited
from trainwiz.finding import Finding, Level
from trainwiz.language import t, text
from trainwiz.store import atomic
from trainwiz.ui import console
from trainwiz.workflows.check.configurations import Files

_MOST = 200
"""Changes; a file that still has something to mend then is going round in circles."""


# docs/decisions/files.md: `--fix` changes only what needs no question
def mended(files: Files, select: Sequence[str], ignore: Sequence[str]) -> Files:
    """The files after every fix of an error or a warning that can be made with certainty, one after the other."""
    tried: set[tuple[object, ...]] = set()
    for _ in range(_MOST):
        for finding in files.findings(select, ignore):
            name = (finding.file, finding.rule, finding.where)
            changes = _changes(finding)
            if not changes or name in tried:
                continue
            tried.add(name)
            path = finding.file or ""
            after = edited(files.documents[path], changes)
            if after is not None and after != files.documents[path].text:
                documents = {**files.documents, path: config.read(path, after)}
                files = dataclasses.replace(files, documents=documents)
                break
        else:
            break
    return files


def mended_plan(document: Document, found: Sequence[Finding]) -> str:
    """A plan's text with every change that its findings propose and that makes the plan they mean.

    The comment behind each changed value says which rule changed it, and why.
    """
    from trainwiz.store import plans  # here, since it imports pydantic, which files of other tools do without

    for finding in found:
        if changes := _changes(finding):
            reason = f"check --fix: {finding.rule}: {text(finding.message)}"
            document = plans.changed(document, changes, reason=reason) or document
    return document.text


def _changes(finding: Finding) -> Mapping[str, object]:
    """What a finding changes without asking; nothing for a hint."""
    return finding.fix.changes if finding.fix and finding.level is not Level.HINT else {}


def apply(before: Mapping[str, str], after: Mapping[str, str], *, confirmed: bool) -> bool:
    """Show what changes, ask, and write. Whether it was written; without a terminal only `confirmed` writes."""
    changed = {path: new for path, new in after.items() if new != before[path]}
    for path, new in changed.items():
        old = before[path].splitlines()
        console.talk_diff(difflib.unified_diff(old, new.splitlines(), path, path, lineterm=""))
    if not changed:
        console.talk(t("nothing can be fixed without knowing what you intend"))
        return False
    if not confirmed and not _asked():
        console.talk(t("nothing was written; add --yes to write the changes"))
        return False
    for path, new in changed.items():
        atomic.write(Path(path), new)
        console.talk(t("{path}: written", path=path))
    return True


def _asked() -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    console.talk(t("Write these changes? [y/N]"))
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是")
