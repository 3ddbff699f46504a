"""The index's growth as four small charts in one SVG, without a plotting library."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 380, 240, 48
Rows = Mapping[str, Mapping[str, float]]


def plot(grown: Mapping[str, Rows]) -> str:
    """`by_replicas` and `by_blocks` → match time and bytes per pair over each, x logarithmic."""
    charts = [
        chart(0, "replicas", grown["by_replicas"], "match_625_blocks_p50_us", "match, p50 µs"),
        chart(1, "replicas", grown["by_replicas"], "bytes_per_pair_by_gauge", "bytes per pair"),
        chart(2, "pairs", grown["by_blocks"], "match_625_blocks_p50_us", "match, p50 µs"),
        chart(3, "pairs", grown["by_blocks"], "bytes_per_pair_by_gauge", "bytes per pair"),
    ]
    size = f'width="{2 * WIDTH}" height="{2 * HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    body = "\n".join(charts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def chart(number: int, x_name: str, rows: Rows, key: str, title: str) -> str:
    """One line with its points, their values and the ends of both axes."""
    points = [(float(x), row[key]) for x, row in rows.items()]
    top = max(y for _, y in points) * 1.15
    placed = [place(x, y, points, top) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = "\n".join(
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3"/>'
        f'<text x="{px:.1f}" y="{py - 8:.1f}" text-anchor="middle">{y:.0f}</text>'
        f'<text x="{px:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{x:g}</text>'
        for (px, py), (x, y) in zip(placed, points, strict=True)
    )
    left, up = number % 2 * WIDTH, number // 2 * HEIGHT
    base = (
        f'<path d="M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}H{WIDTH - 16}" fill="none" stroke="#999"/>'
    )
    heading = f'<text x="{MARGIN}" y="24">{title} by {x_name} (up to {top:.0f})</text>'
    curve = f'<polyline points="{line}" fill="none" stroke="#036"/>'
    return f'<g transform="translate({left},{up})">{heading}{base}{curve}{marks}</g>'


def place(
    x: float, y: float, points: Sequence[tuple[float, float]], top: float
) -> tuple[float, float]:
    """A point in its chart's pixels."""
    low, high = math.log(points[0][0]), math.log(points[-1][0])
    across = (math.log(x) - low) / (high - low) * (WIDTH - 2 * MARGIN)
    return MARGIN + 16 + across, HEIGHT - MARGIN - y / top * (HEIGHT - 2 * MARGIN)
