"""Curves as SVG, colored by CSS variables; no script is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainwiz.record.metrics import Point, Series, finite, thinned, trend
from trainwiz.record.scale import Scale, scale

WIDTH, HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 40
_MOST_POINTS = 800
"""Points per curve; more than twice the number of pixels would only make the page larger."""

_DENSE = 200
"""A noisy curve with more points than this is drawn faintly, with its trend on top."""

_NOISY = 0.1
"""A curve is noisy if more than this share of its points are turning points."""


# docs/decisions/cli.md: Terminal and page share one drawing of curves, without a library
def svg(curves: Sequence[tuple[str, Series]], *, label: str, across: str, marks: Sequence[float] = ()) -> str:
    """One chart of named curves; empty if no curve has a number.

    A curve keeps its place in `curves`, and so its color, also where others have no number.
    `across` labels the x axis, `marks` are the updates at which the run was resumed. The page defines the colors
    `--curve-0`, `--curve-1`, ….
    """
    drawn = [(i, name, curve) for i, (name, curve) in enumerate(curves) if finite(curve)]
    if not drawn:
        return ""
    xs = [x for _, _, curve in drawn for x, y in curve if y is not None]
    x_scale = scale(xs, marks=6, whole=True)
    y_scale = scale([y for _, _, curve in drawn for y in finite(curve)])
    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}"'
    parts = [
        f'<svg class="chart" {head} xmlns="http://www.w3.org/2000/svg">',
        *_axes(x_scale, y_scale, across),
        *(_mark(x_scale.place(x)) for x in marks if x_scale.low <= x <= x_scale.high),
    ]
    for i, name, curve in drawn:
        parts += _curve(i, name, curve, x_scale, y_scale)
    return "".join([*parts, "</svg>"])


def _axes(x_scale: Scale, y_scale: Scale, across: str) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value, label in zip(y_scale.marks, y_scale.labels, strict=True):
        y = _y(y_scale.place(value))
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{y}" dy=".35em" text-anchor="end">{escape(label)}</text>')
    for value, label in zip(x_scale.marks, x_scale.labels, strict=True):
        x = _x(x_scale.place(value))
        parts.append(f'<path class="axis" d="M{x} {bottom}v4"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="tick" x="{middle:g}" y="{HEIGHT - 5}" text-anchor="middle">{escape(across)}</text>')
    return parts


def _mark(place: float) -> str:
    return f'<path class="mark" d="M{_x(place)} {_TOP}V{HEIGHT - _BOTTOM}"/>'


def _curve(i: int, name: str, curve: Series, x_scale: Scale, y_scale: Scale) -> list[str]:
    points = thinned(curve, _MOST_POINTS)
    style, dense = f'style="--c:var(--curve-{i})"', len(points) > _DENSE and _is_noisy(points)
    kind = "curve noise" if dense else "curve"
    title = f"<title>{escape(name)}</title>"
    parts = [f'<path class="{kind}" {style} d="{_path(points, x_scale, y_scale)}">{title}</path>']
    if dense:
        means = trend(curve, _DENSE // 2)
        parts.append(f'<path class="curve" {style} d="{_path(means, x_scale, y_scale)}"/>')
    # A few points, such as evaluations, are hardly visible as a line; a single one is invisible.
    if len(points) <= 12:
        parts += [
            f'<circle class="dot" {style} cx="{_x(x_scale.place(x))}" cy="{_y(y_scale.place(y))}" r="3"/>'
            for x, y in points
            if y is not None
        ]
    return parts


def _is_noisy(points: Sequence[Point]) -> bool:
    """Whether it goes up and down all the time; a smooth curve, such as a learning rate, needs no trend."""
    values = finite(points)
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(values, values[1:], values[2:], strict=False))
    return turns > _NOISY * len(values)


def _path(points: Sequence[Point], x_scale: Scale, y_scale: Scale) -> str:
    steps, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        steps.append(f"{pen}{_x(x_scale.place(x))} {_y(y_scale.place(y))}")
        pen = "L"
    return "".join(steps)


def _x(place: float) -> str:
    return f"{_LEFT + place * (WIDTH - _RIGHT - _LEFT):.1f}"


def _y(place: float) -> str:
    return f"{HEIGHT - _BOTTOM - place * (HEIGHT - _BOTTOM - _TOP):.1f}"
