"""The change of the plan that a run's crash card showed, read from its record while it still applies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.errors import TrainwizError
from trainwiz.record.run import message
from trainwiz.render import PLAN_FILE
from trainwiz.shell_words import operand
from trainwiz.store import plans, runs
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.ui.diagnosis import Fix


def line(folder: Path) -> str:
    """The command that applies the fix of a project's newest run."""
    return shlex.join(["trainwiz", "launch", *([] if folder == Path() else [operand(folder)]), "--apply-fix"])


def of_run(run: Run) -> Fix | None:
    """The fix of the newest run, whose plan still has the values that it changes: what `--apply-fix` would do."""
    told = run.read("outcome").get("fix")
    project = run.folder.parent.parent
    if not isinstance(told, Mapping) or runs.every(project)[-1:] != (Run(run.folder),):
        return None
    changes, why = _changes(told.get("changes")), message(told.get("why"))
    if not changes or why is None or not _applies(project / PLAN_FILE, changes):
        return None
    typed = line(console.near(project.absolute()))
    return Fix(changes=changes, why=why, line=typed, saves=message(told.get("saves")))


def to_dict(fix: Fix) -> dict[str, Any]:
    """Plain values, in English, for `--json`."""
    saves = str(fix.saves) if fix.saves else None
    return {"changes": fix.recorded_changes(), "why": str(fix.why), "saves": saves, "line": fix.line}


def _changes(recorded: object) -> dict[str, tuple[Any, Any]]:
    each = recorded.items() if isinstance(recorded, Mapping) else ()
    return {
        key: (was["from"], was["to"]) for key, was in each if isinstance(was, Mapping) and {"from", "to"} <= was.keys()
    }


def _applies(plan_file: Path, changes: Mapping[str, tuple[Any, Any]]) -> bool:
    try:
        plan = plans.read(plan_file)
        return all(plan.get(key) == old for key, (old, _) in changes.items())
    except (TrainwizError, LookupError, AttributeError):
        return False
