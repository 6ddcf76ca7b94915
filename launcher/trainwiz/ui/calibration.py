"""How wrong the forecasts of a machine were, run by run, and the resulting corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz.language import t, text
from trainwiz.record.forecast import QUANTITIES, Correction
from trainwiz.record.run import Summary
from trainwiz.ui import console, forecasts, table
from trainwiz.ui.table import Cell

Entry = Mapping[str, Any]


def show(machine: str, entries: Sequence[Entry], corrections: Mapping[str, Correction]) -> None:
    """Print a machine's runs: measured as a share of the forecast, and below them the correction."""
    console.data(machine)
    names = [name for name in QUANTITIES if any(name in entry["ratios"] for entry in entries)]
    lines = [[t("RUN"), t("STRATEGY"), *(text(QUANTITIES[name]) for name in names)]]
    for entry in entries:
        ratios = [entry["ratios"].get(name) for name in names]
        shown = [f"{ratio:.3f}" if isinstance(ratio, (int, float)) else "-" for ratio in ratios]
        lines.append([str(entry.get("run", "?")), str(entry.get("strategy", "?")), *shown])
    made = [f"× {corrections[name].factor:.3f}" if name in corrections else "-" for name in names]
    lines.append([t("correction"), "", *made])
    table.show([[Cell(text=word) for word in line] for line in lines])


def show_run(summary: Summary) -> None:
    """Print the newest run's forecasts beside what was measured; nothing where it has none."""
    if not summary.compared:
        return
    console.talk(t("the newest run, {name}:", name=summary.name))
    for pair, (what, forecast, measured, error, _) in zip(
        summary.compared, forecasts.rows(summary.compared), strict=True
    ):
        if pair.missed:
            console.talk(f"  {forecasts.miss(pair)}", style="warning")
        else:
            console.talk(
                t(
                    "  {what}: forecast {forecast}, measured {measured} ({error})",
                    what=what,
                    forecast=forecast,
                    measured=measured,
                    error=error,
                )
            )


def to_dict(machine: str, entries: Sequence[Entry], corrections: Mapping[str, Correction]) -> dict[str, Any]:
    """A machine for `--json`."""
    return {
        "machine": machine,
        "runs": [dict(entry) for entry in entries],
        "corrections": {name: {"factor": each.factor, "runs": each.runs} for name, each in corrections.items()},
    }
