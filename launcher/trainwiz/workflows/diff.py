"""`trainwiz diff`: what changed between two runs."""

from __future__ import annotations

from trainwiz.record.differences import differences
from trainwiz.store import history
from trainwiz.ui import console
from trainwiz.ui import differences as shown


def show(before: str, after: str, *, as_json: bool) -> None:
    """Compare plan, versions, machine, code and result of two runs, given by name or folder."""
    a, b = history.find(before), history.find(after)
    found = differences(history.read(a), history.read(b))
    if as_json:
        console.data_json(shown.to_dict(a.name, b.name, found))
    else:
        shown.show(a.name, b.name, found)
