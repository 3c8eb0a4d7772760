"""Tables that people read: a bounded number of rows, words for what was left out, and drawings of a word's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.axes import Floats
from penstock.spark.report.frame import highest, rect
from penstock.spark.report.markup import Markup, join, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's head, and how its cells look."""

    name: str
    is_number: bool = False
    is_wide: bool = False  # left out where the screen is narrow
    class_: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, left_out: int = 0, noun: str = "row",
    class_: str = "", label: str = "",
) -> Markup:  # fmt: skip
    """Return a table. With class ``cards``, each row is a card of its own where the screen is narrow."""
    classes = [
        " ".join(filter(None, ["number" * c.is_number, "wide" * c.is_wide, c.class_])) or None
        for c in columns
    ]
    head = tag(
        "tr", *(tag("th", c.name, scope="col", class_=k) for c, k in zip(columns, classes, strict=True))
    )  # fmt: skip
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=k, data_label=c.name)
                for c, k, cell in zip(columns, classes, row, strict=True)
            ),
        )
        for row in rows
    ]
    made = tag(
        "div",
        tag(
            "table",
            tag("thead", head),
            tag("tbody", *body),
            class_=class_ or None,
            aria_label=label or None,
        ),
        class_="scroll",
    )
    return join(made, rest(left_out, noun))


def meter(value: float | None, *, most: float) -> Markup:
    """Return a count with a bar beside it, full for ``most``."""
    share = (value or 0.0) / most * 100 if most > 0 else 0.0
    bar = tag("i", tag("i", style=f"width:{share:.3g}%"), class_="track")
    return tag("span", bar, units.count(value), class_="meter")


def rest(left_out: int, noun: str) -> Markup:
    """Return the words for rows that are not shown, if there are any."""
    if not left_out:
        return Markup("")
    return tag(
        "p", f"… and {units.plural(left_out, f'more {noun}')}, not shown here.", class_="rest"
    )


SPARK_POINTS: Final = 50
"""Points of a line in a cell, which is about 150 pixels wide."""


def sparkline(values: Floats, colour: str, hint: str) -> Markup:
    """Return a line of a word's size, its area filled: the shape alone."""
    assert len(values), "nothing to draw"
    top = highest(values)
    x = np.linspace(0, 1, max(len(values), 2)) * 100
    y = 24 - (np.nan_to_num(values) / top if top > 0 else np.zeros(len(values))) * 22
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
        "svg", tag("title", hint), rect(0, 9, 100, 1, "rail"),
        tag("rect", x=f"{first * 100:.4g}", y=4, width=f"{width:.4g}", height=11, class_=colour),
        viewBox="0 0 100 19", preserveAspectRatio="none", class_="stretch", role="img",
    )  # fmt: skip


def peaks(values: Floats) -> Floats:
    """Return at most ``SPARK_POINTS`` values, each the highest of those it stands for."""
    step = max(1, -(-len(values) // SPARK_POINTS))
    return np.array([values[i : i + step].max() for i in range(0, len(values), step)])
