"""The plots along the log of one source: depth by queue, and what came and went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.axes import Axis, Floats, positions, times
from penstock.spark.report.charts import MARKS_MAX, Mark, group_columns, line_chart
from penstock.spark.report.frame import OTHERS, Series, Unit
from penstock.spark.report.inputs import Inputs
from penstock.spark.report.markup import Markup, tag
from penstock.spark.report.measures import Depth, Throughput

_UNEVEN: Final = 100
"""A queue below this part of the deepest one is a flat line; then the plot begins with the steps of ten."""


def depth_chart(
    depth: Depth, colours: Mapping[str, str], marks: Sequence[Mark], *, key: str
) -> Markup:
    """Return the depth of the queues that have a colour, and of the others together."""
    if not len(depth.buckets):
        return _nothing("Depth", "No depth is known of this source.")
    x = depth.index if depth.time is None else depth.time
    # The last bucket stays alone: where the line ends is what waits now.
    groups = [*group_columns(len(x) - 1), slice(len(x) - 1, len(x))]
    series = [
        _depth_series(name or "(default)", depth.series([name]), groups, colour)
        for name, colour in colours.items()
        if name in depth
    ]
    others = [name for name in depth.queues if name not in colours]
    if others:
        words = units.plural(len(others), "other queue")
        series.append(_depth_series(words, depth.series(others), groups, OTHERS))
    tops = [float(one.values.max()) for one in series]
    is_uneven = min((top for top in tops if top > 0), default=0.0) < max(tops) / _UNEVEN
    return line_chart(
        key=f"{key}-depth",
        title="Depth",
        caption=_depth_caption(depth, groups[0], marks),
        across=_axis(x, is_time=depth.time is not None),
        x=np.array([x[group][-1] for group in groups]),
        series=series,
        unit=Unit(name="tasks waiting", ticks=units.short, values=units.count),
        marks=marks,
        scales=("log", "linear") if is_uneven else ("linear", "log"),
    )


def throughput_charts(found: Throughput, depth: Depth, *, key: str) -> list[Markup]:
    """Return how many tasks came and went, and how many bytes came: by second where that is known."""
    if not len(found.buckets):
        return [_nothing("Throughput", "No throughput is known of this source.")]
    edges, is_time = found.edges(depth)
    groups = group_columns(len(found.buckets))
    kept = np.array([*(edges[group][0] for group in groups), edges[-1]])
    across = _axis(kept, is_time=is_time)
    pace = _Pace(found, groups)
    flow = [
        pace.series("in", found.adds, units.count, colour="in"),
        pace.series("out", found.removes, units.count, colour="out"),
    ]
    size = pace.series("in", found.bytes_added, units.size, colour="in")
    tasks = Unit(name=f"tasks {pace.per}", ticks=units.short, values=units.short, is_whole=False)
    sizes = Unit(
        name=f"bytes {pace.per}", ticks=units.size, values=units.size, base=2, is_whole=False
    )
    return [
        line_chart(
            key=f"{key}-flow", title="In and out", caption=pace.caption, across=across, x=kept, series=flow, unit=tasks
        ),
        line_chart(
            key=f"{key}-bytes", title="Bytes in", caption="", across=across, x=kept, series=[size], unit=sizes
        ),
    ]  # fmt: skip


def find_marks(inputs: Inputs, source: str, depth: Depth) -> list[Mark]:
    """Return where the log of a source is damaged or has a gap, on the axis of its depth."""
    damage = inputs.of("damage", source).head(MARKS_MAX).dicts()
    gaps = inputs.of("gaps", source).head(MARKS_MAX).dicts()
    found = [
        (row["log_index"], f"Damage at index {row['log_index']}: {row['status']}") for row in damage
    ]
    found += [(row["expected"], f"Gap from index {row['expected']}") for row in gaps]
    marks: list[Mark] = []
    for index, words in found:
        if index is not None:
            at = depth.time_at(index)
            marks.append(Mark(at=float(index) if at is None else at, words=words))
    return marks


class _Pace:
    """How counts by bucket become rates, or stay counts where the files hold no times."""

    def __init__(self, found: Throughput, groups: Sequence[slice]) -> None:
        self._groups = groups
        self._has_rates = found.has_rates
        self._known = (
            np.isfinite(found.seconds)
            if found.has_rates
            else np.ones(len(found.buckets), dtype=np.bool_)
        )
        seconds = np.array([np.nansum(found.seconds[group]) for group in groups])
        self._seconds = np.where(seconds > 0, seconds, np.nan)
        width = float(np.median(found.end - found.first)) * (groups[0].stop - groups[0].start)
        entries = f"per {units.plural(max(width, 1.0), 'entry', 'entries')}"
        self.per = "per second" if found.has_rates else entries
        unknown = int((~self._known).sum())
        self.caption = (
            f"{units.plural(unknown, 'bucket')} of unknown length left out." if unknown else ""
        )

    def series(self, name: str, values: Floats, words: units.Words, *, colour: str) -> Series:
        """Return a line. What came in a time of unknown length is in the sum, and not in a rate."""
        counted = np.where(self._known, values, 0.0)
        sums = np.array([counted[group].sum() for group in self._groups])
        if self._has_rates:
            sums = sums / self._seconds
        return Series(
            name=name, values=sums, colour=colour, note=f"{words(float(values.sum()))} in all"
        )


def _depth_series(name: str, values: Floats, groups: Sequence[slice], colour: str) -> Series:
    highest = np.array([values[group].max() for group in groups])
    note = f"{units.count(float(values[-1]))} now, {units.count(float(values.max()))} at most"
    return Series(name=name, values=highest, colour=colour, note=note)


def _depth_caption(depth: Depth, first: slice, marks: Sequence[Mark]) -> str:
    parts: list[str] = []
    if first.stop - first.start > 1:
        parts.append(f"Each point is the deepest of {first.stop - first.start} buckets.")
    if depth.time is not None and depth.untimed:
        words = units.plural(depth.untimed, "bucket")
        parts.append(f"{words} without a time, placed between the others.")
    if depth.lowest < 0:
        parts.append("Below zero: tasks were removed that came before the log begins.")
    if depth.time is None:
        parts.append("The files hold no times: along the log index.")
    if marks:
        parts.append("Dashed red: damage or a gap.")
    return " ".join(parts)


def _axis(x: Floats, *, is_time: bool) -> Axis:
    return (times if is_time else positions)(float(x[0]), float(x[-1]))


def _nothing(title: str, words: str) -> Markup:
    return tag("figure", tag("figcaption", tag("h3", title)), tag("p", words, class_="empty"))
