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
from trainwiz.finding import Finding, Level, errors
from trainwiz.language import t, text
from trainwiz.store import atomic
from trainwiz.ui import console
from trainwiz.workflows.check.configurations import Files

_MOST = 200
"""The most changes; a file that needs more is going round in circles."""


# docs/decisions/files.md: `--fix` changes only what needs no question
def fixed(files: Files, select: Sequence[str], ignore: Sequence[str], *, unsafe: bool) -> Files:
    """The files after every fix of an error or a warning that leaves no error more, one after the other.

    Without `unsafe`, only those that need no question.
    """
    tried: set[tuple[object, ...]] = set()
    for _ in range(_MOST):
        found = files.findings(select, ignore)
        for finding in found:
            name = (finding.file, finding.rule, finding.where)
            if name in tried or not _changes(finding, unsafe=unsafe):
                continue
            tried.add(name)
            after = _after(files, finding)
            if after is not None and len(errors(after.findings(select, ignore))) <= len(errors(found)):
                files = after
                break
        else:
            break
    return files


def _after(files: Files, finding: Finding) -> Files | None:
    """The files after one fix; None where it cannot be made with certainty, or changes nothing."""
    path, fix = finding.file or "", finding.fix
    text = edited(files.documents[path], fix.changes) if fix else None
    if text is None or text == files.documents[path].text:
        return None
    return dataclasses.replace(files, documents={**files.documents, path: config.read(path, text)})


def fixed_plan(document: Document, found: Sequence[Finding], *, unsafe: bool) -> str:
    """A plan's text with every change that its findings propose and that makes the plan they mean.

    The comment behind each changed value says which rule changed it, and why.
    """
    from trainwiz.store import plans  # here, since it imports pydantic, which files of other tools do without

    for finding in found:
        if changes := _changes(finding, unsafe=unsafe):
            reason = f"check --fix: {finding.rule}: {text(finding.message)}"
            document = plans.changed(document, changes, reason=reason) or document
    return document.text


def _changes(finding: Finding, *, unsafe: bool) -> Mapping[str, object]:
    """What a finding changes; nothing for a hint, and nothing that may need a question unless `unsafe`."""
    fix = finding.fix
    return fix.changes if fix and finding.level is not Level.HINT and (fix.safe or unsafe) else {}


def tell_of_unsafe(findings: Sequence[Finding]) -> None:
    """Say how many of the fixes for what is left would change more than is certain."""
    n = sum(bool(_changes(finding, unsafe=True)) and not _changes(finding, unsafe=False) for finding in findings)
    if n:
        console.talk(t("{n} more fixes may change what is trained; to see them: --fix --unsafe-fixes", n=n))


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
