"""The first row of own data as the training reads it: what a wrong path or a wrong column looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.wizard.terminal import size

if TYPE_CHECKING:
    from trainwiz.decide import Decided


def lines(decided: Decided) -> Sequence[str]:
    """A line for each part that is read, or for each column where nothing can be; none where it is unknown."""
    seen = decided.outlook
    rows = [(text(part.role), part.column, part.text or t("missing")) for part in seen.parts]
    head = t("The first row, as it is read:")
    if not rows and seen.guessed:
        rows = [("", name, value) for name, value in seen.columns]
        head = t("The first row; its column names do not say how to read it:")
    if not rows:
        return ()
    roles, names = (max(columns.width(row[at]) for row in rows) for at in (0, 1))
    room = size().columns - 1
    found = [f"  {head}"]
    for role, name, value in rows:
        kept = [columns.pad(words, width) for words, width in ((role, roles), (name, names)) if width]
        found.append(columns.cut("  ".join(["   ", *kept, value]), room))
    return found
