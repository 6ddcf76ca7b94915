"""What differs between two runs, side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trainwiz import columns, quantities
from trainwiz.language import t
from trainwiz.record.differences import SECTIONS, Difference
from trainwiz.ui import console
from trainwiz.vocabulary import spelled

_NUMBERS = {"loss", "eval_loss", "seconds", "tokens_per_second", "peak_rank_bytes"}
_INDENT = "  "


def show(before: str, after: str, found: Sequence[Difference]) -> None:
    """Print them by section: key, value before → value after; long values one below the other."""
    console.data(t("{before} → {after}", before=before, after=after))
    if not found:
        console.data(t("no differences in the recorded data"))
        return
    titles, widest = names(), max(columns.width(each.key) for each in found)
    for section in SECTIONS:
        here = [each for each in found if each.section == section]
        if here:
            console.data("")
            console.data(console.styled(titles[section], "bold", sys.stdout))
        for each in here:
            _show(each, min(widest, 40))


def to_dict(before: str, after: str, found: Sequence[Difference]) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "before": before,
        "after": after,
        "differences": [
            {"section": each.section, "key": each.key, "before": each.before, "after": each.after} for each in found
        ],
    }


def _show(each: Difference, width: int) -> None:
    before, after = (shown(value, each.key) for value in (each.before, each.after))
    values = f"{before} → {after}{_change(each)}"
    line = f"{_INDENT}{columns.pad(each.key, width)}  {values}"
    room = console.room(sys.stdout)
    if room is None or columns.width(line) <= room:
        console.data(line)
        return
    console.data(f"{_INDENT}{each.key}")
    for words in (f"- {before}", f"+ {after}{_change(each)}"):
        for part in columns.wrap(words, room, first=_INDENT * 2, rest=_INDENT * 3):
            console.data(part)


def _change(each: Difference) -> str:
    """The change of a result in percent."""
    before, after = each.before, each.after
    measured = each.key in _NUMBERS or each.key.startswith("eval_")
    if each.section != "result" or not measured or not before:
        return ""
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)):
        return ""
    return f"  ({100 * (after - before) / abs(before):+.1f} %)"


def shown(value: Any, key: str) -> str:
    """The value of a key as people read it."""
    if value is None:
        return "-"
    if key.endswith("_bytes") and isinstance(value, (int, float)):
        return quantities.size(int(value))
    return f"{value:.6g}" if isinstance(value, float) else spelled(value)


def names() -> dict[str, str]:
    """The sections of differences, in the reader's language."""
    return {
        "plan": t("Plan"),
        "config": t("Configuration"),
        "arguments": t("Arguments"),
        "versions": t("Versions"),
        "machine": t("Machine"),
        "environment": t("Environment"),
        "code": t("Code"),
        "files": t("Files (sha256)"),
        "data": t("Data (sha256)"),
        "result": t("Result"),
    }
