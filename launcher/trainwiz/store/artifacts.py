"""Writing a project's files: atomically, and never over a user's edits without asking.

`.trainwiz/manifest.json` holds the sha256 of each file as it was generated, and the values in it. An unchanged file is
updated silently. An edited one follows as far as that is certain: it stays where the new text is the old one, and only
its values change where only values do. Any other difference is a conflict, which the caller resolves with a diff at
hand. `.trainwiz/base/` holds each file as it was generated when the present one was last brought up to date: the base
of a three-way merge.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.render import PLAN_FILE
from trainwiz.render.artifact import Artifact
from trainwiz.store import atomic, edits, manifest
from trainwiz.store.manifest import MANIFEST, Manifest, digest_of, sha256

Choice = Literal["keep", "overwrite", "beside"]
"""What to do with a file that a user edited: leave it, replace it, or write the new one beside it as .new."""


BASE = ".trainwiz/base"


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A person's edits and the new version in one text."""

    text: str
    """The file, with markers around each conflict."""
    conflicts: int
    """The places where both changed the same lines."""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A file that differs from what is to be written, and from what was generated before."""

    path: str
    """Relative to the project's folder."""
    diff: str
    """Unified, from the file as it is to the new text."""
    foreign: bool
    """Whether trainwiz never wrote this file."""
    present: str | None
    """The text of the file as it is; None if it is not UTF-8."""
    base: str | None
    """The text that was generated before; None if it was not kept."""
    new: str
    """The text that is generated now."""


Resolve = Callable[[Conflict], Choice | Merged]
"""How to resolve a conflict."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `write` did with each file, as paths relative to the project's folder."""

    written: tuple[str, ...] = ()
    """New files, and those that were replaced."""
    unchanged: tuple[str, ...] = ()
    """Files that were already as they should be."""
    followed: tuple[str, ...] = ()
    """Edited files in which only values were set."""
    kept: tuple[str, ...] = ()
    """Files with conflicts that were left as they are."""
    beside: tuple[str, ...] = ()
    """New `.new` files beside such files."""
    merged: tuple[str, ...] = ()
    """Edited files that took over what changed."""
    conflicted: tuple[str, ...] = ()
    """Such files with conflict markers in them."""
    removed: tuple[str, ...] = ()
    """Unchanged files that are no longer needed."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a write will do; nothing is written yet."""

    root: Path
    """The project's folder."""
    outcomes: Written
    """What happens to each file."""
    texts: Mapping[str, str]
    """What is to be written, by path: the files, and what is remembered of them."""

    def write(self) -> Written:
        """Write all of it, or nothing on an error. Raises `TrainwizError`."""
        atomic.write_all(self.root, self.texts)
        for path in self.outcomes.removed:
            atomic.remove(self.root / path)
        return self.outcomes


def write(
    folder: str | Path,
    artifacts: Sequence[Artifact],
    resolve: Resolve,
    *,
    partial: bool = False,
    follow: bool = True,
) -> Written:
    """Write the artifacts below `folder`: all of them, or none on an error. The arguments are those of `prepare`."""
    return prepare(folder, artifacts, resolve, partial=partial, follow=follow).write()


def prepare(
    folder: str | Path,
    artifacts: Sequence[Artifact],
    resolve: Resolve,
    *,
    partial: bool = False,
    follow: bool = True,
    again: bool = False,
) -> Prepared:
    """Find out what happens to each file, and resolve every conflict.

    Generated files that are no longer needed are removed unless they were edited; with `partial` only the artifacts
    themselves are touched. Without `follow`, every edited file is a conflict; with `again`, those that an earlier write
    left behind are. Raises `TrainwizError`.
    """
    root = Path(folder)
    remembered = manifest.read(root)
    done: dict[str, list[str]] = {name: [] for name in Written.__dataclass_fields__}
    texts: dict[str, str] = {}
    as_kept: dict[str, str] = {}
    for artifact in artifacts:
        _check(root, artifact.path)
        is_behind = _is_behind(root, artifact.path, remembered)
        outcome, text = _outcome(root, artifact, remembered, resolve, follow=follow and not (again and is_behind))
        target = f"{artifact.path}.new" if outcome == "beside" else artifact.path
        done[outcome].append(target)
        if outcome not in ("kept", "unchanged"):
            texts[target] = text
        # A file that was kept keeps its old base: otherwise a later merge would take what it lacks for deleted.
        base = f"{BASE}/{artifact.path}"
        is_new = digest_of(root / base) != sha256(artifact.as_generated.encode())
        follows_only = outcome in ("unchanged", "followed") and text != artifact.text
        lacks = outcome in ("kept", "beside") or (is_behind and follows_only)
        if is_new and not lacks and not artifact.path.startswith(".trainwiz/"):
            texts[base] = artifact.as_generated
        if digest := _digest_if_kept(root, artifact, remembered, outcome, text):
            as_kept[artifact.path] = digest
    digests = {a.path: sha256(a.as_generated.encode()) for a in artifacts if a.as_generated}
    values = {a.path: found for a in artifacts if (found := edits.values_of(a))}
    if partial:
        others = {path: digest for path, digest in remembered.kept.items() if path not in digests}
        new = Manifest(
            files={**remembered.files, **digests}, values={**remembered.values, **values}, kept={**others, **as_kept}
        )
    else:
        new = Manifest(files=digests, values=values, kept=as_kept)
        gone = [p for p in remembered.files if p not in digests and _is_as_generated(root, p, remembered)]
        done["removed"] = [p for p in gone if _is_in_folder(root, p)]
    texts[MANIFEST] = new.text()
    return Prepared(root=root, outcomes=Written(**{n: tuple(paths) for n, paths in done.items()}), texts=texts)


def conflicts(folder: str | Path, artifacts: Sequence[Artifact]) -> tuple[Conflict, ...]:
    """The conflicts that `write` would ask about. Nothing is written. Raises `TrainwizError`."""
    root = Path(folder)
    remembered = manifest.read(root)
    found: list[Conflict] = []

    def note(conflict: Conflict) -> Choice:
        found.append(conflict)
        return "keep"

    for artifact in artifacts:
        _check(root, artifact.path)
        _outcome(root, artifact, remembered, note, follow=True)
    return tuple(found)


def changed(folder: str | Path) -> tuple[str, ...]:
    """Generated files that were edited or deleted."""
    root = Path(folder)
    remembered = manifest.read(root)
    return tuple(path for path in remembered.files if not _is_as_generated(root, path, remembered))


def is_untouched(folder: str | Path, path: str) -> bool:
    """Whether a file is as it was generated; False if nothing is known about it."""
    root = Path(folder)
    digest = manifest.read(root).files.get(path)
    return digest is not None and digest == digest_of(root / path)


def kept(folder: str | Path) -> tuple[str, ...]:
    """Files that were kept while the plan changed more than values in them, and that were not edited since."""
    root = Path(folder)
    return tuple(path for path, digest in manifest.read(root).kept.items() if digest_of(root / path) == digest)


def texts(folder: str | Path, paths: Sequence[str]) -> dict[str, str]:
    """The texts of those files that can be read, by path."""
    found = {path: _text(_bytes(file)) for path in paths if (file := Path(folder) / path).is_file()}
    return {path: text for path, text in found.items() if text is not None}


def conflict_markers(folder: str | Path, paths: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Where those files hold both sides of a conflict that a merge left: path and line, from 1."""
    return tuple(
        (path, number)
        for path, text in texts(folder, paths).items()
        for number, line in enumerate(text.splitlines(), start=1)
        if line.startswith("<<<<<<< ")
    )


# docs/decisions/launching.md: Files are stale only if the plan was edited
def outdated(folder: str | Path, artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    """The artifacts that were generated before and would now be generated differently.

    An edited file in which only values would change is outdated if `write` would set one; a value that was edited is a
    disagreement with the plan instead.
    """
    root = Path(folder)
    remembered = manifest.read(root)
    return tuple(artifact.path for artifact in artifacts if _is_outdated(root, artifact, remembered))


def _is_outdated(root: Path, artifact: Artifact, remembered: Manifest) -> bool:
    path, digest = root / artifact.path, sha256(artifact.as_generated.encode())
    if remembered.files.get(artifact.path, digest) == digest or digest_of(path) == digest:
        return False
    before = edits.values_before(artifact, remembered)
    if before is None or _is_as_generated(root, artifact.path, remembered) or not path.is_file():
        return True
    present = _text(_bytes(path))
    followed = present and edits.with_new_values(present, artifact, before)
    return followed is not None and followed != present


def _outcome(
    root: Path,
    artifact: Artifact,
    remembered: Manifest,
    resolve: Resolve,
    *,
    follow: bool,
) -> tuple[str, str]:
    """What happens to a file, as a field of `Written`, and the text to write."""
    path = root / artifact.path
    if not path.exists():
        return "written", artifact.text
    present = _bytes(path)
    if present == artifact.text.encode():
        return "unchanged", artifact.text
    if sha256(present) == remembered.files.get(artifact.path):
        return "written", artifact.text
    # A plan that says something else is not an edited copy of what is generated: it is what the files are made from.
    follow = follow and artifact.generated is None and artifact.path != PLAN_FILE
    followed = edits.followed(_text(present), artifact, remembered) if follow else None
    if followed is not None:
        return ("unchanged" if followed.encode() == present else "followed"), followed
    choice = resolve(
        Conflict(
            path=artifact.path,
            diff=_diff(artifact.path, present.decode("utf-8", "replace"), artifact.text),
            foreign=artifact.path not in remembered.files,
            present=_text(present),
            base=texts(root, [f"{BASE}/{artifact.path}"]).get(f"{BASE}/{artifact.path}"),
            new=artifact.as_generated,
        )
    )
    if isinstance(choice, Merged):
        is_same = choice.text.encode() == present and not _is_behind(root, artifact.path, remembered)
        return "conflicted" if choice.conflicts else "unchanged" if is_same else "merged", choice.text
    return {"keep": "kept", "overwrite": "written", "beside": "beside"}[choice], artifact.text


def _is_behind(root: Path, path: str, remembered: Manifest) -> bool:
    """Whether a file was kept when what is generated changed: its base is older than that, or there never was one."""
    base = digest_of(root / BASE / path)
    if base is None:
        return remembered.kept.get(path) == digest_of(root / path) is not None
    return base != remembered.files.get(path)


def _digest_if_kept(root: Path, artifact: Artifact, remembered: Manifest, outcome: str, text: str) -> str | None:
    """The sha256 of a file that stays as it is while more than values in it should change; None for any other."""
    path, before = root / artifact.path, remembered.kept.get(artifact.path)
    if artifact.generated is not None:
        return None  # it was the user's own from the beginning
    if outcome in ("kept", "beside"):
        is_known = remembered.files.get(artifact.path) == sha256(artifact.text.encode())
        only_values = is_known or edits.values_before(artifact, remembered) is not None
        return before if only_values else digest_of(path)
    if before is None or before != digest_of(path) or outcome in ("written", "merged", "conflicted"):
        return None
    return sha256(text.encode()) if outcome == "followed" or text != artifact.text else None


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{path} (as it is)", f"{path} (new)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _is_in_folder(root: Path, path: str) -> bool:
    """Whether a file lies in the project's folder, and not in one that a link in it leads to."""
    return files.resolved((root / path).parent).is_relative_to(files.resolved(root))


def _links_outside(root: Path, path: Path) -> tuple[Path, ...]:
    """The folders between the project's and a file of it that lead out of it."""
    between = path.parents[: len(path.relative_to(root).parts) - 1]
    return tuple(folder for folder in between if not files.resolved(folder).is_relative_to(files.resolved(root)))


def _check(root: Path, relative: str) -> None:
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise ValueError(f"an artifact's path must stay inside the project: {relative!r}")
    path = root / relative
    for link in (path, *_links_outside(root, path), *_links_outside(root, root / BASE / relative)):
        if link.is_symlink():
            raise UsageError(
                say("{path} is a symbolic link to {target}; nothing was written", path=link, target=link.readlink()),
                say("remove the link, or choose another folder"),
            )
    if path.is_dir():
        raise UsageError(
            say("{path} is a folder, but a file must be written there; nothing was written", path=path),
            say("move it away, or choose another folder"),
        )


def _is_as_generated(root: Path, path: str, remembered: Manifest) -> bool:
    return digest_of(root / path) == remembered.files[path]


def _bytes(path: Path) -> bytes:
    try:
        return files.read_bytes(path)
    except OSError as error:
        raise UsageError(
            say("{path} exists but cannot be read: {problem}", path=path, problem=error.strerror)
        ) from None


def _text(present: bytes) -> str | None:
    try:
        return present.decode("utf-8")
    except UnicodeDecodeError:
        return None
