"""What a replay finds: what differs before it begins, and whether the curves are the same at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.record.differences import Difference
from trainwiz.record.divergence import Divergence
from trainwiz.ui import console
from trainwiz.ui.differences import names, shown

SECTIONS = ("plan", "files", "data", "versions", "machine", "code")
"""What can differ before a replay begins."""
_MOST = 12
"""Lines of each section."""
_STYLES = {"equal": "good", "alike": "good", "diverged": "error", "nothing": "warning"}


def show_before(name: str, folder: Path, differ: Sequence[Difference], *, rebuilt: bool, whole: bool) -> None:
    """Say where the run is repeated, and what is not as it was."""
    if rebuilt:
        console.talk(
            t("{name}: the project has changed since; its files are rebuilt in {folder}", name=name, folder=folder)
        )
    else:
        here = folder.resolve()
        console.talk(t("{name}: plan and code are unchanged; it is repeated in {folder}", name=name, folder=here))
    titles = names()
    for section in SECTIONS:
        found = [each for each in differ if each.section == section]
        if not found:
            continue
        console.talk(console.styled(_heading(section, titles[section], rebuilt=rebuilt), "bold"))
        for each in found[:_MOST]:
            console.talk(f"  {each.key}: {shown(each.before, each.key)} → {shown(each.after, each.key)}")
        if len(found) > _MOST:
            console.talk(t("  … and {n} more", n=len(found) - _MOST))
    if not whole:
        console.talk(t("the run recorded only some of its project's files"), style="warning")


def _heading(section: str, title: str, *, rebuilt: bool) -> str:
    """What happens to a difference: plan and code can be restored, the rest cannot."""
    if section in ("plan", "files", "code") and rebuilt:
        return t("{title} (then → now; the replay uses the old one)", title=title)
    return t("{title} (then → now; the replay uses the current one)", title=title)


def show_curves(before: str, after: str, found: Divergence) -> None:
    """Print the verdict on two runs."""
    console.data(console.styled(_verdict(before, after, found), _STYLES[found.verdict], sys.stdout))


def _verdict(before: str, after: str, found: Divergence) -> str:
    values = {
        "before": before,
        "after": after,
        "updates": found.updates,
        "values": found.values,
        "equal": found.equal,
        "largest": f"{found.largest:.1e}",
        "curve": found.curve,
        "tolerance": f"{found.tolerance:.0e}",
    }
    match found.verdict:
        case "nothing":
            return t("{before} and {after}: no update was recorded by both; nothing to compare", **values)
        case "equal":
            return t("{before} and {after}: identical; updates: {updates}, values: {values}", **values)
        case "alike":
            return t(
                "{before} and {after}: the same; updates: {updates}, {equal} of {values} values are identical, "
                "the others within {largest} ({curve}; tolerance {tolerance})",
                **values,
            )
    return t(
        "{before} and {after}: diverged at update {at}: {name} {old} → {new}; in {updates} updates they differ by up "
        "to {largest} ({curve}; tolerance {tolerance})",
        at=found.parted_at,
        name=found.parted_in,
        old=f"{found.before:.8g}",
        new=f"{found.after:.8g}",
        **values,
    )


def to_dict(name: str, folder: Path, differ: Sequence[Difference], *, rebuilt: bool) -> dict[str, Any]:
    """What a dry run says, for `--json`."""
    return {
        "run": name,
        "folder": str(folder),
        "rebuilt": rebuilt,
        "differences": [
            {"section": each.section, "key": each.key, "before": each.before, "after": each.after} for each in differ
        ],
    }
