"""The state of the code in a folder according to git: the commit, and the changes since."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from trainwiz.process.capture import capture

SECONDS = 10.0
"""Enough for a large repository on a slow file system; only the record waits for it."""
_MANY = 50


@dataclass(frozen=True, kw_only=True)
class Code:
    """The state of the code."""

    commit: str | None = None
    """None: there is no commit yet."""
    branch: str | None = None
    """None: the head is detached."""
    dirty: int | None = None
    """The number of files below the folder that differ from the commit or are not in it."""
    changed: tuple[str, ...] = ()
    """Their paths, at most 50."""
    problem: str | None = None
    """Why nothing is known: no git, no repository, no answer in time."""


def state(folder: str, *, without: str = "", timeout: float = SECONDS, git: str = "git") -> Code:
    """Ask git, once. Git then writes nothing and starts no file-system monitor; its filters of contents may run.

    `without` is a path below the folder that holds no code, such as the files that trainwiz writes.
    """
    quiet = ["-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]
    asked = ["status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--no-renames", "-z", "--", "."]
    asked += [f":(exclude,literal){without}"] if without else []
    said = capture([git, *quiet, *asked], timeout=timeout, cwd=folder, env=_environ())
    if said.code != 0:
        return Code(problem=said.problem[:200])
    return _parsed(said.stdout.split("\0"))


def committed(folder: str, commit: str, path: str, *, git: str = "git") -> bytes | None:
    """A file of the folder as a commit has it; None if it has none, or one that is not UTF-8."""
    said = capture([git, "show", f"{commit}:./{path}"], timeout=SECONDS, cwd=folder, env=_environ())
    return said.stdout.encode() if said.code == 0 else None


def names_in(folder: str, commit: str, *, git: str = "git") -> tuple[str, ...]:
    """The paths that a commit has below the folder."""
    asked = [git, "ls-tree", "-r", "--name-only", "-z", commit, "--", "."]
    said = capture(asked, timeout=SECONDS, cwd=folder, env=_environ())
    return tuple(name for name in said.stdout.split("\0") if name) if said.code == 0 else ()


def _environ() -> dict[str, str]:
    return {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _parsed(lines: Sequence[str]) -> Code:
    """Porcelain format 2: https://git-scm.com/docs/git-status#_porcelain_format_version_2"""
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    # A changed file has 8 fields before its path, a conflict 10, an untracked file 1.
    fields = {"1": 8, "u": 10, "?": 1}
    files = [line.split(" ", fields[line[0]])[-1] for line in lines if line[:1] in fields]
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    return Code(
        commit=None if commit in (None, "(initial)") else commit,
        branch=None if branch in (None, "(detached)") else branch,
        dirty=len(files),
        changed=tuple(files[:_MANY]),
    )
