"""From a decided plan to files: render them, write them, and say what was done and what comes next."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz import fields, quantities, schedulers
from trainwiz.decide import Decided
from trainwiz.errors import Refused, TrainwizError, UsageError
from trainwiz.language import current, t
from trainwiz.message import say
from trainwiz.shell_words import operand, quoted
from trainwiz.store import answers as store
from trainwiz.ui import console
from trainwiz.vocabulary import spelled
from trainwiz.wizard import Action, Asked, said_source

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.render.artifact import Artifact
    from trainwiz.store.artifacts import Choice, Conflict, Written


# docs/decisions/wizard.md: `init` overwrites no edited file without showing the diff
def resolution(force: bool, on_conflict: str | None) -> Choice | None:
    """The resolution that two options stand for; None where neither was given. Raises `UsageError`."""
    match on_conflict:
        case None:
            return "overwrite" if force else None
        case "keep" | "overwrite" | "beside":
            if force and on_conflict != "overwrite":
                raise UsageError(say("--force cannot be combined with --on-conflict {way}", way=on_conflict))
            return on_conflict
    raise UsageError(say("--on-conflict: {given} is not one of keep, overwrite, beside", given=repr(on_conflict)))


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot become a project before anything is asked. Raises `UsageError`."""
    if "\0" in str(folder) or not str(folder).isprintable():
        raise UsageError(say("{folder} is not a usable folder name", folder=repr(str(folder))))
    try:
        if folder.is_symlink() and not folder.exists():
            raise UsageError(say("{folder} is a broken link", folder=folder))
        nearest = folder.absolute()
        while not nearest.exists():
            nearest = nearest.parent
    except OSError as error:
        raise UsageError(say("{folder}: {problem}", folder=folder, problem=error.strerror)) from None
    if not nearest.is_dir():
        raise UsageError(say("{path} is a file; a project needs a folder", path=nearest), say("choose another folder"))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(say("no permission to write to {path}", path=nearest), say("choose another folder"))


def write(
    decided: Decided,
    folder: Path,
    answers: Mapping[str, Any],
    resolution: Choice | None,
    *,
    may_ask: bool,
    own: Callable[[str], tuple[Artifact, ...]] | None = None,
    gpus: str = "",
    has_into: bool = False,
) -> Written:
    """Render and write the project, then save its answers. A conflict is resolved by `resolution`, else asked about.

    `own` makes files of somebody's own from the task.py that the plan generates, in its place. `gpus` are those that it
    is made for, where they are another machine's. `has_into` says that the
    command takes another folder with --into.

    A person's trainwiz.yaml that says the same plan, or a part of it, keeps every line; what it leaves out is added.
    Raises `Refused`, before anything is written, where a conflict can neither be resolved nor asked about; its diff is
    shown.
    """
    # The first question does not wait for what writing needs.
    from trainwiz import render
    from trainwiz.plan import flat
    from trainwiz.store import artifacts, atomic, templates

    files = render.project(decided.plan, templates.load(), reasons=reasons(decided), language=current())
    if own:
        example = next(file.text for file in files if file.path == "task.py")
        files = (*(file for file in files if file.path != "task.py"), *own(example))
    plan_file = folder / render.PLAN_FILE
    completed = _completed(plan_file, decided) if resolution is None else None
    agreed = None if completed is None else render.PLAN_FILE
    if resolution is None and not may_ask:
        _refuse(folder, [c for c in artifacts.conflicts(folder, files) if c.path != agreed], has_into=has_into)
    resolver = _Resolver(folder=folder, resolution=resolution, agreed=agreed)
    # A user who asks for the new files gets all of them.
    written = artifacts.write(folder, files, resolver, follow=resolution in (None, "keep"))
    if completed is not None and agreed in written.kept:
        kept = tuple(path for path in written.kept if path != agreed)
        outcome = "written" if completed != plan_file.read_text(encoding="utf-8") else "unchanged"
        written = replace(written, kept=kept, **{outcome: (*getattr(written, outcome), agreed)})
        atomic.write(plan_file, completed)
    values = {k: v for k, v in flat(decided.plan).items() if k != "version"}
    store.write(folder / store.PROJECT_FILE, store.Saved(answers=answers, plan=values, language=current(), gpus=gpus))
    return written


def report(
    written: Written,
    folder: Path,
    answers: Mapping[str, Any],
    options: Mapping[str, str],
    *,
    elsewhere: bool,
    host_bytes: int | None,
    outside: Sequence[str] = (),
) -> None:
    """Print the files, what was left alone, the command that does the same, and what comes next.

    `options` are those of the command line that are not answers; `elsewhere` says that another machine will train, of
    which nobody may know that it has `host_bytes` of memory beside its GPUs; `outside` is what the plan reads outside
    of the folder.
    """
    report_files(written, folder)
    console.talk()
    console.talk(t("The same command without questions:"))
    console.talk(f"  {_command(folder, answers, options)}", style="bold")
    if elsewhere and host_bytes:
        console.talk()
        size = quantities.size(host_bytes)
        console.talk(t("Each machine needs {size} of host memory beside its GPUs.", size=size))
    report_next(folder, elsewhere=elsewhere, outside=outside)


def outside(plan: Plan, folder: Path) -> tuple[str, ...]:
    """What the plan reads on this machine that a copy of the folder lacks: data, and a model's folder."""
    from trainwiz.probe.data import listed

    named = [name for value in (plan.data.train, plan.data.eval) for name in listed(value or "", folder)]
    here = [name for name in (*named, plan.model.name) if os.path.isabs(name) and os.path.lexists(name)]
    return tuple(name for name in dict.fromkeys(here) if not Path(name).is_relative_to(folder.resolve()))


def report_files(written: Written, folder: Path) -> None:
    """The files on stdout, one a line for programs; what was left alone on stderr."""
    if sys.stdout.isatty() and written.written:
        names = t("written in {folder}: {files}", folder=folder, files=" ".join(written.written))
        for line in console.fitted(names, first="", rest="  ", stream=sys.stdout):
            console.data(line)
    else:
        for path in written.written:
            console.data(str(folder / path))
    for path in written.beside:
        console.talk(t("{path}: your file was kept; compare it with the new one", path=folder / path), style="warning")
    for path in written.followed:
        console.talk(t("{path}: your edits were kept, and the plan's new values were set", path=folder / path))
    for path in written.kept:
        console.talk(t("{path}: kept unchanged", path=folder / path), style="warning")
    for path in written.removed:
        console.talk(t("{path}: removed; the plan no longer needs it", path=folder / path))
    if not written.written and not written.beside and not written.followed:
        console.talk(t("Nothing changed: {folder} is already up to date.", folder=folder))


def report_next(folder: Path, *, elsewhere: bool = False, outside: Sequence[str] = ()) -> None:
    """What to do with a project, on stderr; `elsewhere`: on another machine, which gets what is `outside`, too."""
    console.talk()
    is_job = any((folder / each.file).is_file() for each in schedulers.every())
    console.talk(t("Next, on that machine, with a copy of the folder:") if elsewhere and not is_job else t("Next:"))
    where = quoted(folder)
    if elsewhere and not is_job and outside:
        _step(t("copy {paths} there, too, to the same path, or change it in trainwiz.yaml", paths=", ".join(outside)))
    from trainwiz.render import SETTINGS
    from trainwiz.store import artifacts

    for path, code in artifacts.texts(folder, SETTINGS).items():
        if names := fields.unwritten(code):
            told = t(
                "write {names} in {file}: comments there point to the places in your script",
                names=", ".join(names),
                file=folder / path,
            )
            _step(told)
    if is_job:
        _step(t("trainwiz submit {folder}    submits its job, which checks everything again and trains", folder=where))
    else:
        _step(t("trainwiz launch {folder}    checks everything again, then trains", folder=where))
    _step(t("trainwiz update {folder}    after you edit trainwiz.yaml: regenerates the other files", folder=where))


def _step(words: str) -> None:
    for line in console.fitted(words, first="  ", rest="      ", stream=sys.stderr):
        console.talk(line)


def _command(folder: Path, answers: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """The command line that makes the same project, quoted for a shell."""
    argv = ["trainwiz", "init", operand(folder), "--defaults", "--yes"]
    argv += [word for pair in options.items() for word in pair]
    for key, value in answers.items():
        several = key in ("ignore", "deepspeed")
        settings = {f"{key}.{name}": one for name, one in value.items()} if several else {key: value}
        for name, one in settings.items():
            typed = json.dumps(one) if isinstance(one, (list, dict)) else spelled(one)
            argv += ["--set", f"{name}={typed}"]
    return shlex.join(argv)


@dataclass(frozen=True, kw_only=True)
class _Resolver:
    """Resolves the conflicts of a project: by the given resolution, else by asking."""

    folder: Path
    resolution: Choice | None
    agreed: str | None
    """A file that is kept without a question."""

    def __call__(self, conflict: Conflict) -> Choice:
        if conflict.path == self.agreed:
            return "keep"
        show(self.folder, conflict)
        if self.resolution:
            return self.resolution
        # questionary is slow to import, and most projects have no conflict.
        from trainwiz.wizard.prompts import ask

        choices = (
            ("keep", t("keep      leave the file as it is")),
            ("overwrite", t("overwrite use the new file; your version is lost")),
            ("beside", t("beside    write the new file next to it, as {name}.new", name=conflict.path)),
        )
        while True:
            reply = ask(
                Asked(prompt=conflict.path, default="keep", reason=t("your file stays unchanged"), choices=choices)
            )
            if reply.action is None:
                return reply.value or "keep"  # type: ignore[return-value]
            if reply.action is Action.HELP:
                console.talk(t("Above, lines with - are from your file, lines with + from the new one."))


def _completed(file: Path, decided: Decided) -> str | None:
    """The text of a plan's file with what it leaves out; None where it does not agree with what was decided."""
    from trainwiz.store import plans

    try:
        return plans.completed(plans.document(file), decided.plan, reasons(decided)) if file.is_file() else None
    except TrainwizError:
        return None


def show(folder: Path, conflict: Conflict) -> None:
    """Print how a file differs from what would be written."""
    path = folder / conflict.path
    words = (
        t("{path} was not generated by trainwiz:", path=path)
        if conflict.foreign
        else t("{path} was edited:", path=path)
    )
    console.talk(words, style="warning")
    console.talk_diff(conflict.diff.splitlines())


def _refuse(folder: Path, conflicts: Sequence[Conflict], *, has_into: bool) -> None:
    if not conflicts:
        return
    for conflict in conflicts:
        show(folder, conflict)
    remedy = say("add --on-conflict beside (writes .new files), --on-conflict keep, or --force to overwrite them")
    if has_into and any(conflict.foreign for conflict in conflicts):
        remedy = say("choose another folder with --into DIR, or add --on-conflict beside, which writes .new files")
    raise Refused(
        say(
            "these files contain edits of yours: {files}; nothing was written",
            files=", ".join(c.path for c in conflicts),
        ),
        remedy,
    )


def reasons(decided: Decided) -> dict[str, str]:
    """Each value's source and reason, as the comment behind it."""
    return {key: said_source(source) for key, source in decided.sources.items()}
