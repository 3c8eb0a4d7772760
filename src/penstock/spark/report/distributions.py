"""Which keys and which sizes: the distributions of one source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.spark.report import units
from penstock.spark.report.axes import Floats
from penstock.spark.report.charts import BARS_MAX, bar_chart
from penstock.spark.report.frame import OTHERS, Series, Unit
from penstock.spark.report.inputs import Rows
from penstock.spark.report.markup import Markup, brief, name_of, tag
from penstock.spark.report.measures import sum_by
from penstock.spark.report.tables import Column, meter, rest, table

KEY_QUEUES_MAX: Final = 6
"""Queues whose keys are plotted: each has a plot of its own, since keys mean something else in every queue."""

KEY_BARS_MAX: Final = 24
"""Bars of keys; with more keys than that, a bar is a range."""

KEYS_MAX: Final = 8
"""Keys in the table of keys."""

_LUMP: Final = (
    0.9  # of all tasks in one of the equal ranges: then ranges of equally many keys show more
)

_KEY_TASKS: Final = Unit(name="tasks", ticks=units.short, values=units.count)
_TASKS: Final = Unit(name="tasks added", ticks=units.short, values=units.count)
_BYTES: Final = Unit(name="bytes added", ticks=units.size, values=units.size, base=2)


def key_charts(rows: Rows, key: str, queues: Sequence[tuple[str, str]]) -> Markup:
    """Return the keys of the first queues, given with their colours, and a table of the fullest keys."""
    if not len(rows):
        return Markup("")
    codes, names = rows.codes("queue")
    by_name = {name: code for code, name in enumerate(names)}
    shown = [(name, colour) for name, colour in queues if name in by_name][:KEY_QUEUES_MAX]
    values = rows.positions("key")
    adds, waiting = rows.counts("adds"), rows.counts("waiting")
    charts = []
    for i, (name, colour) in enumerate(shown):
        mask = codes == by_name[name]
        charts.append(
            _key_chart(f"{key}-keys{i}", name, colour, values[mask], adds[mask], waiting[mask])
        )
    left = len(names) - len(shown)
    return tag(
        "div", tag("h3", "Keys"), tag("p", "The lowest key leaves first.", class_="lead"),
        tag("div", *charts, class_="charts small"), rest(left, "queue"), _fullest(rows), class_="group",
    )  # fmt: skip


def size_charts(rows: Rows, key: str, colours: Mapping[str, str]) -> Markup:
    """Return how many tasks there were of each size, and how many bytes they had."""
    if not len(rows):
        return Markup("")
    lows = rows.positions("size_low")
    classes = _size_classes(lows)
    column = np.searchsorted(np.array(classes, dtype=np.int64), lows, "right") - 1
    codes, names = rows.codes("queue")
    charts = []
    for field, title, unit in (
        ("adds", "Tasks by size", _TASKS),
        ("bytes", "Bytes by size", _BYTES),
    ):
        series = _size_series(codes, names, column, rows.counts(field), colours, len(classes))
        charts.append(
            bar_chart(
                key=f"{key}-{field}",
                title=title,
                caption="",
                labels=[_size_label(low) for low in classes],
                titles=_size_titles(classes, series, unit),
                series=series,
                unit=unit,
                across="payload size, from",
            )
        )
    return tag("div", tag("h3", "Sizes"), tag("div", *charts, class_="charts"), class_="group")


def _key_chart(
    key: str, name: str, colour: str, keys: NDArray[np.int64], adds: Floats, waiting: Floats
) -> Markup:
    edges, labels, ranges = _key_bins(keys, adds)
    column = np.searchsorted(np.array(edges, dtype=np.int64), keys, "right") - 1
    added = sum_by(column, adds, len(edges))
    left = sum_by(column, waiting, len(edges))
    titles = [
        f"{'key' if label == reach else 'keys'} {reach}\nadded: {units.count(float(a))}\nwaiting: {units.count(float(w))}"
        for label, reach, a, w in zip(labels, ranges, added, left, strict=True)
    ]
    distinct = len(np.unique(keys))
    everything = np.concatenate([added, left])
    low, high = everything[everything > 0].min(initial=np.inf), everything.max(initial=0)
    scale = "log" if high > 1000 * low else "linear"
    said = units.plural(distinct, "key") + (
        "" if len(edges) == distinct else f" in {len(edges)} ranges"
    )
    return bar_chart(
        key=key, title=name or "(default)", caption=f"{said}{', log axis' if scale == 'log' else ''}",
        labels=labels, titles=titles, unit=_KEY_TASKS, across="key", is_stacked=False, is_small=True,
        scale=scale,
        series=[
            Series(name="added", values=added, colour=f"{colour} pale", note=units.count(float(adds.sum()))),
            Series(name="waiting", values=left, colour=colour, note=units.count(float(waiting.sum()))),
        ],
    )  # fmt: skip


def _key_bins(keys: NDArray[np.int64], adds: Floats) -> tuple[list[int], list[str], list[str]]:
    """Return where each bar begins, its label, and the range it stands for."""
    distinct = [int(key) for key in np.unique(keys)]
    if len(distinct) <= KEY_BARS_MAX:
        return distinct, [str(key) for key in distinct], [str(key) for key in distinct]
    low, high = distinct[0], distinct[-1]
    # Python's integers: the span of two keys need not fit into 64 bits.
    edges = sorted({low + (high - low + 1) * i // KEY_BARS_MAX for i in range(KEY_BARS_MAX)})
    column = np.searchsorted(np.array(edges, dtype=np.int64), keys, "right") - 1
    weight = sum_by(column, adds, len(edges))
    if weight.max() > _LUMP * max(weight.sum(), 1):
        edges = [distinct[len(distinct) * i // KEY_BARS_MAX] for i in range(KEY_BARS_MAX)]
    ends = [*(edge - 1 for edge in edges[1:]), high]
    return (
        edges,
        [str(edge) for edge in edges],
        [f"{a} … {b}" for a, b in zip(edges, ends, strict=True)],
    )


def _fullest(rows: Rows) -> Markup:
    waiting = rows.where(rows.counts("waiting") > 0)
    word = "waiting" if len(waiting) else "adds"
    chosen = waiting if len(waiting) else rows
    title = (
        "Keys that most tasks wait under"
        if len(waiting)
        else "Keys that most tasks had; none waits"
    )
    shown = chosen.sorted(word, limit=KEYS_MAX).dicts()
    most = max((row[word] or 0 for row in shown), default=0) or 1
    made: list[list[str]] = [
        [
            name_of(row["queue"] or ""), units.exact(row["key"]),
            meter(row["waiting"], most=most),
            units.count(row["adds"]), units.count(row["removes"]),
        ]
        for row in shown
    ]  # fmt: skip
    columns = [
        Column(name="Queue", class_="name"), Column(name="Key", is_number=True),
        Column(name="Waiting", is_number=True), Column(name="Added", is_number=True),
        Column(name="Removed", is_number=True),
    ]  # fmt: skip
    made_table = table(columns, made, left_out=len(chosen) - len(shown), noun="key", label=title)
    return tag("div", tag("h3", title), made_table, class_="card")


def _size_classes(lows: NDArray[np.int64]) -> list[int]:
    """Return every class between the smallest and the largest, those without a task too."""
    known = sorted({int(low) for low in lows if low >= 0})
    if not known:
        return [0]
    first = max(known[0], 1).bit_length() - 1
    powers = [2**power for power in range(first, max(known[-1], 1).bit_length())]
    classes = [0, *powers] if known[0] == 0 else powers
    if known[-1] == 0:
        classes = [0]
    if known[0] == 0 and len(known) > 1 and known[1] > 64:
        # Empty payloads and then none for long: the classes between would only push the others aside.
        classes = [0, *(power for power in powers if power >= known[1])]
    assert len(classes) <= BARS_MAX
    return classes


def _size_titles(classes: Sequence[int], series: Sequence[Series], unit: Unit) -> list[str]:
    titles: list[str] = []
    for i, low in enumerate(classes):
        values = [(brief(one.name), float(one.values[i])) for one in series]
        lines = [f"{name}: {unit.values(value)}" for name, value in values if value]
        total = unit.values(sum(value for _, value in values))
        titles.append("\n".join([_size_range(low), f"all: {total}", *lines]))
    return titles


def _size_series(
    codes: NDArray[np.int64],
    names: Sequence[str],
    column: NDArray[np.int64],
    values: Floats,
    colours: Mapping[str, str],
    columns: int,
) -> list[Series]:
    made: list[Series] = []
    is_other = np.array([name not in colours for name in names], dtype=np.bool_)[codes]
    shown = [name for name in colours if name in names]
    for name in shown:
        mask = codes == names.index(name)
        sums = sum_by(np.maximum(column[mask], 0), values[mask], columns)
        made.append(Series(name=name or "(default)", values=sums, colour=colours[name]))
    if is_other.any():
        sums = sum_by(np.maximum(column[is_other], 0), values[is_other], columns)
        count = units.plural(len(names) - len(shown), "other queue")
        made.append(Series(name=count, values=sums, colour=OTHERS))
    return made


def _size_label(low: int) -> str:
    return "0" if low == 0 else units.size(low).replace(" ", "\u202f")


def _size_range(low: int) -> str:
    if low < 2:
        return "empty" if low == 0 else "1 byte"
    if low < 1024:
        return f"{low} to {2 * low - 1} B"
    return f"{units.size(low)} to below {units.size(2 * low)}"
