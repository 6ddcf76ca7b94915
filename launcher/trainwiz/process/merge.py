"""Merging three versions of a text, with `git merge-file`; no repository is needed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainwiz.process.capture import capture

_SECONDS = 60.0
_MOST_CONFLICTS = 127
"""A larger exit code is an error (https://git-scm.com/docs/git-merge-file)."""


def three_way(base: str, ours: str, theirs: str, labels: Mapping[str, str]) -> tuple[str, int] | None:
    """The merged text and the number of its conflicts; None without git.

    Each conflict stands between markers, with the label of each version: "ours", "base", "theirs".
    """
    with tempfile.TemporaryDirectory(prefix="trainwiz-merge-") as folder:
        versions = {"ours": ours, "base": base, "theirs": theirs}
        for name, text in versions.items():
            (Path(folder) / name).write_text(text, encoding="utf-8", newline="")
        named = [word for name in versions for word in ("-L", labels[name])]
        done = capture(("git", "merge-file", "-p", "--diff3", *named, *versions), timeout=_SECONDS, cwd=folder)
    return (done.stdout, done.code) if 0 <= done.code < _MOST_CONFLICTS and not done.timed_out else None
