"""What every plot has around it: title, labels, grid and legend; and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.axes import Axis, Floats, Tick, linear, logarithmic
from penstock.spark.report.markup import Markup, brief, tag

POINTS_MAX: Final = 240
"""Columns of a plot: about one for four pixels of a wide screen. More cost bytes and show nothing."""

OTHERS: Final = "others"
"""The colour of what is summed up."""

WIDTH: Final = 1000  # of a plot, in its own coordinates; the browser stretches them
HEIGHT: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a plot counts."""

    name: str
    ticks: Callable[[float], str]  # few digits, for an axis
    values: Callable[[float], str]  # for a tooltip
    base: int = 10  # 2 for bytes, whose round numbers are those in KiB
    is_whole: bool = True  # half a task is none; a rate may be anything

    def axis(self, highest: float, scale: str) -> Axis:
        """Return the axis upwards: ``linear`` or ``log``."""
        if scale == "log":
            return logarithmic(highest, self.ticks)
        return linear(highest, self.ticks, base=self.base, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or the bars of one colour."""

    name: str
    values: Floats
    colour: str  # a class of the style sheet
    note: str = ""  # stands in the legend, behind the name

    def __post_init__(self) -> None:
        assert len(self.values) <= POINTS_MAX + 1


def highest(values: Floats) -> float:
    """Return the highest value, 0 if there is none above it."""
    found = values[np.isfinite(values)]
    return max(float(found.max()), 0.0) if len(found) else 0.0


def figure(
    *, key: str, title: str, caption: str, unit: str, plot: Markup, across: str, legend: Markup,
    scales: tuple[str, ...],
) -> Markup:  # fmt: skip
    """Return a whole figure. With two ``scales`` it holds a plot for each, and the reader chooses."""
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


def svg(*content: str, class_: str = "") -> Markup:
    """Return a drawing that is stretched to its place."""
    return tag(
        "svg", *content, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", aria_hidden="true",
        class_=class_ or None,
    )  # fmt: skip


def rect(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """Return a rectangle."""
    return tag(
        "rect", x=f"{x:.5g}", y=f"{y:.5g}", width=f"{width:.5g}", height=f"{height:.5g}", class_=class_
    )  # fmt: skip


def grid(upwards: Axis, across: Axis | None = None) -> Markup:
    """Return the lines behind a plot."""
    lines = "".join(f"M0 {(1 - tick.at) * HEIGHT:.5g}H{WIDTH}" for tick in upwards.ticks)
    if across is not None:
        lines += "".join(
            f"M{tick.at * WIDTH:.5g} 0V{HEIGHT}" for tick in across.ticks if 0 <= tick.at <= 1
        )
    return tag("path", d=lines, class_="grid")


def labels_up(upwards: Axis) -> Markup:
    """Return the labels of the axis upwards."""
    return tag(
        "div",
        *(tag("span", tick.label, style=f"bottom:{tick.at * 100:.4g}%") for tick in upwards.ticks),
        class_="up", aria_hidden="true",
    )  # fmt: skip


def labels_across(ticks: Sequence[Tick]) -> Markup:
    """Return the labels below a plot of lines; a narrow screen shows every second."""
    shown = [tick for tick in ticks if 0 <= tick.at <= 1]
    return tag(
        "div",
        *(
            tag("span", tick.label, style=f"left:{tick.at * 100:.4g}%", class_="wide" if i % 2 else None)
            for i, tick in enumerate(shown)
        ),
        class_="ticks", aria_hidden="true",
    )  # fmt: skip


def labels_below(labels: Sequence[str], *, is_small: bool) -> Markup:
    """Return the labels below bars."""
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


def legend(series: Sequence[Series]) -> Markup:
    """Return what each colour stands for."""
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


def summary(title: str, series: Sequence[Series], unit: Unit) -> str:
    """Return the plot in words, for those who cannot see it."""
    peaks = "; ".join(
        f"{brief(one.name)} up to {unit.values(highest(one.values))}" for one in series
    )
    return f"{title}: {peaks or units.NONE}"
