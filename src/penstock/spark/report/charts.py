"""Plots in SVG that stretch to the width they get, while their labels keep the size of the text.

A plot is an ``svg`` whose viewBox is stretched in both directions (lines keep their width by
``non-scaling-stroke``) with labels of HTML around it. A plot scaled as a whole would have letters of 4 pixels on a
phone. Everything is a title away: each column and bar has its values as a ``<title>``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.axes import Axis, Floats, Tick, linear, logarithmic
from penstock.spark.report.markup import Markup, brief, join, tag

POINTS_MAX: Final = 240
"""Columns of a plot: about one for four pixels of a wide screen. More cost bytes and show nothing."""

HITS_MAX: Final = 96
"""Columns that can be pointed at: narrower ones cannot be hit."""

SERIES_MAX: Final = 7
"""Lines in one plot that people can tell apart; the rest is summed up as one."""

BARS_MAX: Final = 64
"""Bars in one plot: sizes have one for each power of two."""

MARKS_MAX: Final = 40
"""Places of damage that are marked in one plot."""

OTHERS: Final = "others"
"""The colour of what is summed up."""

_W: Final = 1000  # the plot's own coordinates
_H: Final = 400
_TOPS_WIDTH: Final = 340  # pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or the bars of one colour."""

    name: str
    values: Floats
    colour: str  # a class of the style sheet
    note: str = ""  # stands in the legend, behind the name

    def __post_init__(self) -> None:
        assert len(self.values) <= POINTS_MAX + 1


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
    words: Callable[[float], str],
    unit: str,
    base: int = 10,
    marks: Sequence[Mark] = (),
    scales: tuple[str, ...] = ("linear",),
) -> Markup:
    """Return a plot of lines over ``x``.

    With one ``x`` more than values it is stepped: they are the edges between which each value holds. ``scales``
    names the axes upwards, the first one shown; with two of them the reader chooses. ``key`` is unique in the page.
    """
    places = np.clip(across.place(x), 0, 1)
    highest = max((_highest(one.values) for one in series), default=0.0)
    layers: list[Markup] = []
    for scale in scales:
        upwards = (
            logarithmic(highest, words) if scale == "log" else linear(highest, words, base=base)
        )
        layers.append(
            tag(
                "div",
                _labels_up(upwards),
                _lines(upwards, places, series, across),
                class_=f"layer {scale}",
            )
        )
    plot = tag(
        "div", *layers, _overlay(across, x, places, series, words, marks),
        class_="plot", role="img", aria_label=_summary(title, series, words),
    )  # fmt: skip
    return _figure(
        key=key, title=title, caption=caption, unit=unit, plot=join(plot, _labels_across(across.ticks)),
        across=across.name, legend=_legend(series), scales=scales,
    )  # fmt: skip


def bar_chart(
    *,
    key: str,
    title: str,
    caption: str,
    labels: Sequence[str],
    titles: Sequence[str],
    series: Sequence[Series],
    words: Callable[[float], str],
    unit: str,
    across: str,
    base: int = 10,
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
    highest = float(tops.max()) if tops.size else 0.0
    upwards = logarithmic(highest, words) if scale == "log" else linear(highest, words, base=base)
    bars: list[Markup] = []
    width = _W / max(len(labels), 1)
    for i, hint in enumerate(titles):
        parts: list[Markup] = [tag("title", hint), _rect(i * width, 0, width, _H, "hit")]
        for j, one in enumerate(series):
            low = tops[j - 1][i] if is_stacked and j else 0.0
            inset = 0.12 if is_stacked or j == 0 else 0.3
            bottom, top = upwards.place(np.array([low, tops[j][i]])) * _H
            if top > bottom:
                height = max(top - bottom, 1.5)
                parts.append(
                    _rect(
                        (i + inset) * width,
                        _H - bottom - height,
                        width * (1 - 2 * inset),
                        height,
                        one.colour,
                    )
                )
        bars.append(tag("g", *parts))
    svg = _svg(_grid(upwards), *bars)
    plot = tag(
        "div", tag("div", _labels_up(upwards), svg, class_="layer"), _tops(tops, upwards, words),
        class_="plot bars", role="img", aria_label=_summary(title, series, words),
    )  # fmt: skip
    return _figure(
        key=key, title=title, caption=caption, unit=unit, plot=join(plot, _labels_below(labels, is_small=is_small)),
        across=across, legend=_legend(series), scales=(scale,),
    )  # fmt: skip


def sparkline(values: Floats, colour: str, hint: str) -> Markup:
    """Return a line of a word's size, its area filled: the shape alone."""
    highest = _highest(values)
    x = np.linspace(0, 1, max(len(values), 2)) * 100
    y = 24 - (np.nan_to_num(values) / highest if highest > 0 else np.zeros(len(values))) * 22
    if len(y) == 1:
        y = np.repeat(y, 2)
    line = "L".join(f"{a:.4g} {b:.3g}" for a, b in zip(x, y, strict=True))
    return tag(
        "svg", tag("title", hint), tag("path", d=f"M0 25L{line}L100 25", class_=colour),
        viewBox="0 0 100 25", preserveAspectRatio="none", class_="spark", role="img",
    )  # fmt: skip


def span_bar(first: float, end: float, *, colour: str, hint: str) -> Markup:
    """Return a stretch of a whole that goes from 0 to 1: from when to when something lasted."""
    first, end = min(max(first, 0.0), 0.995), min(max(end, 0.0), 1.0)
    width = max(end - first, 0.005) * 100
    return tag(
        "svg", tag("title", hint), _rect(0, 9, 100, 1, "rail"),
        tag("rect", x=f"{first * 100:.4g}", y=4, width=f"{width:.4g}", height=11, class_=colour),
        viewBox="0 0 100 19", preserveAspectRatio="none", class_="stretch", role="img",
    )  # fmt: skip


def group_columns(columns: int) -> list[slice]:
    """Return which columns become one, so that at most ``POINTS_MAX`` are left."""
    step = max(1, math.ceil(columns / POINTS_MAX))
    return [slice(i, min(i + step, columns)) for i in range(0, columns, step)]


def _highest(values: Floats) -> float:
    found = values[np.isfinite(values)]
    return max(float(found.max()), 0.0) if len(found) else 0.0


def _figure(
    *, key: str, title: str, caption: str, unit: str, plot: Markup, across: str, legend: Markup,
    scales: tuple[str, ...],
) -> Markup:  # fmt: skip
    choice: list[Markup] = []
    names: list[Markup] = []
    if len(scales) > 1:
        for i, scale in enumerate(scales):
            choice.append(
                tag("input", type="radio", name=key, id=f"{key}-{scale}", class_=f"pick {scale}",
                    checked="" if i == 0 else None)
            )  # fmt: skip
            names.append(tag("label", scale, for_=f"{key}-{scale}", class_=scale))
    head = tag(
        "figcaption", tag("h3", title), tag("span", *names, class_="picks") if names else "",
        tag("p", caption) if caption else "",
    )  # fmt: skip
    axes = tag("div", tag("span", unit), class_="unit")
    return tag("figure", *choice, head, axes, plot, tag("div", across, class_="across"), legend)


def _svg(*content: str, class_: str = "") -> Markup:
    return tag(
        "svg", *content, viewBox=f"0 0 {_W} {_H}", preserveAspectRatio="none", aria_hidden="true",
        class_=class_ or None,
    )  # fmt: skip


def _rect(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    return tag(
        "rect", x=f"{x:.5g}", y=f"{y:.5g}", width=f"{width:.5g}", height=f"{height:.5g}", class_=class_
    )  # fmt: skip


def _grid(upwards: Axis, across: Axis | None = None) -> Markup:
    lines = "".join(f"M0 {(1 - tick.at) * _H:.5g}H{_W}" for tick in upwards.ticks)
    if across is not None:
        lines += "".join(
            f"M{tick.at * _W:.5g} 0V{_H}" for tick in across.ticks if 0 <= tick.at <= 1
        )
    return tag("path", d=lines, class_="grid")


def _labels_up(upwards: Axis) -> Markup:
    return tag(
        "div",
        *(tag("span", tick.label, style=f"bottom:{tick.at * 100:.4g}%") for tick in upwards.ticks),
        class_="up", aria_hidden="true",
    )  # fmt: skip


def _labels_across(ticks: Sequence[Tick]) -> Markup:
    shown = [tick for tick in ticks if 0 <= tick.at <= 1]
    return tag(
        "div",
        *(
            tag("span", tick.label, style=f"left:{tick.at * 100:.4g}%", class_="wide" if i % 2 else None)
            for i, tick in enumerate(shown)
        ),
        class_="ticks", aria_hidden="true",
    )  # fmt: skip


def _labels_below(labels: Sequence[str], *, is_small: bool) -> Markup:
    # A label of the text's size has to fit into its share of the narrowest plot, some 280 pixels.
    longest = max((len(label) for label in labels), default=1)
    skip = max(1, math.ceil(len(labels) * (longest * 7 + 6) / 280))
    skip_wide = skip // 2 if skip % 2 == 0 and not is_small else skip
    return tag(
        "div",
        *(
            tag(
                "span", label, style=f"left:{(i + 0.5) / len(labels) * 100:.4g}%",
                class_="wide" if i % skip else None,
            )
            for i, label in enumerate(labels)
            if i % skip_wide == 0
        ),
        class_="ticks", aria_hidden="true",
    )  # fmt: skip


def _lines(upwards: Axis, places: Floats, series: Sequence[Series], across: Axis) -> Markup:
    paths: list[Markup] = []
    for one in reversed(series):  # the first one is drawn last, over the others
        heights = (1 - np.clip(upwards.place(one.values), 0, 1)) * _H
        is_stepped = len(places) == len(heights) + 1
        d = _steps(places * _W, heights) if is_stepped else _polyline(places * _W, heights)
        if len(series) == 1 and np.isfinite(heights).all() and len(heights) > 1:
            area = f"{d}L{places[-1] * _W:.5g} {_H}L{places[0] * _W:.5g} {_H}Z"
            paths.append(tag("path", d=area, class_=f"fill {one.colour}"))
        paths.append(tag("path", d=d, class_=f"line {one.colour}"))
    return _svg(_grid(upwards, across), *paths)


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
    words: Callable[[float], str],
    marks: Sequence[Mark],
) -> Markup:
    """Return what is pointed at: columns with the values of all series, and marks, over the lines."""
    columns = len(series[0].values) if series else 0
    edges = places * _W
    if columns and len(places) == columns:
        middles = (edges[1:] + edges[:-1]) / 2
        edges = np.concatenate([[0.0], middles, [float(_W)]])
    parts: list[Markup] = []
    step = max(1, math.ceil(columns / HITS_MAX))
    for i in range(0, columns, step):
        j = min(i + step, columns)
        # The highest of the columns that share a tooltip, as the plot itself shows peaks.
        lines = [across.words(float(x[j - 1]))]
        lines += [f"{brief(one.name)}: {words(_highest(one.values[i:j]))}" for one in series]
        middle = (edges[i] + edges[j]) / 2 if len(places) > columns else places[j - 1] * _W
        parts.append(
            tag(
                "g", tag("title", "\n".join(lines)), _rect(edges[i], 0, max(edges[j] - edges[i], 0.1), _H, "hit"),
                tag("path", d=f"M{middle:.5g} 0V{_H}", class_="cross"), class_="column",
            )
        )  # fmt: skip
    for mark in marks[:MARKS_MAX]:
        at = float(np.clip(across.place(np.array([mark.at])), 0, 1)[0]) * _W
        line = tag("path", d=f"M{at:.5g} 0V{_H}", class_="mark")
        parts.append(tag("g", tag("title", mark.words), _rect(at - 4, 0, 8, _H, "hit"), line))
    return _svg(*parts, class_="over")


def _tops(tops: Floats, upwards: Axis, words: Callable[[float], str]) -> Markup:
    heights = tops.max(axis=0) if tops.size else np.zeros(0)
    longest = max((len(words(float(height))) for height in heights), default=0)
    # They have to fit side by side into the narrowest plot of a wide screen.
    if len(heights) * (longest * 6 + 4) > _TOPS_WIDTH:
        return Markup("")
    return tag(
        "div",
        *(
            tag(
                "span", words(float(height)),
                style=f"left:{(i + 0.5) / len(heights) * 100:.4g}%;bottom:{float(upwards.place(height)) * 100:.4g}%",
            )
            for i, height in enumerate(heights)
            if height > 0
        ),
        class_="tops wide", aria_hidden="true",
    )  # fmt: skip


def _legend(series: Sequence[Series]) -> Markup:
    items = [
        tag(
            "li",
            tag("i", class_=f"swatch {one.colour}"),
            tag("bdi", one.name),
            tag("small", one.note),
        )
        for one in series
    ]
    return tag("ul", *items, class_="legend")


def _summary(title: str, series: Sequence[Series], words: Callable[[float], str]) -> str:
    peaks = "; ".join(f"{brief(one.name)} up to {words(_highest(one.values))}" for one in series)
    return f"{title}: {peaks or units.NONE}"
