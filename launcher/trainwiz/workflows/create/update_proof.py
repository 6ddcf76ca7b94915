"""The proof of an update: what changes, whether it may matter, and what the small trainings showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwiz import plan as plans
from trainwiz.errors import PlanError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.plan import Plan, flat
from trainwiz.rehearsal import equivalence
from trainwiz.rehearsal.check import Check
from trainwiz.rehearsal.equivalence import Change
from trainwiz.store import answers as store
from trainwiz.store import plans as plan_files
from trainwiz.store.artifacts import Prepared
from trainwiz.ui import console
from trainwiz.ui import rehearsal as card
from trainwiz.workflows.create import answers
from trainwiz.workflows.rehearse import proof
from trainwiz.workflows.rehearse.proof import Version


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proved of an update."""

    change: Change
    """The keys that differ from the plan that the files were made from."""
    check: Check | None = None
    """None: nothing was trained, since a change matters, or conflicts are left."""

    conflicts: tuple[str, ...] = ()
    """Files that cannot run, since their conflicts are unresolved."""

    @property
    def problem(self) -> Message | None:
        """Why it is not proved that the project trains as before; None where it is."""
        if self.change.decisive:
            keys = ", ".join(self.change.decisive)
            return say("no proof: the update changes the training ({keys}); nothing was written", keys=keys)
        if self.conflicts:
            paths = ", ".join(self.conflicts)
            return say("no proof: unresolved conflicts in {paths}; nothing was written", paths=paths)
        if self.check is None or self.check.verdict in ("passed", "warning"):
            return None
        if self.compared:
            return say("the files would train differently than before; nothing was written")
        return say("the proof could not be made; nothing was written")

    @property
    def compared(self) -> bool:
        """Whether both trainings ran, so that their curves say something."""
        return self.check is not None and "losses" in self.check.numbers

    @property
    def unseen(self) -> tuple[str, ...]:
        """The keys that the trainings could not show; the number of ranks is shown by runs on 1 and on 2."""
        ranks = self.check.numbers.get("ranks", ()) if self.check else ()
        return tuple(key for key in self.change.unseen if key != "machine.num_processes" or len(set(ranks)) < 2)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "neutral": list(self.change.neutral),
            "decisive": list(self.change.decisive),
            "unseen": list(self.unseen),
            "check": card.to_dict(self.check) if self.check else None,
        }


def of(folder: Path, plan: Plan, prepared: Prepared, python: str) -> Proof:
    """Compare the project as it is with what an update makes of it."""
    before = _written(folder)
    changed = equivalence.change(flat(before), flat(plan))
    conflicts = prepared.outcomes.conflicted
    if changed.decisive or conflicts:
        return Proof(change=changed, conflicts=tuple(conflicts))
    if changed.neutral:
        keys = ", ".join(changed.neutral)
        console.talk(t("should not affect the training: {keys}", keys=keys))
    found = proof.prove(
        folder, Version(plan=before, texts={}), Version(plan=plan, texts=_code(prepared.texts)), changed, python
    )
    card.show_line(found)
    proved = Proof(change=changed, check=found)
    if proved.unseen:
        keys = ", ".join(proved.unseen)
        console.talk(t("cannot be checked on CPU ranks: {keys}", keys=keys), style="dim")
    return proved


def _written(folder: Path) -> Plan:
    """The plan that the files were generated from; that of the file where it is not known."""
    saved = store.read(folder / store.PROJECT_FILE)
    try:
        if saved and saved.plan:
            return plans.parse(plans.nested({"version": plans.FORMAT_VERSION, **answers.legal(saved.plan)}))
    except PlanError:
        pass  # an older version wrote it
    return plan_files.read(plan_files.find(folder))


def _code(texts: Mapping[str, str]) -> dict[str, str]:
    """What is to be written, without what trainwiz remembers of it."""
    return {path: text for path, text in texts.items() if not path.startswith(".trainwiz/")}
