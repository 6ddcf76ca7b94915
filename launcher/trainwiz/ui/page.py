"""A run as one HTML page that needs neither network nor script. Jinja2 escapes everything in it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from trainwiz import __version__, language
from trainwiz.language import t, text
from trainwiz.quantities import clock_time, size
from trainwiz.record import memory, metrics, timeline
from trainwiz.record.chart import svg
from trainwiz.record.differences import flat
from trainwiz.record.metrics import Record, series
from trainwiz.record.run import Recorded, Summary, message, started, state, summary
from trainwiz.ui.runs import state_name
from trainwiz.vocabulary import spelled

TEMPLATE = "templates/report.html.j2"


def page(lineage: Sequence[Recorded], reasons: Mapping[str, str], template: str, now: float) -> str:
    """The page of the last run of a lineage. `reasons` are those of its plan's values, by key."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    run = lineage[-1]
    records = metrics.joined([each.records for each in lineage])
    line = summary(run, now)
    return environment.from_string(template).render(
        lang="zh-CN" if language.current() == "zh" else "en",
        title=t("Run {name}", name=run.name),
        state=state(run).value,
        state_name=state_name(state(run)),
        why=text(line.why) if line.why else "",
        tiles=_tiles(run, line),
        diagnosis=_diagnosis(run),
        charts=[*_charts(records, timeline.resumed_at(lineage)), *_memory_charts(run)],
        lanes=_lanes(lineage, now),
        events=[{"at": _moment(event.at), "what": text(event.what)} for event in timeline.events(lineage, now)],
        plan=_plan(run, reasons),
        sections=_sections(run),
        words=_words(),
    )


def _words() -> dict[str, str]:
    return {
        "curves": t("Curves"),
        "dashed": t("Dashed lines: there a launch went on from a checkpoint of the one before."),
        "no_curves": t("The run wrote no numbers: it ended before its first logged update, or its script writes none."),
        "timeline": t("Timeline"),
        "plan": t("Plan"),
        "key": t("key"),
        "value": t("value"),
        "reason": t("reason"),
        "made_by": t("Made by trainwiz {version}.", version=__version__),
    }


def _tiles(run: Recorded, line: Summary) -> list[tuple[str, str]]:
    plan = run.command.get("plan") or {}
    machine = plan.get("machine") or {}
    peak = run.outcome.get("peak_rank_bytes")
    tiles: list[tuple[str, Any]] = [
        _progress(line),
        (t("loss"), _number(line.loss)),
        (t("evaluation loss"), _number(line.eval_loss)),
        (t("tokens per second"), None if line.speed is None else f"{line.speed:,.0f}"),
        (t("time"), None if line.seconds is None else clock_time(line.seconds)),
        (t("ranks"), machine.get("num_processes")),
        (t("most memory of one process"), size(peak) if isinstance(peak, int) else None),
    ]
    return [(name, str(value)) for name, value in tiles if value is not None]


def _progress(line: Summary) -> tuple[str, str | None]:
    done = None if line.updates is None else f"{line.updates:,}"
    return (t("updates of {total:,}", total=line.total) if line.total else t("updates"), done)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _diagnosis(run: Recorded) -> dict[str, Any] | None:
    told = run.outcome.get("diagnosis")
    if not isinstance(told, Mapping):
        return None
    lines = told.get("last_lines") or told.get("evidence")
    observed = told.get("observed")
    parts = {name: message(told.get(name)) for name in ("how", "cause", "remedy")}
    return {
        **{name: text(part) if part else "" for name, part in parts.items()},
        "lines": "\n".join(map(str, lines)) if isinstance(lines, list) else "",
        "observed": [text(seen) for each in observed if (seen := message(each))] if isinstance(observed, list) else [],
    }


def _charts(records: Sequence[Record], marks: Sequence[float]) -> list[dict[str, Any]]:
    """Charts of the known metrics, then of the task's own evaluations."""
    groups = [
        (t("Loss"), [(t("training"), "loss"), (t("evaluation"), "eval_loss")]),
        (t("Learning rate"), [(t("learning rate"), "lr")]),
        (t("Gradient norm"), [(t("before clipping"), "grad_norm_pre_clip"), (t("after"), "grad_norm_post_clip")]),
        (t("Speed, tokens per second"), [(t("tokens per second"), "tokens_per_second")]),
        *((name, [(name, name)]) for name in metrics.names(records, "eval_") if name != "eval_loss"),
        (t("Norm of the weights"), [(t("norm of the weights"), "weight_norm")]),
    ]
    charts = []
    for title, curves in groups:
        found = [(name, series(records, key)) for name, key in curves]
        drawn = svg(found, label=title, across=t("update"), marks=marks)
        if drawn:
            legend = [name for name, curve in found if curve.values]
            # `svg` escapes what it is given.
            charts.append({"title": title, "legend": legend, "svg": Markup(drawn)})
    return charts


def _memory_charts(run: Recorded) -> list[dict[str, Any]]:
    """Charts of the memory of this launch's ranks."""
    across = t("minutes since the launch") if memory.in_minutes(run.memory) else t("seconds since the launch")
    charts = []
    for title, where in ((t("Memory of the host, GiB"), "host"), (t("Memory of the GPUs, GiB"), "gpu")):
        found = [(text(name), curve) for name, curve in memory.curves(run.memory, where, started(run))]
        if drawn := svg(found, label=title, across=across):
            charts.append({"title": title, "legend": [name for name, _ in found], "svg": Markup(drawn)})
    return charts


def _lanes(lineage: Sequence[Recorded], now: float) -> list[dict[str, Any]]:
    """A bar for each launch over the updates that it did; none for a run that continues no other."""
    stretches = timeline.stretches(lineage, now)
    furthest = max((s.last for s in stretches if s.last is not None), default=0)
    if len(stretches) < 2 or not furthest:
        return []
    lanes = []
    for each in stretches:
        first, last = (each.first - 1 if each.first else 0), each.last or 0
        lanes.append(
            {
                "name": each.name,
                "state": each.state.value,
                "state_name": state_name(each.state),
                "left": f"{100 * first / furthest:.2f}",
                "width": f"{100 * max(0, last - first) / furthest:.2f}",
                "updates": "-" if each.first is None else t("updates {first} to {last}", first=each.first, last=last),
                "time": "" if each.seconds is None else clock_time(each.seconds),
            }
        )
    return lanes


def _plan(run: Recorded, reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
    values = flat(run.command.get("plan") or {})
    return [(key, _shown(value), reasons.get(key, "")) for key, value in values.items()]


def _sections(run: Recorded) -> list[tuple[str, list[tuple[str, str]]]]:
    command = run.command
    git = command.get("git") or {}
    code = [(t("commit"), git.get("commit")), (t("branch"), git.get("branch")), (t("changed files"), git.get("dirty"))]
    started = [
        (t("command"), shlex.join(map(str, command.get("argv") or ()))),
        (t("folder"), command.get("cwd")),
        (t("plan's hash"), command.get("plan_hash")),
        *((name, value) for name, value in code if value is not None),
        (t("which files"), ", ".join(map(str, git.get("changed") or ()))),
    ]
    machine = {"hostname": command.get("hostname"), **flat(command.get("machine") or {})}
    environment = {**(command.get("inherited") or {}), **(command.get("environment") or {})}
    return [
        (t("Command and code"), [(name, _shown(value)) for name, value in started if value]),
        (t("Versions"), _rows(command.get("versions") or {})),
        (t("Machine"), _rows(machine)),
        (t("Environment"), _rows(environment)),
    ]


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, _sized(key, value)) for key, value in values.items() if value is not None]


def _sized(key: str, value: Any) -> str:
    return size(value) if key.endswith("_bytes") and isinstance(value, int) else _shown(value)


def _shown(value: Any) -> str:
    return "-" if value is None else spelled(value)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
