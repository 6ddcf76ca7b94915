"""The files of a recorded run: found again by their digests, and laid out in a folder that trains like the project."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainwiz import files
from trainwiz.errors import Refused, TrainwizError, UsageError
from trainwiz.message import say
from trainwiz.probe import code
from trainwiz.record.run import Recorded
from trainwiz.store import code_files, runs
from trainwiz.store.manifest import sha256
from trainwiz.workflows import project_copy


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files of a project as a run used them."""

    texts: Mapping[str, bytes]
    """Each file by its path relative to the project."""
    whole: bool
    """Whether the run recorded all files of its project."""


def find(project: Path, run: Recorded) -> Sources:
    """The run's files: from the copies of the launch, the project, or git. Raises `Refused` if one is lost."""
    commit = _commit(run)
    digests = run.command.get("files")
    if not digests:
        return Sources(texts=_committed(project, run, commit), whole=True)
    found, lost = {}, []
    for path, digest in digests.items():
        if not _is_inside(path):
            raise TrainwizError(say("{path}: the record of the run names a file outside its project", path=repr(path)))
        text = code_files.kept(project, str(digest))
        if text is None:
            text = code_files.present(project, path, str(digest))
        if text is None and commit:
            text = code.committed(str(project), commit, path)
        if text is None or sha256(text) != digest:
            lost.append(path)
        else:
            found[path] = text
    if lost:
        raise Refused(
            say("the original version of these files of the run cannot be found: {files}", files=", ".join(lost)),
            say("files that contain a secret are not recorded; restore the old version in {folder}", folder=project),
        )
    return Sources(texts=found, whole=run.command.get("files_whole") is not False)


def rebuild(project: Path, sources: Sources, into: Path) -> None:
    """Write the files into a folder, and link what else lies in the project: data, models, caches.

    A folder that holds the same files already is left as it is. Raises `UsageError` for one that holds others.
    """
    try:
        _put(project, sources, into)
    except OSError as error:
        raise TrainwizError(
            say("cannot write to {folder}: {error}", folder=into, error=error.strerror or error),
            say("choose another folder: --into DIR"),
        ) from None
    other = [p for p, text in sources.texts.items() if code_files.present(into, p, sha256(text)) is None]
    if other or files.resolved(into) == files.resolved(project):
        raise UsageError(
            say("{folder} exists and contains other files: {files}", folder=into, files=", ".join(other[:5]) or "-"),
            say("choose another folder: --into DIR"),
        )


def _put(project: Path, sources: Sources, into: Path) -> None:
    """Write the folder as a whole where there is none: another machine may do the same at this moment."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        return
    if into.is_dir():  # empty: perhaps a mount, a link or the working folder, whose place no other folder can take
        project_copy.write(into, sources.texts)
        project_copy.link(files.resolved(project), into, sources.texts)
        return
    staged = into.with_name(f"{into.name}.{uuid.uuid4().hex[:8]}")
    try:
        project_copy.write(staged, sources.texts)
        project_copy.link(files.resolved(project), staged, sources.texts)
        with contextlib.suppress(FileExistsError):
            staged.rename(into)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # it was there first
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _commit(run: Recorded) -> str | None:
    commit = (run.command.get("git") or {}).get("commit")
    return commit if isinstance(commit, str) and commit.isalnum() else None


def _committed(project: Path, run: Recorded, commit: str | None) -> dict[str, bytes]:
    """The files of a run that recorded no digests, where git knows them. Raises `Refused`."""
    git = run.command.get("git") or {}
    if commit and git.get("dirty") == 0:
        names = [name for name in code.names_in(str(project), commit) if _is_code(name)]
        texts = {name: code.committed(str(project), commit, name) for name in names}
        found = {name: text for name, text in texts.items() if text is not None}
        if found:
            return found
    raise Refused(
        say("run {name} did not record its files, and no clean git commit contains them", name=run.name),
        say("an older trainwiz launched it; compare what was recorded: trainwiz diff {name}", name=run.name),
    )


def _is_code(name: str) -> bool:
    return name.endswith((".py", ".yaml", ".json", ".txt")) and _is_inside(name)


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return bool(parts) and "\0" not in path and not os.path.isabs(path) and ".." not in parts and parts[0] != runs.RUNS
