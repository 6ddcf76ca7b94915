"""A project laid out in another folder: some files as texts, everything else as links."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from trainwiz import files
from trainwiz.store import code_files, runs

_NOT_LINKED = frozenset({runs.RUNS, "output", "exported", "__pycache__"})


def lay_out(project: Path, into: Path, texts: Mapping[str, str]) -> None:
    """Copy the project's code and settings, with these texts instead of what is there, and link the rest."""
    laid: dict[str, bytes] = {}
    for path, digest in code_files.look(project).digests.items():
        if (text := code_files.present(project, path, digest)) is not None:
            laid[path] = text
    laid |= {path: text.encode() for path, text in texts.items()}
    write(into, laid)
    link(project, into, laid)


def write(into: Path, texts: Mapping[str, bytes]) -> None:
    """Write files below a folder. Raises `OSError`."""
    for path, text in texts.items():
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)


def link(project: Path, into: Path, own: Collection[str]) -> None:
    """Link what is not among a folder's own files, so that every relative path of the plan leads where it led."""
    upper = {PurePosixPath(path).parts[0] for path in own}
    for entry in project.iterdir():
        if entry.name.startswith(".") or entry.name in _NOT_LINKED or entry.suffix in (".py", ".new", ".md"):
            continue
        if entry.name not in upper:
            (into / entry.name).symlink_to(files.resolved(entry), target_is_directory=entry.is_dir())
        elif entry.is_dir():
            below = [path.partition("/")[2] for path in own if path.startswith(f"{entry.name}/")]
            link(entry, into / entry.name, below)
