"""The pieces of the page that `trainwiz board` serves. Jinja2 escapes everything in them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from trainwiz import __version__, language
from trainwiz.language import t, text
from trainwiz.quantities import clock_time
from trainwiz.record import metrics
from trainwiz.record.chart import svg
from trainwiz.record.differences import SECTIONS, Difference
from trainwiz.record.metrics import Series, series
from trainwiz.record.run import Recorded, State, Summary, task
from trainwiz.ui import differences as changes
from trainwiz.ui import page as report
from trainwiz.ui.html import rendered
from trainwiz.ui.rate import chart_title
from trainwiz.ui.runs import progress, state_name

_TEMPLATE = "templates/board.html.j2"
_CHOSEN = 4
"""Runs that are compared at first: the newest ones with something to compare."""

Templates = Mapping[str, str]


def shell(summaries: Sequence[Summary], project: str, templates: Templates) -> tuple[str, str]:
    """The whole page with its table of runs, and the nonce of its script."""
    nonce = secrets.token_urlsafe(16)
    html = _rendered(
        templates,
        "shell",
        nonce=nonce,
        lang="zh-CN" if language.current() == "zh" else "en",
        # One look for both pages.
        style=Markup(templates[report.TEMPLATE].partition("<style>")[2].partition("</style>")[0]),
        title=t("Runs of {name}", name=project),
        rows=_rows(summaries),
        words={
            "compare": t("Compare"),
            "hint": t("Check runs to compare them; click one to see its details."),
            "report": t("Report"),
            "log": t("Log"),
            "diff": t("Differences between the two checked runs"),
            "lost": t("The board does not respond: trainwiz board has ended, or the tunnel is closed."),
            "made_by": t("Served by trainwiz {version}, to this machine only.", version=__version__),
        },
    )
    return nonce, html


def table(summaries: Sequence[Summary], templates: Templates) -> str:
    """The rows of the table of runs."""
    return _rendered(templates, "table", rows=_rows(summaries))


def comparison(chosen: Sequence[tuple[str, Sequence[Recorded]]], templates: Templates) -> str:
    """Charts with a curve for each run."""
    records = [(name, metrics.joined([each.records for each in lineage])) for name, lineage in chosen]
    others = dict.fromkeys(name for _, each in records for name in metrics.names(each, "eval_") if name != "eval_loss")
    groups = [
        (t("Loss"), "loss"),
        (t("Evaluation loss"), "eval_loss"),
        *((name, name) for name in others),
        (t("Gradient norm"), "grad_norm_pre_clip"),
        (t("Learning rate"), "lr"),
        (chart_title(next((task(each[-1]) for _, each in chosen), None)), "tokens_per_second"),
    ]
    charts = []
    for title, key in groups:
        curves: list[tuple[str, Series]] = [(name, series(each, key)) for name, each in records]
        # `svg` escapes what it is given, and numbers the curves that it draws.
        if drawn := svg(curves, label=title, across=t("update")):
            legend = [(i, name) for i, (name, curve) in enumerate(curves) if metrics.finite(curve)]
            charts.append({"title": title, "svg": Markup(drawn), "legend": legend})
    return _rendered(templates, "charts", charts=charts, nothing=_why_empty(chosen))


def _why_empty(chosen: Sequence[tuple[str, Sequence[Recorded]]]) -> str:
    if not chosen:
        return t("No run is checked: check runs in the table to compare them.")
    names = ", ".join(name for name, _ in chosen)
    return t("No metrics were written by {names}: there is nothing to compare.", names=names)


def log(text: str, rank: int, ranks: Sequence[int], templates: Templates) -> str:
    """The end of a rank's log, and which other ranks have one."""
    words = {"rank": t("Rank"), "empty": t("(empty)")}
    return _rendered(templates, "log", text=text, rank=rank, ranks=ranks, words=words)


def diff(before: str, after: str, found: Sequence[Difference], templates: Templates) -> str:
    """What differs between two runs."""
    names, shown = changes.names(), changes.shown
    sections = [(names[section], [each for each in found if each.section == section]) for section in SECTIONS]
    rows = [(name, [(d.key, shown(d.before, d.key), shown(d.after, d.key)) for d in each]) for name, each in sections]
    return _rendered(
        templates,
        "diff",
        before=before,
        after=after,
        sections=[(name, each) for name, each in rows if each],
        nothing=t("no differences in the recorded data"),
    )


def _rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    measured = [each.name for each in summaries if each.loss is not None or each.state is State.RUNNING]
    chosen = (measured or [each.name for each in summaries])[:_CHOSEN]
    return [
        {
            "name": each.name,
            "state": each.state.value,
            "state_name": state_name(each.state),
            "running": each.state is State.RUNNING,
            "progress": progress(each),
            "loss": "" if each.loss is None else f"{each.loss:.4f}",
            "eval_loss": "" if each.eval_loss is None else f"{each.eval_loss:.4f}",
            "speed": "" if each.speed is None else f"{each.speed:,.0f}",
            "time": "" if each.seconds is None else clock_time(each.seconds),
            "why": text(each.why) if each.why else "",
            "chosen": each.name in chosen,
        }
        for each in summaries
    ]


def _rendered(templates: Templates, part: str, **values: Any) -> str:
    heads = [t("run"), t("state"), t("updates"), t("loss"), t("evaluation loss"), t("speed"), t("time"), ""]
    return rendered(templates[_TEMPLATE], part=part, heads=heads, **values)
