"""The files that somebody imports: one of accelerate or of a training tool, and one of DeepSpeed beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwiz import config
from trainwiz.config import Accelerate, DeepSpeed, Document, ToolFile
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.shell_words import quoted
from trainwiz.store import configurations as files_on_disk
from trainwiz.workflows.check import configurations, targets
from trainwiz.workflows.check.configurations import Files
from trainwiz.workflows.create.request import ImportRequest


@dataclass(frozen=True, kw_only=True)
class Imports:
    """The files by the program that reads them."""

    accelerate: Accelerate | None = None
    """Accelerate's."""
    tool_file: ToolFile | None = None
    """That of a training tool; there is only one of the two."""
    deepspeed: DeepSpeed | None = None
    """DeepSpeed's."""


def with_script(request: ImportRequest) -> ImportRequest:
    """The request with a script that was typed among the files as its script. Raises `UsageError` for a second one."""
    scripts = [path for path in request.files if path.endswith(".py")]
    every = [*([request.script] if request.script else []), *scripts]
    if len(every) > 1:
        raise UsageError(
            say("only one script becomes a project, not {n}: {names}", n=len(every), names=", ".join(every)),
            say("pass the script that starts the training; its modules are found by its imports"),
        )
    files = tuple(path for path in request.files if path not in scripts)
    return replace(request, files=files, script=every[0]) if scripts else request


def of(request: ImportRequest) -> Imports:
    """The files; none where a script alone becomes a project. Raises `UsageError`."""
    if request.script and not request.files and not request.default:
        return Imports()
    return together(request.files, default=request.default, versions=request.engine_version)


def together(typed: Sequence[str], *, default: bool, versions: Sequence[str]) -> Imports:
    """The files; what one of them names comes along. Raises `UsageError`."""
    paths = [*typed, *([targets.default_file()] if default else [])]
    if not paths:
        raise UsageError(
            say("no file given"),
            say(
                "run: trainwiz import accelerate.yaml ds_config.json --into my-project; --default imports "
                "accelerate's default file"
            ),
        )
    by_kind = _by_kind(paths)
    given = by_kind.get("deepspeed")
    if "tool_file" in by_kind:
        return _of_tool(by_kind, configurations.load(paths, script=None, versions=_versions(versions)))
    if given is None and "accelerate" in by_kind:
        # A folder's files belong together, whatever lies where this was typed.
        paths += _beside(by_kind["accelerate"])
    files = configurations.load(paths, script=None, versions=_versions(versions))
    accelerate = files.accelerate(by_kind["accelerate"]) if "accelerate" in by_kind else None
    named = _named(accelerate, optional=given is not None) if accelerate else None
    if accelerate and given is None and len(paths) > len(by_kind):
        named = paths[-1]
    if accelerate and given and accelerate.kind != "DEEPSPEED":
        raise UsageError(
            say(
                "{file} has distributed_type {kind}, which does not use {other}",
                file=accelerate.document.path,
                kind=accelerate.kind or "NO",
                other=given,
            ),
            say("import only one of them, or set distributed_type: DEEPSPEED"),
        )
    if accelerate and given and named and os.path.realpath(named) != os.path.realpath(given):
        raise UsageError(
            say("{file} refers to {named}, not to {other}", file=accelerate.document.path, named=named, other=given),
            say("import only {file}, or make it refer to {other}", file=accelerate.document.path, other=given),
        )
    return Imports(accelerate=accelerate, deepspeed=_deepspeed(files, given or named))


def _versions(typed: Sequence[str]) -> dict[str, str]:
    return configurations.engine_versions(typed)


def _of_tool(by_kind: dict[str, str], files: Files) -> Imports:
    path = by_kind["tool_file"]
    tool_file = files.tool_file(path)
    if tool_file.document.more:
        raise UsageError(
            say(
                "{file} contains {n} jobs; only one can be imported at a time",
                file=path,
                n=1 + len(tool_file.document.more),
            ),
            say("copy the one to import into a separate file"),
        )
    if "accelerate" in by_kind:
        raise UsageError(
            say("{one} and {other} cannot be imported together", one=path, other=by_kind["accelerate"]),
            say("import them one at a time, each into its own folder"),
        )
    given = by_kind.get("deepspeed")
    if given and tool_file.deepspeed and os.path.realpath(tool_file.deepspeed.document.path) != os.path.realpath(given):
        named = tool_file.deepspeed.document.path
        raise UsageError(
            say("{file} refers to {named}, not to {other}", file=path, named=named, other=given),
            say("import only {file}, or make it refer to {other}", file=path, other=given),
        )
    tool_file = replace(tool_file, catalogue=_catalogue(tool_file))
    return Imports(tool_file=tool_file, deepspeed=_deepspeed(files, given) if given else tool_file.deepspeed)


def _catalogue(tool_file: ToolFile) -> Document | None:
    """The file that says what the names of datasets stand for. Raises `UsageError` where it cannot be read."""
    named = tool_file.tool.catalogue(tool_file.document)
    found = files_on_disk.resolve(named, tool_file.document.path) if named else None
    return files_on_disk.readable(files_on_disk.read(found)) if found else None


def _by_kind(paths: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        kind = config.kind_of(files_on_disk.readable(files_on_disk.read(path)))
        if kind == "plan":
            raise UsageError(
                say("{file} is already a plan", file=path),
                say("run: trainwiz init DIR --answers {file}", file=quoted(path)),
            )
        if kind == "unknown":
            continue  # refused when it is loaded
        if kind in found and os.path.realpath(found[kind]) != os.path.realpath(path):
            raise UsageError(
                say("{one} and {other} are files of the same kind", one=found[kind], other=path),
                say("import them one at a time, each into its own folder"),
            )
        found[kind] = path
    return found


def _beside(path: str) -> list[str]:
    """The DeepSpeed file that an accelerate file names and that lies relative to it."""
    name = Accelerate(document=files_on_disk.read(path), version=(), files={}).deepspeed_file
    beside = os.path.join(os.path.dirname(path), name) if name else ""
    return [beside] if name and os.path.isfile(beside) else []


def _named(accelerate: Accelerate, *, optional: bool) -> str | None:
    name = accelerate.deepspeed_file
    if name is None:
        return None
    found = accelerate.files.get(name)
    if found is None and not optional:
        raise UsageError(
            say("{file} refers to {named}, which does not exist", file=accelerate.document.path, named=name),
            say("correct deepspeed_config_file, or pass that file as well"),
        )
    return found


def _deepspeed(files: Files, path: str | None) -> DeepSpeed | None:
    if path is None:
        return None
    known = next((p for p in files.documents if os.path.realpath(p) == os.path.realpath(path)), path)
    files_on_disk.readable(files.documents[known])
    return files.deepspeed(known)
