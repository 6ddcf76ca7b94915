"""Reading the folders of runs: records, metrics, checkpoints, and the runs that a run continues."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.record import beat
from trainwiz.record.run import Recorded
from trainwiz.shell_words import operand
from trainwiz.store import jsonl, liveness, runs
from trainwiz.store.runs import LATEST, Run

_LONGEST_LINEAGE = 1000
_BEAT_BYTES = 1 << 10
_BRIEF_BYTES = 1 << 19


def listing(project: Path) -> str:
    """The command that lists the runs of a project."""
    return shlex.join(["trainwiz", "runs", *([] if project == Path() else [operand(project)])])


def find(word: str, project: Path = Path()) -> Run:
    """The run that a word refers to: `latest`, a name or its unique beginning, a run's folder, or a project's folder.

    Raises `UsageError`, which names the runs that exist.
    """
    path = Path(word)
    if word != LATEST and path.is_dir():
        if _is_run(path):
            return Run(Path(os.path.realpath(path)))
        word, project = LATEST, path
    elif path.parent.name == runs.RUNS and path.parent.is_dir():
        word, project = path.name, path.parent.parent
    if path.is_file():
        raise UsageError(
            say("{file} is a file, not the folder of a run", file=word),
            say("change to a project folder or pass one; `trainwiz launch` creates a run"),
        )
    made = runs.every(project)
    if not made and word != LATEST and len(path.parts) > 1:
        raise UsageError(
            say("{folder} does not exist", folder=word),
            say("change to a project folder or pass one; `trainwiz launch` creates a run"),
        )
    if not made and word != LATEST:
        raise UsageError(
            say("{word} is not a folder, and there are no runs in {folder}", word=word, folder=project.absolute()),
            say("change to a project folder or pass one; `trainwiz launch` creates a run"),
        )
    if not made:
        raise UsageError(
            say("no runs in {folder}", folder=project.absolute()),
            say("change to a project folder or pass one; `trainwiz launch` creates a run"),
        )
    if word == LATEST:
        return made[-1]
    matches = [run for run in made if run.name == word] or [run for run in made if run.name.startswith(word)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(run.name for run in matches[:5])
        raise UsageError(say("several runs start with {word}: {names}", word=word, names=names))
    raise UsageError(
        say("no run {name} in {folder}", name=word, folder=project / runs.RUNS),
        say("choose another run; the newest is {name}", name=made[-1].name),
    )


def read(run: Run) -> Recorded:
    """All of a run's folder, except what is damaged or missing; long files are thinned."""
    records, memory = jsonl.thinned(run.metrics), jsonl.thinned(run.memory)
    unread = jsonl.unread_bytes(run.metrics)
    return dataclasses.replace(without_metrics(run), records=records, unread_bytes=unread, memory=memory)


def brief(run: Run, size_bytes: int = _BRIEF_BYTES) -> Recorded:
    """The same with only the newest metrics, which suffice for a line of a table."""
    return dataclasses.replace(without_metrics(run), records=jsonl.newest(run.metrics, size_bytes))


def without_metrics(run: Run) -> Recorded:
    """The same without metrics and memory."""
    command, outcome = run.read("command"), run.read("outcome")
    manifests = {update: checkpoint / "manifest.json" for update, checkpoint in run.complete().items()}
    return Recorded(
        name=run.name,
        command=command,
        outcome=outcome,
        alive=False if outcome else liveness.is_running(command, run.beat),
        touched=_touched(run),
        checkpoints=tuple((update, file.stat().st_mtime) for update, file in manifests.items() if file.is_file()),
        plan_text=_text(run.folder / "plan.yaml"),
    )


def sampled(run: Run) -> Recorded:
    """The same as `read` in a fraction of a second: of long files, only some lines."""
    reader = jsonl.sampled(run.metrics) or jsonl.JsonLines(run.metrics)
    return dataclasses.replace(without_metrics(run), records=reader.new())


def with_memory(recorded: Recorded, run: Run) -> Recorded:
    """The same with the memory of its ranks."""
    reader = jsonl.sampled(run.memory) or jsonl.JsonLines(run.memory)
    return dataclasses.replace(recorded, memory=reader.new())


def stamp(run: Run) -> tuple[tuple[int, int], ...]:
    """Times and sizes of the files that are shown, which change whenever one of them does."""
    found = []
    for file in (run.folder / "command.json", run.folder / "outcome.json", run.metrics, run.memory, run.log(0)):
        try:
            status = file.stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def lineage(run: Run) -> list[Recorded]:
    """The run and those that it continues, the oldest first, back to the first that was deleted."""
    return [*earlier(run), read(run)]


def earlier(run: Run, read: Callable[[Run], Recorded] = read) -> list[Recorded]:
    """The runs that a run continues, the oldest first."""
    found: list[Recorded] = []
    names = {run.name}
    before = run.read("command").get("resumed_from")
    while len(found) < _LONGEST_LINEAGE:
        # An edited record must not lead out of the folder, or into a circle.
        if not isinstance(before, str) or before in names or not runs.NAME.fullmatch(before):
            break
        folder = run.folder.parent / before
        if not folder.is_dir():
            break
        names.add(before)
        found.insert(0, read(Run(folder)))
        before = found[0].command.get("resumed_from")
    return found


def logs(run: Run) -> dict[int, Path]:
    """The ranks' logs by rank."""
    found = {}
    for file in run.logs.glob("rank-*.log") if run.logs.is_dir() else ():
        number = file.name.removeprefix("rank-").removesuffix(".log")
        if number.isdecimal():
            found[int(number)] = file
    return dict(sorted(found.items()))


def place(run: Run, rank: int = 0) -> str:
    """Where a rank's own code was a second ago: function, file and line; empty if unknown."""
    with contextlib.suppress(OSError, ValueError):
        return beat.parsed(_beginning(run.logs / f"rank-{rank}.beat")).place
    return ""


def _beginning(file: Path) -> str:
    with files.opened(file) as stream:
        return stream.read(_BEAT_BYTES).decode(errors="replace")


def tail(file: Path, size: int) -> str:
    """The last `size` bytes of a log; empty if it cannot be read."""
    try:
        with files.opened(file) as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - size))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("command.json", "metrics.jsonl")) or runs.is_name(str(path))


def _touched(run: Run) -> float | None:
    times = []
    for file in (run.metrics, run.folder / "command.json", *logs(run).values()):
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


def _text(file: Path) -> str:
    try:
        return files.read_text(file, errors="replace")
    except OSError:
        return ""
