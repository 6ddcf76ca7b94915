"""From a decided plan to files: check it, render it, write it, and say what was done and what comes next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainwiz.language import current, t, text
from trainwiz.message import say
from trainwiz.ui import console

if TYPE_CHECKING:
    from trainwiz.decide import Decided
    from trainwiz.plan import Plan
    from trainwiz.store.artifacts import Conflict, Written

Resolution = Literal["keep", "overwrite", "beside"]


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot become a project before anything is asked. Raises `UsageError`."""
    import os

    from trainwiz.errors import UsageError

    if "\0" in str(folder) or not str(folder).isprintable():
        raise UsageError(say("{folder} is not a usable folder name", folder=repr(str(folder))))
    try:
        if folder.is_symlink() and not folder.exists():
            raise UsageError(say("{folder} is a link that leads nowhere", folder=folder))
        nearest = folder.absolute()
        while not nearest.exists():
            nearest = nearest.parent
    except OSError as error:
        raise UsageError(say("{folder}: {problem}", folder=folder, problem=error.strerror)) from None
    if not nearest.is_dir():
        raise UsageError(say("{path} is a file; a project needs a folder", path=nearest), say("name another folder"))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(say("no permission to write in {path}", path=nearest), say("name another folder"))


def write(
    decided: Decided, folder: Path, answers: Mapping[str, Any], resolution: Resolution | None, ask: bool
) -> Written:
    """Render and write the project, then remember its answers. A conflict is resolved by `resolution`, else asked.

    A trainwiz.yaml that was edited stays as it is where it says the same: only reasons and comments differ then.
    Raises `Refused`, with the diffs shown, where it may neither decide nor ask; nothing is written then.
    """
    from trainwiz import render
    from trainwiz.plan import flat
    from trainwiz.store import answers as store
    from trainwiz.store import artifacts, templates

    files = render.project(decided.plan, templates.load(), reasons=reasons(decided), language=current())
    agreed = render.PLAN_FILE if resolution is None and _agrees(folder / render.PLAN_FILE, decided.plan) else None
    if resolution is None and not ask:
        _refuse(folder, [c for c in artifacts.conflicts(folder, files) if c.path != agreed])
    written = artifacts.write(folder, files, _Resolver(folder=folder, resolution=resolution, agreed=agreed))
    if agreed in written.kept:
        kept = tuple(path for path in written.kept if path != agreed)
        written = replace(written, kept=kept, unchanged=(*written.unchanged, agreed))
    values = {k: v for k, v in flat(decided.plan).items() if k != "version"}
    store.write(folder / store.PROJECT_FILE, store.Saved(answers=answers, plan=values))
    return written


def report(written: Written, folder: Path, answers: Mapping[str, Any], extra: Sequence[str]) -> None:
    """The files on stdout; what was left alone, the command that does the same, and what to do next on stderr."""
    report_files(written, folder)
    console.talk()
    console.talk(t("The same without questions:"))
    console.talk(f"  {command(folder, answers, extra)}", style="bold")
    report_next(folder)


def report_files(written: Written, folder: Path) -> None:
    """The files on stdout; what was left alone on stderr."""
    for path in written.written:
        console.data(str(folder / path))
    for path in written.beside:
        console.talk(t("{path}: yours is kept; compare it with the new one", path=folder / path), style="warning")
    for path in written.kept:
        console.talk(t("{path}: kept as it is", path=folder / path), style="warning")
    for path in written.removed:
        console.talk(t("{path}: removed, the plan no longer needs it", path=folder / path))
    if not written.written and not written.beside:
        console.talk(t("Nothing changed in {folder}: it already is this project.", folder=folder))


def report_next(folder: Path) -> None:
    """What to do with a project, on stderr."""
    console.talk()
    console.talk(t("Next:"))
    where = shlex.quote(str(folder))
    console.talk(t("  trainwiz launch {folder}    checks everything once more, then trains", folder=where))
    console.talk(
        t(
            "  {file}    is yours to edit; trainwiz check {folder} checks it",
            file=shlex.quote(str(folder / "trainwiz.yaml")),
            folder=where,
        )
    )


def command(folder: Path, answers: Mapping[str, Any], extra: Sequence[str]) -> str:
    """The one command line that makes the same project, fit to be pasted into a shell."""
    argv = ["trainwiz", "init", str(folder), "--defaults", "--yes", *extra]
    for key, value in answers.items():
        several = key in ("ignore", "deepspeed")
        settings = {f"{key}.{name}": one for name, one in value.items()} if several else {key: value}
        for name, one in settings.items():
            argv += ["--set", f"{name}={_typed(one)}"]
    return shlex.join(argv)


@dataclass(frozen=True, kw_only=True)
class _Resolver:
    folder: Path
    resolution: Resolution | None
    agreed: str | None

    def __call__(self, conflict: Conflict) -> Resolution:
        if conflict.path == self.agreed:
            return "keep"
        show(self.folder, conflict)
        if self.resolution:
            return self.resolution
        from trainwiz.wizard import Action, Asked, ask

        choices = (
            ("keep", t("keep      leave the file as it is")),
            ("overwrite", t("overwrite take the new one; yours is lost")),
            ("beside", t("beside    write the new one beside it, as {name}.new", name=conflict.path)),
        )
        while True:
            reply = ask(
                Asked(prompt=conflict.path, default="keep", reason=t("nothing of yours is lost"), choices=choices)
            )
            if reply.action is None:
                return reply.value or "keep"  # type: ignore[return-value]
            if reply.action is Action.HELP:
                console.talk(t("The lines above with - are in your file, those with + in the new one."))


def _agrees(file: Path, plan: Plan) -> bool:
    """Whether a plan's file says the same as the plan."""
    from trainwiz.errors import TrainwizError
    from trainwiz.store import plans

    try:
        return file.is_file() and plans.read(file) == plan
    except TrainwizError:
        return False


def show(folder: Path, conflict: Conflict) -> None:
    """A file that differs from what would be written, as a diff."""
    path = folder / conflict.path
    words = t("{path} was not made by trainwiz:", path=path) if conflict.foreign else t("{path} was edited:", path=path)
    console.talk(words, style="warning")
    for line in conflict.diff.splitlines():
        console.talk(line, style={"-": "error", "+": "good"}.get(line[:1]))


def _refuse(folder: Path, conflicts: Sequence[Conflict]) -> None:
    if not conflicts:
        return
    from trainwiz.errors import Refused

    for conflict in conflicts:
        show(folder, conflict)
    raise Refused(
        say(
            "files with something of yours in them: {files}; nothing was written",
            files=", ".join(c.path for c in conflicts),
        ),
        say("add --on-conflict beside (new ones as .new), --on-conflict keep, or --force to overwrite them"),
    )


def reasons(decided: Decided) -> dict[str, str]:
    """Each value's source and reason, as the comment behind it."""
    kinds = {"found": t("found"), "default": t("default"), "yours": t("yours"), "file": t("file")}
    return {key: f"{kinds[source.kind]}: {text(source.reason)}" for key, source in decided.sources.items()}


def _typed(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
