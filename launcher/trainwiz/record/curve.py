"""A curve as lines of text: braille dots, or stars for terminals without braille."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz.record.metrics import Point
from trainwiz.record.scale import scale

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the braille pattern, by row and column: https://www.unicode.org/charts/PDF/U2800.pdf"""
_BRAILLE = 0x2800
_NARROWEST = 8


def draw(points: Sequence[Point], width: int, height: int, *, braille: bool = True) -> list[str]:
    """The curve in `height` lines of at most `width` columns, and the updates below; empty without a number."""
    numbers = [(x, y) for x, y in points if y is not None]
    if not numbers:
        return []
    y_scale = scale([y for _, y in numbers], marks=max(2, height // 2))
    margin = max(map(len, y_scale.labels)) + 2
    columns = width - margin
    if columns < _NARROWEST or height < 2:
        return []
    across, down = (2, 4) if braille else (1, 1)
    first, last = numbers[0][0], numbers[-1][0]
    dots = _dots(_columns(points, columns * across, first, last), y_scale.low, y_scale.high, height * down)
    rows = _rows(dots, columns, height, braille)
    labels = {
        round((1 - y_scale.place(y)) * (height - 1)): label
        for y, label in zip(y_scale.marks, y_scale.labels, strict=True)
    }
    bar, tick, corner = ("│", "┤", "└") if braille else ("|", "+", "+")
    lines = [
        f"{labels.get(i, ''):>{margin - 2}} {tick if i in labels else bar}{row}".rstrip() for i, row in enumerate(rows)
    ]
    left, right = f"{first:.0f}", f"{last:.0f}"
    lines.append(f"{'':>{margin - 1}}{corner}{('─' if braille else '-') * columns}")
    lines.append(f"{'':>{margin}}{left}{right if last > first else '':>{max(0, columns - len(left))}}")
    return lines


def _columns(points: Sequence[Point], columns: int, first: float, last: float) -> list[float | None]:
    """The mean value of each column, None at a gap; columns between two points are interpolated."""
    sums: dict[int, list[float]] = {}
    gaps: set[int] = set()
    for x, y in points:
        column = round((x - first) / (last - first) * (columns - 1)) if last > first else 0
        if y is None:
            gaps.add(column)
        else:
            sums.setdefault(column, []).append(y)
    known = {column: sum(ys) / len(ys) for column, ys in sums.items()}
    result: list[float | None] = [None] * columns
    at = sorted(known)
    for a, b in zip(at, at[1:] + at[-1:], strict=True):
        result[a] = known[a]
        if any(a < gap < b for gap in gaps):
            continue
        for column in range(a + 1, b):
            result[column] = known[a] + (known[b] - known[a]) * (column - a) / (b - a)
    return result


def _dots(values: Sequence[float | None], low: float, high: float, height: int) -> set[tuple[int, int]]:
    """Column and row (from the top) of each dot; steep parts are filled so that the line is unbroken."""
    dots: set[tuple[int, int]] = set()
    before: int | None = None
    for column, value in enumerate(values):
        if value is None:
            before = None
            continue
        # Values beyond the scale are drawn at its end.
        share = (high - max(low, min(value, high))) / (high - low)
        row = round(share * (height - 1))
        start = row if before is None else before + (row > before) - (row < before)
        dots |= {(column, r) for r in range(min(start, row), max(start, row) + 1)}
        before = row
    return dots


def _rows(dots: set[tuple[int, int]], columns: int, height: int, braille: bool) -> list[str]:
    if not braille:
        return ["".join("*" if (x, y) in dots else " " for x in range(columns)) for y in range(height)]
    cells = [[0] * columns for _ in range(height)]
    for x, y in dots:
        cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]
