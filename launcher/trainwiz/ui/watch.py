"""A run on one screen: progress, loss curve, speed, memory, and warnings of its logs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwiz import columns
from trainwiz.language import t, text
from trainwiz.quantities import clock_time, size
from trainwiz.record import curve, metrics
from trainwiz.record.complaints import Complaint
from trainwiz.record.metrics import Record
from trainwiz.record.run import Summary
from trainwiz.ui import console, runs
from trainwiz.ui.live import used
from trainwiz.ui.rate import rate
from trainwiz.ui.runs import STYLES, state_name

_LEAST_CURVE, _MOST_CURVE = 3, 16
_WINDOW = 10
"""Records that the speed is measured over: the current speed, not that of the whole run."""

_MOST_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class View:
    """What is known of a run at one moment."""

    summary: Summary
    """The run in one line."""
    records: Sequence[Record]
    """Metrics of the run and those that it continues; sampled where there are very many."""
    lowest_loss: float | None = None
    """None: not known, since some records of a long run were not read."""
    seconds_left: float | None = None
    """Until the last update; None: unknown."""
    memory: Mapping[int, tuple[int, int | None]] = field(default_factory=dict)
    """Bytes by rank: of the host, and of the rank's GPU, if any."""
    most: Mapping[int, int] = field(default_factory=dict)
    """The most bytes of the host that each rank ever held."""
    complaints: Sequence[Complaint] = ()
    """Warnings and errors that its ranks wrote."""
    place: str = ""
    """Where rank 0's own code is, of a run that has no metrics yet."""
    live: bool = False
    """Whether it is drawn again and again, so that a key can end it."""


def frame(view: View, width: int, height: int) -> list[str]:
    """At most `height` lines, none wider than `width`."""
    above = [_head(view.summary, width), *_progress(view.summary, view.place, width), *_numbers(view, width)]
    keys = [console.styled(columns.cut(t("q quits; the training continues"), width), "dim", sys.stdout)]
    keys = keys if view.live else []
    # The lower parts are dropped before the run's name and numbers.
    parts = (_memory(view.memory, view.most, width), _complaints(view.complaints, width))
    below = [*_fitting(parts, height - len(above) - len(keys) - 1), *keys][: max(0, height - len(above) - 1)]
    room = height - len(above) - len(below) - 4
    loss = metrics.series(view.records, "loss")
    drawn = curve.draw(loss, width, min(room, _MOST_CURVE), braille=braille()) if room >= _LEAST_CURVE else []
    middle = ["", *drawn, ""] if drawn else [""]
    lines = [*above, *middle, *below]
    return lines[:height]


def to_dict(view: View, job: str | None = None) -> dict[str, Any]:
    """A run for `--json`: its line of `trainwiz runs` with its job's id, and what is known of it while it goes on."""
    newest = next((_finite(record) for record in reversed(view.records) if "update" in record), None)
    return {
        **runs.to_dict(view.summary, job),
        "seconds_left": view.seconds_left,
        "lowest_loss": view.lowest_loss,
        "newest": newest,
        "memory": [
            {"rank": rank, "host_bytes": host, "gpu_bytes": gpu, "most_host_bytes": view.most.get(rank)}
            for rank, (host, gpu) in sorted(view.memory.items())
        ],
        "place": view.place or None,
        "warnings": [{"text": one.text, "ranks": one.ranks, "times": one.times} for one in view.complaints],
    }


def _finite(record: Record) -> dict[str, Any]:
    """The record with null for what is not finite, which JSON does not have."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def braille() -> bool:
    """Whether the terminal shows braille; the Linux console and encodings other than UTF-8 do not."""
    return "utf" in (sys.stdout.encoding or "").lower() and os.environ.get("TERM") != "linux"


def _fitting(parts: Sequence[Sequence[str]], room: int) -> list[str]:
    """As many lines of the parts as there is room for; a part's heading never stands alone."""
    lines: list[str] = []
    for part in parts:
        if room - len(lines) > 1:
            lines += part[: room - len(lines)]
    return lines


def _head(summary: Summary, width: int) -> str:
    """The run's name, its state and its time; where the screen is too narrow, what is behind the name goes first."""
    plain = [summary.name, state_name(summary.state)]
    if columns.width("  ".join(plain)) > width:
        return console.styled(columns.cut(summary.name, width), "bold", sys.stdout)
    state = console.styled(state_name(summary.state), STYLES[summary.state], sys.stdout)
    parts = [console.styled(summary.name, "bold", sys.stdout), state]
    if summary.seconds is not None and columns.width("  ".join([*plain, clock_time(summary.seconds)])) <= width:
        parts.append(clock_time(summary.seconds))
    return "  ".join(parts)


def _progress(summary: Summary, place: str, width: int) -> list[str]:
    lines = []
    if summary.why:
        lines += columns.wrap(text(summary.why), width)
    if summary.updates is None and place:
        return [*lines, *columns.wrap(t("no metrics yet; rank 0 is in {place}", place=place), width)]
    if summary.updates is None:
        return [*lines, t("no metrics yet")]
    if not summary.total:
        return [*lines, t("update {update}", update=summary.updates)]
    words = t("update {update}/{total}", update=summary.updates, total=summary.total)
    share = min(1.0, summary.updates / summary.total)
    room = width - columns.width(words) - 8
    full, empty = ("█", "░") if braille() else ("#", ".")
    bar = full * round(share * room) + empty * (room - round(share * room))
    return [*lines, f"{words}  {bar} {share:>4.0%}"]


def _numbers(view: View, width: int) -> list[str]:
    summary = view.summary
    parts = []
    if summary.loss is not None:
        parts.append(
            t("loss {loss:.4f}", loss=summary.loss)
            if view.lowest_loss is None
            else t("loss {loss:.4f} (lowest {lowest:.4f})", loss=summary.loss, lowest=view.lowest_loss)
        )
    if summary.eval_loss is not None:
        parts.append(t("evaluation {loss:.4f}", loss=summary.eval_loss))
    if (speed := metrics.speed(view.records, _WINDOW)) is not None:
        parts.append(rate(speed, summary.task))
    parts += used(metrics.use(view.records, _WINDOW))
    if view.seconds_left is not None:
        parts.append(t("{time} left", time=clock_time(view.seconds_left)))
    return _filled(parts, width, " · ")


def _memory(memory: Mapping[int, tuple[int, int | None]], most: Mapping[int, int], width: int) -> list[str]:
    if len(memory) > _MOST_RANKS:
        return [t("memory"), *(f"  {line}" for line in _summed(memory, width - 2))]
    parts = []
    for rank, (host, gpu) in memory.items():
        words = t("rank {rank}: {host}", rank=rank, host=size(host))
        if most.get(rank, 0) > host:
            words = t("{held} (peak: {most})", held=words, most=size(most[rank]))
        parts.append(words if gpu is None else t("{host}, GPU {gpu}", host=words, gpu=size(gpu)))
    return [t("memory"), *(f"  {line}" for line in _filled(parts, width - 2, "   "))] if parts else []


def _summed(memory: Mapping[int, tuple[int, int | None]], width: int) -> list[str]:
    """Of many ranks, the least, the most and the sum."""
    hosts, gpus = [host for host, _ in memory.values()], [gpu for _, gpu in memory.values() if gpu is not None]
    lines = []
    for name, sizes in ((t("host"), hosts), ("GPU", gpus)):
        if sizes:
            line = t(
                "{name}: {least} to {most} per rank, {sum} for all {n}",
                name=name,
                least=size(min(sizes)),
                most=size(max(sizes)),
                sum=size(sum(sizes)),
                n=len(sizes),
            )
            lines += _broken(line, width)
    return lines


def _complaints(complaints: Sequence[Complaint], width: int) -> list[str]:
    if not complaints:
        return []
    lines = [t("warnings in the logs")]
    for each in complaints:
        ranks = ",".join(map(str, each.ranks[:4])) + ("…" if len(each.ranks) > 4 else "")
        times = f" ×{each.times}" if each.times > 1 else ""
        line = columns.shortened(f"  [{ranks}]{times} {each.text}", width)
        lines.append(console.styled(line, "warning", sys.stdout))
    return lines


def _filled(parts: Sequence[str], width: int, gap: str) -> list[str]:
    """The parts in as few lines as possible; one that is wider than a line is broken at a space."""
    lines: list[str] = []
    for part in parts:
        if lines and columns.width(lines[-1] + gap + part) <= width:
            lines[-1] += gap + part
        else:
            lines += _broken(part, width)
    return lines


def _broken(words: str, width: int) -> list[str]:
    """The words in lines, broken between them: a number that lost digits would be another one."""
    return [columns.cut(line, width) for line in columns.wrap(words, width, rest="  ")]
