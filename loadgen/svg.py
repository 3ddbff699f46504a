"""Plots as inline SVG: lines, dots and bars on one pair of axes, with nothing to load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 28, 44
COLOURS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#64748b")
MAX_POINTS: Final = 400
"""Per series: more cannot be told apart at this size, and would make the page heavy."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """`kind`: "line", "steps", "dots" or "bars" (one bar per point, in its group's place)."""

    name: str
    points: Sequence[Point]
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class Plot:
    """`labels` name whole x values, for bars. `y_max` None: as high as the points."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    labels: Sequence[str] = field(default=())
    y_max: float | None = None

    def svg(self) -> str:
        """An <svg> element; without any point it says so."""
        points = [point for one in self.series for point in one.points]
        frame = _Frame.around(self, points)
        shown = "".join(self._draw(n, one, frame) for n, one in enumerate(self.series))
        body = shown if points else _text(WIDTH / 2, HEIGHT / 2, "no data", "middle")
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
            f'<text x="{LEFT}" y="16" class="title">{escape(self.title)}</text>'
            f"{frame.axes(self)}{body}{self._legend()}</svg>"
        )

    def _draw(self, number: int, series: Series, frame: _Frame) -> str:
        colour = COLOURS[number % len(COLOURS)]
        if series.kind == "bars":
            return self._bars(number, series, frame)
        places = [frame.place(point) for point in thin(series.points)]
        if series.kind == "dots":
            dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
            return f'<g fill="{colour}" fill-opacity="0.55">{dots}</g>'
        path = _steps(places) if series.kind == "steps" else _line(places)
        return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def _bars(self, number: int, series: Series, frame: _Frame) -> str:
        group = frame.unit * 0.8
        width = group / len(self.series)
        colour = COLOURS[number % len(COLOURS)]
        found = []
        for point in series.points:
            x, y = frame.place(point)
            left = x - group / 2 + number * width
            found.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(width - 1, 1):.1f}"'
                f' height="{max(frame.bottom - y, 0):.1f}"/>'
            )
        return f'<g fill="{colour}">{"".join(found)}</g>'

    def _legend(self) -> str:
        if len(self.series) < 2:
            return ""
        found, x = [], float(LEFT + 8)
        for number, one in enumerate(self.series):
            colour = COLOURS[number % len(COLOURS)]
            found.append(f'<rect x="{x:.0f}" y="{TOP + 4}" width="9" height="9" fill="{colour}"/>')
            found.append(_text(x + 13, TOP + 12, one.name, "start"))
            x += 26 + 6.5 * len(one.name)
        return "".join(found)


@dataclass(frozen=True, slots=True)
class _Frame:
    x_low: float
    x_high: float
    y_high: float

    @classmethod
    def around(cls, plot: Plot, points: Sequence[Point]) -> _Frame:
        xs = [x for x, _ in points] or [0.0, 1.0]
        top = plot.y_max or max((y for _, y in points), default=1.0) or 1.0
        if plot.labels:
            return cls(-0.5, len(plot.labels) - 0.5, top * 1.15)
        return cls(min(0.0, *xs, 0.0), max(xs) or 1.0, top * 1.02)

    @property
    def bottom(self) -> float:
        return HEIGHT - BOTTOM

    @property
    def unit(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (self.x_high - self.x_low)

    def place(self, point: Point) -> Point:
        x, y = point
        height = self.bottom - TOP
        return LEFT + (x - self.x_low) * self.unit, self.bottom - height * min(y / self.y_high, 1.0)

    def axes(self, plot: Plot) -> str:
        found = []
        for value in ticks(self.y_high):
            _, y = self.place((self.x_low, value))
            found.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>')
            found.append(_text(LEFT - 6, y + 4, number(value), "end"))
        for value, label in self._x_ticks(plot):
            x, _ = self.place((value, 0.0))
            found.append(_text(x, self.bottom + 15, label, "middle"))
        found.append(f'<path d="M{LEFT} {TOP}V{self.bottom}H{WIDTH - RIGHT}" class="axis"/>')
        found.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, plot.x_label, "middle"))
        middle = (TOP + self.bottom) / 2
        found.append(
            f'<text x="12" y="{middle:.0f}" text-anchor="middle"'
            f' transform="rotate(-90 12 {middle:.0f})">{escape(plot.y_label)}</text>'
        )
        return "".join(found)

    def _x_ticks(self, plot: Plot) -> Iterable[tuple[float, str]]:
        if plot.labels:
            every = max(1, math.ceil(len(plot.labels) / 16))
            return [(n, label) for n, label in enumerate(plot.labels) if n % every == 0]
        return [(value, number(value)) for value in ticks(self.x_high)]


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MAX_POINTS` of them, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return points
    step = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(n * step)] for n in range(MAX_POINTS)]


def ticks(high: float) -> list[float]:
    """Round values from zero up to `high`: four to eight of them."""
    if not high > 0 or not math.isfinite(high):
        return [0.0]
    rough = high / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    return [n * step for n in range(int(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """As short as it can be: 0.25, 12, 1.5k."""
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.6g}"


def _line(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) if places else ""


def _steps(places: Sequence[Point]) -> str:
    if not places:
        return ""
    (x, y), *rest = places
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
