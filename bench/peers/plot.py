"""The figures as a picture: one panel a line, one bar a system, drawn as SVG without a library."""

from __future__ import annotations

from html import escape

from peers.lines import LINES, Line
from peers.results import OURS, Results

WIDTH, COLUMNS = 1000, 2
MARGIN, BAR, GAP, TITLE = 20, 16, 6, 34
NAME_WIDTH, VALUE_WIDTH = 150, 80
ACCENT, GREY, INK = "#0b6e99", "#b8bec4", "#1f2328"


def draw(results: Results, size: int) -> str:
    """Return the picture of all lines at one payload size."""
    systems = results.systems
    panel_height = TITLE + len(systems) * (BAR + GAP) + MARGIN
    panel_width = (WIDTH - MARGIN) // COLUMNS
    rows = -(-len(LINES) // COLUMNS)
    height = MARGIN + rows * panel_height
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{INK}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, line in enumerate(LINES):
        left = MARGIN + number % COLUMNS * panel_width
        top = MARGIN + number // COLUMNS * panel_height
        parts += _panel(results, line, size, left=left, top=top, width=panel_width - MARGIN)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    results: Results, line: Line, size: int, *, left: int, top: int, width: int
) -> list[str]:
    unit = "µs, less is better" if line.less_is_better else line.unit
    title = escape(f"({line.key}) {_short(line)} · {unit}")
    parts = [f'<text x="{left}" y="{top + 12}" font-weight="bold">{title}</text>']
    values = {name: results.value(line, size, name) for name in results.systems}
    known = {name: value for name, value in values.items() if value}
    scale = (width - NAME_WIDTH - VALUE_WIDTH) / max(known.values(), default=1.0)
    for row, (name, value) in enumerate(known.items()):
        middle = top + TITLE + row * (BAR + GAP)
        length = max(1.0, value * scale)
        colour = ACCENT if name == OURS else GREY
        bar = left + NAME_WIDTH
        parts += [
            f'<text x="{bar - 6}" y="{middle + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{bar}" y="{middle}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{bar + length + 5:.1f}" y="{middle + 12}">{value:,.0f}</text>',
        ]
    return parts


def _short(line: Line) -> str:
    return line.title.split(":")[0]
