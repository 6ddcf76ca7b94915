"""What the script of a run says that it uses: compared with the plan, and recorded as what this run used."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.project import Disagreement
from trainwiz.record import redaction
from trainwiz.shell_words import quoted
from trainwiz.ui import console
from trainwiz.workflows.launch import provenance
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.provenance import CommandRecord

_BY_EACH_LAUNCH = frozenset({"output_dir", "resume"})


# docs/decisions/launching.md: A run records what its script states
class Statement:
    """Waits for the `config.json` that a script writes before its first update; another attempt writes it anew."""

    def __init__(self, prepared: Prepared, record: CommandRecord, tell: Callable[[Message], None]) -> None:
        self.attempt = prepared
        """What runs now: its arguments are meant to differ from the plan."""
        self._record, self._tell = record, tell
        self._stamp: tuple[int, int] | None = None
        self._before: tuple[int, int] | None = None
        self._told: set[str] = set()

    def begin(self, attempt: Prepared) -> None:
        """Another attempt starts, in the same folder."""
        self.attempt, self._before = attempt, _stamp(attempt.run.config)

    @property
    def made(self) -> bool:
        """Whether the script of this attempt has stated its settings; what an earlier one wrote does not count."""
        return _stamp(self.attempt.run.config) != self._before

    def look(self) -> None:
        """Take up what the script has stated since the last look."""
        plan, run = self.attempt.plan, self.attempt.run
        stamp = _stamp(run.config)
        if plan is None or stamp is None or stamp == self._stamp:
            return
        stated = run.read("config")
        if not stated:
            return  # it is being written
        shown = redaction.settings(stated, provenance.secrets(self.attempt))
        if shown != stated:
            with contextlib.suppress(TrainwizError):  # the training matters more than this record
                run.record("config", shown)
        self._stamp = _stamp(run.config)
        self._take_up(plan, shown)

    def _take_up(self, plan: Plan, stated: Mapping[str, Any]) -> None:
        # Templates take long to read, and by now the ranks have started.
        from trainwiz.render import agreement, settings, training_files
        from trainwiz.store import templates

        files = training_files(plan, templates.load())
        others = agreement.in_statement(plan, files, stated, without=_BY_EACH_LAUNCH)
        used = settings.used(plan, {one.field: stated.get(one.field) for one in others})
        self._record.add(
            plan=_with(self._record.values["plan"], used),
            instead_of_plan=redaction.values(
                {
                    one.key or one.field: {
                        "plan": plan.get(one.key) if one.key else one.planned,
                        "used": used[one.key] if one.key else stated.get(one.field),
                    }
                    for one in others
                },
                provenance.secrets(self.attempt),
            ),
        )
        given = [word.partition("=")[0].removeprefix("--") for word in self.attempt.command.argv]
        self._say([one for one in others if one.field not in given])

    def _say(self, others: Sequence[Disagreement]) -> None:
        if self.attempt.place and self.attempt.place.rank:
            return  # the first machine says it
        for one in others:
            if one.field not in self._told:
                self._told.add(one.field)
                self._tell(_note(one, str(console.near(Path(self.attempt.command.cwd)))))


def _note(one: Disagreement, folder: str) -> Message:
    if not one.key:
        return say(
            "note: the script uses {scripted} for {field}; the plan says {planned}",
            scripted=one.scripted,
            field=one.field,
            planned=one.planned,
        )
    return say(
        "note: {key} is {planned} in the plan, but the script uses {scripted}; the run is recorded with {scripted}. To "
        "change the plan: trainwiz update {folder} --set {key}={scripted}",
        key=one.key,
        planned=one.planned,
        scripted=one.scripted,
        folder=quoted(folder),
    )


def _with(plan: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded plan with other values, by dotted key."""
    changed: dict[str, Any] = copy.deepcopy(dict(plan))
    for key, value in values.items():
        section, dot, name = key.rpartition(".")
        (changed[section] if dot else changed)[name] = value
    return changed


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
