"""Drawings of a word's size, for the cells of a table."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.spark.report.axes import Floats
from penstock.spark.report.frame import highest, rect
from penstock.spark.report.markup import Markup, tag

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
