"""Plots in SVG that stretch to the width they get, while their labels keep the size of the text.

A plot is an ``svg`` whose viewBox is stretched in both directions (lines keep their width by
``non-scaling-stroke``) with labels of HTML around it. A plot scaled as a whole would have letters of 4 pixels on a
phone. Everything is a title away: each column and bar has its values as a ``<title>``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.spark.report.axes import Axis, Floats
from penstock.spark.report.frame import (
    HEIGHT,
    POINTS_MAX,
    WIDTH,
    Series,
    Unit,
    figure,
    grid,
    highest,
    labels_across,
    labels_below,
    labels_up,
    legend,
    rect,
    summary,
    svg,
)
from penstock.spark.report.markup import Markup, brief, join, tag

HITS_MAX: Final = 96
"""Columns that can be pointed at: narrower ones cannot be hit."""

SERIES_MAX: Final = 7
"""Lines in one plot that people can tell apart; the rest is summed up as one."""

BARS_MAX: Final = 64
"""Bars in one plot: sizes have one for each power of two."""

MARKS_MAX: Final = 40
"""Places of damage that are marked in one plot."""

_TOPS_WIDTH: Final = 340  # pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place along the plot that one must not overlook."""

    at: float  # a value of the axis across
    words: str


def line_chart(
    *,
    key: str,
    title: str,
    caption: str,
    across: Axis,
    x: Floats,
    series: Sequence[Series],
    unit: Unit,
    marks: Sequence[Mark] = (),
    scales: tuple[str, ...] = ("linear",),
) -> Markup:
    """Return a plot of lines over ``x``.

    With one ``x`` more than values it is stepped: they are the edges between which each value holds. ``scales``
    names the axes upwards, the first one shown; with two of them the reader chooses. ``key`` is unique in the page.
    """
    places = np.clip(across.place(x), 0, 1)
    top = max((highest(one.values) for one in series), default=0.0)
    layers: list[Markup] = []
    for scale in scales:
        upwards = unit.axis(top, scale)
        layers.append(
            tag(
                "div",
                labels_up(upwards),
                _lines(upwards, places, series, across),
                class_=f"layer {scale}",
            )
        )
    plot = tag(
        "div", *layers, _overlay(across, x, places, series, unit, marks),
        class_="plot", role="img", aria_label=summary(title, series, unit),
    )  # fmt: skip
    return figure(
        key=key, title=title, caption=caption, unit=unit.name, plot=join(plot, labels_across(across.ticks)),
        across=across.name, legend=legend(series), scales=scales,
    )  # fmt: skip


def bar_chart(
    *,
    key: str,
    title: str,
    caption: str,
    labels: Sequence[str],
    titles: Sequence[str],
    series: Sequence[Series],
    unit: Unit,
    across: str,
    is_stacked: bool = True,
    is_small: bool = False,
    scale: str = "linear",
) -> Markup:
    """Return a plot of bars, stacked or each series before the one behind it.

    ``titles`` are the bars' tooltips. A plot that ``is_small`` stands beside two others.
    """
    assert len(labels) == len(titles) <= BARS_MAX
    rows = [np.nan_to_num(one.values) for one in series]
    tops = np.cumsum(rows, axis=0) if is_stacked and rows else np.array(rows)
    upwards = unit.axis(float(tops.max()) if tops.size else 0.0, scale)
    bars: list[Markup] = []
    width = WIDTH / max(len(labels), 1)
    for i, hint in enumerate(titles):
        parts: list[Markup] = [tag("title", hint), rect(i * width, 0, width, HEIGHT, "hit")]
        for j, one in enumerate(series):
            low = tops[j - 1][i] if is_stacked and j else 0.0
            inset = 0.12 if is_stacked or j == 0 else 0.3
            bottom, top = upwards.place(np.array([low, tops[j][i]])) * HEIGHT
            if top > bottom:
                height = max(top - bottom, 1.5)
                parts.append(
                    rect(
                        (i + inset) * width,
                        HEIGHT - bottom - height,
                        width * (1 - 2 * inset),
                        height,
                        one.colour,
                    )
                )
        bars.append(tag("g", *parts))
    drawing = svg(grid(upwards), *bars)
    plot = tag(
        "div", tag("div", labels_up(upwards), drawing, class_="layer"), _tops(tops, upwards, unit),
        class_="plot bars", role="img", aria_label=summary(title, series, unit),
    )  # fmt: skip
    return figure(
        key=key, title=title, caption=caption, unit=unit.name, plot=join(plot, labels_below(labels, is_small=is_small)),
        across=across, legend=legend(series), scales=(scale,),
    )  # fmt: skip


def group_columns(columns: int) -> list[slice]:
    """Return which columns become one, so that at most ``POINTS_MAX`` are left."""
    step = max(1, math.ceil(columns / POINTS_MAX))
    return [slice(i, min(i + step, columns)) for i in range(0, columns, step)]


def _lines(upwards: Axis, places: Floats, series: Sequence[Series], across: Axis) -> Markup:
    paths: list[Markup] = []
    for one in reversed(series):  # the first one is drawn last, over the others
        heights = (1 - np.clip(upwards.place(one.values), 0, 1)) * HEIGHT
        is_stepped = len(places) == len(heights) + 1
        d = _steps(places * WIDTH, heights) if is_stepped else _polyline(places * WIDTH, heights)
        if len(series) == 1 and np.isfinite(heights).all() and len(heights) > 1:
            area = f"{d}L{places[-1] * WIDTH:.5g} {HEIGHT}L{places[0] * WIDTH:.5g} {HEIGHT}Z"
            paths.append(tag("path", d=area, class_=f"fill {one.colour}"))
        paths.append(tag("path", d=d, class_=f"line {one.colour}"))
    return svg(grid(upwards, across), *paths)


def _polyline(x: Floats, y: Floats) -> str:
    """Return a path through the points; where there is none, it is broken. A lone point is a round dot."""
    parts: list[str] = []
    is_drawing = False
    for a, b in zip(x, y, strict=True):
        if math.isfinite(b):
            parts.append(f"{'L' if is_drawing else 'M'}{a:.5g} {b:.4g}")
            is_drawing = True
        else:
            is_drawing = False
    return "".join(parts) + "h0" if parts else ""


def _steps(edges: Floats, y: Floats) -> str:
    parts: list[str] = []
    is_drawing = False
    for i, b in enumerate(y):
        if math.isfinite(b):
            start = f"V{b:.4g}" if is_drawing else f"M{edges[i]:.5g} {b:.4g}"
            parts.append(f"{start}H{edges[i + 1]:.5g}")
            is_drawing = True
        else:
            is_drawing = False
    return "".join(parts)


def _overlay(
    across: Axis,
    x: Floats,
    places: Floats,
    series: Sequence[Series],
    unit: Unit,
    marks: Sequence[Mark],
) -> Markup:
    """Return what is pointed at: columns with the values of all series, and marks, over the lines."""
    columns = len(series[0].values) if series else 0
    edges = places * WIDTH
    if columns and len(places) == columns:
        middles = (edges[1:] + edges[:-1]) / 2
        edges = np.concatenate([[0.0], middles, [float(WIDTH)]])
    parts: list[Markup] = []
    step = max(1, math.ceil(columns / HITS_MAX))
    for i in range(0, columns, step):
        j = min(i + step, columns)
        # The highest of the columns that share a tooltip, as the plot itself shows peaks.
        lines = [across.words(float(x[i if len(places) > columns else j - 1]))]
        lines += [f"{brief(one.name)}: {unit.values(highest(one.values[i:j]))}" for one in series]
        middle = (edges[i] + edges[j]) / 2 if len(places) > columns else places[j - 1] * WIDTH
        parts.append(
            tag(
                "g", tag("title", "\n".join(lines)), rect(edges[i], 0, max(edges[j] - edges[i], 0.1), HEIGHT, "hit"),
                tag("path", d=f"M{middle:.5g} 0V{HEIGHT}", class_="cross"), class_="column",
            )
        )  # fmt: skip
    for mark in marks[:MARKS_MAX]:
        at = float(np.clip(across.place(np.array([mark.at])), 0, 1)[0]) * WIDTH
        line = tag("path", d=f"M{at:.5g} 0V{HEIGHT}", class_="mark")
        parts.append(tag("g", tag("title", mark.words), rect(at - 4, 0, 8, HEIGHT, "hit"), line))
    return svg(*parts, class_="over")


def _tops(tops: Floats, upwards: Axis, unit: Unit) -> Markup:
    heights = tops.max(axis=0) if tops.size else np.zeros(0)
    longest = max((len(unit.ticks(float(height))) for height in heights), default=0)
    # They have to fit side by side into the narrowest plot of a wide screen.
    if len(heights) * (longest * 6 + 4) > _TOPS_WIDTH:
        return Markup("")
    return tag(
        "div",
        *(
            tag(
                "span", unit.ticks(float(height)),
                style=f"left:{(i + 0.5) / len(heights) * 100:.4g}%;bottom:{float(upwards.place(height)) * 100:.4g}%",
            )
            for i, height in enumerate(heights)
            if height > 0
        ),
        class_="tops wide", aria_hidden="true",
    )  # fmt: skip
