"""What `trainwiz check` was pointed at: which of it is a plan, and which a file of another tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz import config
from trainwiz.config import Document
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.shell_words import quoted
from trainwiz.store import configurations

Read = Callable[[str], Document]
"""Reads a file; one that remembers what it read saves reading each file twice."""

PLAN_FILE = "trainwiz.yaml"
"""As `render` has it, which imports pydantic; files of other tools are judged without."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What to judge, each named once."""

    plans: tuple[str, ...]
    """Plans, and folders that contain one."""
    files: tuple[str, ...]
    """Files of other programs."""


def sort(
    typed: Sequence[str], *, default: bool, skip_others: bool = False, read: Read = configurations.read
) -> Targets:
    """The targets by kind. Raises `UsageError` for what is not there, and for a folder with nothing in it.

    With `skip_others`, files that are not configurations are left out.
    """
    plans: dict[str, None] = {}
    files: dict[str, None] = {}
    for path in typed:
        if skip_others and _is_other(path, read):
            continue
        if path.endswith(".py"):
            raise UsageError(
                say("{path} is a script, not a configuration", path=path),
                say("run: trainwiz lint {path}, or trainwiz check FILE --script {path}", path=quoted(path)),
            )
        if _is_plan(path, read):
            plans[path] = None
        elif Path(path).is_file():
            files[path] = None
        else:
            projects, others = _in_folder(path, read)
            plans |= dict.fromkeys(projects)
            files |= dict.fromkeys(others)
    if default:
        files[default_file()] = None
    return Targets(plans=tuple(plans), files=tuple(files))


def _is_plan(path: str, read: Read) -> bool:
    file = Path(path)
    if file.is_dir():
        return (file / PLAN_FILE).is_file()
    if file.name == PLAN_FILE or not file.is_file():
        return file.name == PLAN_FILE
    if file.suffix not in configurations.SUFFIXES:
        return True
    document = read(path)
    kind = "unknown" if document.problem else config.kind_of(document)
    return kind == "plan" or (kind == "unknown" and config.meant_as_plan(document))


def _is_other(path: str, read: Read) -> bool:
    if not Path(path).is_file() or Path(path).suffix not in configurations.SUFFIXES:
        return True
    document = read(path)
    # What cannot be read at all may be anything: a template, several documents in one file.
    return document.problem is not None or config.kind_of(document) == "unknown"


def _in_folder(path: str, read: Read) -> tuple[list[str], list[str]]:
    """The projects and the other configurations below a folder."""
    if not Path(path).is_dir():
        from trainwiz.store import plans  # here, since it imports pydantic

        plans.find(path)  # which says so
    projects, found = configurations.find(path, PLAN_FILE, read)
    if not projects and not found:
        raise UsageError(
            say("{folder} contains no trainwiz.yaml and no configuration that trainwiz knows", folder=path),
            say(
                "change to a project folder or pass one, or create a project: trainwiz init {folder}",
                folder=quoted(path),
            ),
        )
    return projects, [document.path for document in found]


def default_file() -> str:
    """The file that accelerate takes when it is given none. Raises `UsageError` where there is none."""
    path = configurations.default_path()
    if not Path(path).is_file():
        raise UsageError(
            say("accelerate's default config file {path} does not exist", path=path),
            say("create it with accelerate config, or create a project with trainwiz init"),
        )
    return path
