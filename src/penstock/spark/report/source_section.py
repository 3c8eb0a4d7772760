"""Everything about one source: its queues now, their depth and throughput along the log, keys, sizes and waits.

Sources are never summed up: two of them may be replicas of the same log.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.axes import Floats, positions, times
from penstock.spark.report.charts import (
    MARKS_MAX,
    OTHERS,
    SERIES_MAX,
    Mark,
    Series,
    group_columns,
    line_chart,
    sparkline,
)
from penstock.spark.report.distributions import key_charts, size_charts
from penstock.spark.report.facts import SourceFacts
from penstock.spark.report.inputs import Inputs
from penstock.spark.report.markup import Markup, brief, join, name_of, tag
from penstock.spark.report.measures import Depth, QueueTotals, Throughput, queue_totals
from penstock.spark.report.tables import Column, meter, table
from penstock.spark.report.waits import Log, wait_tables

QUEUES_MAX: Final = 25
"""Queues in the table of queues; the others are one row, summed up."""

_SPARK_POINTS: Final = 50


class SourceSection:
    """The part of the page about one source."""

    def __init__(self, inputs: Inputs, facts: SourceFacts, *, key: str) -> None:
        """Gather the numbers. ``key`` begins every id of this part."""
        self._inputs = inputs
        self._facts = facts
        self._key = key
        self._throughput_rows = inputs.of("throughput", facts.source)
        self.depth = Depth(inputs.of("depth", facts.source))
        self._throughput = Throughput(self._throughput_rows)
        self._summary = inputs.of("tasks_summary", facts.source)
        self.queues = queue_totals(self.depth, self._throughput_rows, self._summary)
        self._lifecycles = inputs.of("lifecycles", facts.source)
        # A queue keeps its colour in every plot.
        self._colours = {queue.name: f"c{i}" for i, queue in enumerate(self.queues[:SERIES_MAX])}
        self._codes = {name: code for code, name in enumerate(self.depth.queues)}

    @property
    def waiting(self) -> float:
        """How many tasks wait."""
        return sum(queue.depth for queue in self.queues)

    def render(self) -> Markup:
        """Return the part."""
        head = tag("h2", name_of(self._facts.source, empty="(unnamed source)"), class_="source")
        if self._facts.entries:
            head = join(head, self._facts_line())
        charts = [self._depth_chart(), *self._throughput_charts()]
        keys = key_charts(
            self._inputs.of("keys", self._facts.source), self._key, list(self._colours.items())
        )
        sizes = size_charts(self._inputs.of("sizes", self._facts.source), self._key, self._colours)
        return tag(
            "section", head, self._tiles(), self._queue_table(),
            tag("div", *charts, class_="charts"), keys, sizes, self._waits(), id=self._key,
        )  # fmt: skip

    def _facts_line(self) -> Markup:
        facts = self._facts
        entries = units.plural(facts.entries, "entry", "entries")
        parts = [
            facts.family,
            facts.generation,
            f"indexes {facts.reach}" * bool(facts.reach),
            entries,
            units.size(facts.size),
        ]
        return tag("p", *(tag("span", part) for part in parts if part), class_="facts")

    def _tiles(self) -> Markup:
        totals = self._throughput
        adds, removes = float(totals.adds.sum()), float(totals.removes.sum())
        sizes = [q.waiting_size for q in self.queues if q.waiting_size is not None]
        busy = sum(1 for q in self.queues if q.depth)
        depth = self.depth.series(np.arange(len(self.depth.queues)))
        peak = int(np.argmax(depth)) if len(depth) else None
        oldest, oldest_note = self._oldest()
        tiles = [
            ("Waiting now", units.count(self.waiting),
             f"{units.size(float(sum(sizes)))} in {units.plural(busy, 'queue')}" if sizes else f"in {units.plural(busy, 'queue')}"),
            ("Deepest, all queues", units.count(None if peak is None else float(depth[peak])),
             "" if peak is None else self._place(peak)),
            ("In", units.count(adds), self._pace(totals.adds)),
            ("Out", units.count(removes), self._pace(totals.removes)),
            ("Oldest waiting", oldest, oldest_note),
        ]  # fmt: skip
        return tag("dl", *(
            tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="note"))
            for name, value, note in tiles
        ), class_="tiles")  # fmt: skip

    def _place(self, bucket: int) -> str:
        if self.depth.time is not None:
            return f"at {units.moment(float(self.depth.time[bucket]))} UTC"
        return f"at index {units.exact(float(self.depth.index[bucket]))}"

    def _pace(self, counts: Floats) -> str:
        if not self._throughput.has_rates:
            return "tasks"
        rates = counts / self._throughput.seconds
        known = np.isfinite(rates)
        mean = counts[known].sum() / self._throughput.seconds[known].sum()
        return (
            f"{units.rate(float(mean))} on average, up to {units.rate(float(rates[known].max()))}"
        )

    def _oldest(self) -> tuple[str, str]:
        found = [q.oldest_index for q in self.queues if q.oldest_index is not None]
        if not found or self._facts.last_index is None:
            return units.NONE, ""
        oldest = min(found)
        note = f"index {oldest}"
        ago = max(self._facts.last_index - oldest, 0)
        began = self.depth.time_at(oldest)
        if began is not None and self.depth.time is not None:
            seconds = (float(self.depth.time[-1]) - began) / units.SECOND_US
            return f"~{units.span(seconds)}", f"{note}, {units.plural(ago, 'entry', 'entries')} ago"
        return units.plural(ago, "entry", "entries"), note

    def _queue_table(self) -> Markup:
        if not self.queues:
            return tag("p", "The tables name no queue of this source.", class_="empty")
        shown, others = self.queues[:QUEUES_MAX], self.queues[QUEUES_MAX:]
        most = max((q.depth for q in self.queues), default=0.0)
        rows = [self._queue_row(queue, most) for queue in shown]
        if others:
            rows.append(self._others_row(others))
        columns = [
            Column(name="Queue", class_="name"), Column(name="Depth along the log", class_="shape"),
            Column(name="Waiting", is_number=True), Column(name="Last tenth", is_number=True),
            Column(name="Bytes waiting", is_number=True, is_wide=True), Column(name="Deepest", is_number=True, is_wide=True), Column(name="In", is_number=True, is_wide=True),
            Column(name="Out", is_number=True, is_wide=True),
            Column(name="Keys waiting", is_number=True, is_wide=True),
            Column(name="Oldest", is_number=True, is_wide=True),
        ]  # fmt: skip
        head = tag("h3", f"Queues ({units.count(len(self.queues))})")
        return tag(
            "div", head, table(columns, rows, class_="queues", label="Queues"), class_="card"
        )

    def _queue_row(self, queue: QueueTotals, most: float) -> list[str]:
        colour = self._colours.get(queue.name, OTHERS)
        return [
            join(tag("i", class_=f"swatch {colour}"), name_of(queue.name)),
            self._shape(queue.name, colour), meter(queue.waiting, most=most), self._trend(queue.name), units.size(queue.waiting_size),
            units.count(queue.peak), units.count(queue.adds), units.count(queue.removes), _key_range(queue),
            self._age(queue.oldest_index),
        ]  # fmt: skip

    def _shape(self, name: str, colour: str) -> Markup | str:
        if name not in self._codes:
            return units.NONE
        values = self.depth.series(np.array([self._codes[name]]))
        step = max(1, -(-len(values) // _SPARK_POINTS))
        peaks = np.array([values[i : i + step].max() for i in range(0, len(values), step)])
        return sparkline(
            peaks, colour, f"{brief(name) or '(default)'}: up to {units.count(float(values.max()))}"
        )

    def _trend(self, name: str) -> Markup | str:
        """Return how much deeper the queue is than a tenth of the log ago."""
        if name not in self._codes or len(self.depth.buckets) < 10:
            return units.NONE
        values = self.depth.series(np.array([self._codes[name]]))
        change = float(values[-1] - values[-1 - len(values) // 10])
        if not change:
            return "="
        return tag(
            "span",
            f"{'▲' if change > 0 else '▼'} {units.count(abs(change))}",
            class_="up-trend" if change > 0 else "down-trend",
        )

    def _age(self, index: int | None) -> Markup | str:
        began = None if index is None else self.depth.time_at(index)
        if began is None or self.depth.time is None:
            return units.exact(index)
        seconds = (float(self.depth.time[-1]) - began) / units.SECOND_US
        return join(f"~{units.span(seconds)} ", tag("small", f"index {units.exact(index)}"))

    def _others_row(self, others: list[QueueTotals]) -> list[str]:
        sizes = [q.waiting_size for q in others if q.waiting_size is not None]
        indexes = [q.oldest_index for q in others if q.oldest_index is not None]
        return [
            join(tag("i", class_=f"swatch {OTHERS}"), tag("em", units.plural(len(others), "other queue"))),
            "", units.count(sum(q.depth for q in others)), "", units.size(float(sum(sizes))) if sizes else units.NONE,
            units.NONE, units.count(sum(q.adds for q in others)), units.count(sum(q.removes for q in others)),
            units.NONE, units.exact(min(indexes)) if indexes else units.NONE,
        ]  # fmt: skip

    def _depth_chart(self) -> Markup:
        depth = self.depth
        if not len(depth.buckets):
            return _nothing("Depth", "No depth is known of this source.")
        x = depth.index if depth.time is None else depth.time
        groups = group_columns(len(x))
        series: list[Series] = []
        for name, colour in self._colours.items():
            if name in self._codes:
                series.append(
                    _depth_series(
                        name or "(default)",
                        depth.series(np.array([self._codes[name]])),
                        groups,
                        colour,
                    )
                )
        others = np.array(
            [c for n, c in self._codes.items() if n not in self._colours], dtype=np.int64
        )
        if len(others):
            words = units.plural(len(others), "other queue")
            series.append(_depth_series(words, depth.series(others), groups, OTHERS))
        ends = np.array([x[group][-1] for group in groups])
        across = (positions if depth.time is None else times)(float(x[0]), float(x[-1]))
        peaks = [float(one.values.max()) for one in series]
        # A queue below a hundredth of the deepest one is a flat line; then the steps of ten tell more.
        is_uneven = min((p for p in peaks if p > 0), default=0.0) < max(peaks) / 100
        return line_chart(
            key=f"{self._key}-depth", title="Depth", caption=self._depth_caption(groups), across=across, x=ends,
            series=series, words=units.short, unit="tasks waiting", marks=self._marks(),
            scales=("log", "linear") if is_uneven else ("linear", "log"),
        )  # fmt: skip

    def _depth_caption(self, groups: list[slice]) -> str:
        parts = []
        width = groups[0].stop - groups[0].start
        if width > 1:
            parts.append(f"Each point is the deepest of {width} buckets.")
        if self.depth.time is not None and self.depth.untimed:
            parts.append(
                f"{units.plural(self.depth.untimed, 'bucket')} without a time stand between their neighbours."
            )
        if self.depth.lowest < 0:
            parts.append("Below zero: tasks were removed that came before the log begins.")
        if self.depth.time is None:
            parts.append("The files hold no times: along the log index.")
        marks = self._marks()
        if marks:
            parts.append("Dashed red: damage or a gap.")
        return " ".join(parts)

    def _marks(self) -> list[Mark]:
        damage = self._inputs.of("damage", self._facts.source).head(MARKS_MAX).dicts()
        gaps = self._inputs.of("gaps", self._facts.source).head(MARKS_MAX).dicts()
        found = [
            (row["log_index"], f"Damage at index {row['log_index']}: {row['status']}")
            for row in damage
        ]
        found += [(row["expected"], f"Gap from index {row['expected']}") for row in gaps]
        marks = []
        for index, words in found:
            if index is not None:
                at = self.depth.time_at(index) if self.depth.time is not None else index
                marks.append(Mark(at=float(at if at is not None else index), words=words))
        return marks

    def _throughput_charts(self) -> list[Markup]:
        found = self._throughput
        if not len(found.buckets):
            return [_nothing("Throughput", "No throughput is known of this source.")]
        edges, is_time = found.edges(self.depth)
        groups = group_columns(len(found.buckets))
        kept = np.array([edges[group][0] for group in groups] + [edges[-1]])
        across = (times if is_time else positions)(float(kept[0]), float(kept[-1]))
        seconds = np.array([np.nansum(found.seconds[g]) for g in groups])
        scale = np.where(seconds > 0, seconds, np.nan) if found.has_rates else np.ones(len(groups))
        entries = float(np.median(found.end - found.first)) * (groups[0].stop - groups[0].start)
        per = (
            "per second"
            if found.has_rates
            else f"per {units.plural(max(entries, 1), 'entry', 'entries')}"
        )

        def paced(name: str, values: Floats, colour: str, total: str) -> Series:
            sums = np.array([values[group].sum() for group in groups])
            return Series(name=name, values=sums / scale, colour=colour, note=f"{total} in all")

        adds, removes = float(found.adds.sum()), float(found.removes.sum())
        flow = [
            paced("in", found.adds, "in", units.count(adds)),
            paced("out", found.removes, "out", units.count(removes)),
        ]
        size = paced("in", found.bytes_added, "in", units.size(float(found.bytes_added.sum())))
        missing = int((~np.isfinite(found.seconds)).sum()) if found.has_rates else 0
        caption = (
            f"{units.plural(missing, 'bucket')} of unknown length left out." if missing else ""
        )
        return [
            line_chart(
                key=f"{self._key}-flow", title="In and out", caption=caption, across=across, x=kept, series=flow,
                words=units.short, unit=f"tasks {per}",
            ),
            line_chart(
                key=f"{self._key}-bytes", title="Bytes in", caption="", across=across, x=kept, series=[size],
                words=units.size, unit=f"bytes {per}", base=2,
            ),
        ]  # fmt: skip

    def _waits(self) -> Markup:
        added = self._lifecycles.numbers("added_index")
        known = [*added[np.isfinite(added)].tolist(), *self.depth.index[-1:].tolist(), 0.0]
        first, last = self._facts.first_index, self._facts.last_index
        log = Log(
            first=float(min(known) if first is None else first),
            last=float(max(known) if last is None else last),
            last_us=None if self.depth.time is None else float(self.depth.time[-1]),
        )
        removed = float(self._throughput.removes.sum())
        return wait_tables(
            self._lifecycles, log, self._colours, waiting=self.waiting, removed=removed
        )


def _depth_series(name: str, values: Floats, groups: list[slice], colour: str) -> Series:
    peaks = np.array([values[group].max() for group in groups])
    peaks[-1] = values[-1]  # where the line ends is what waits now
    note = f"{units.count(float(values[-1]))} now, {units.count(float(values.max()))} at most"
    return Series(name=name, values=peaks, colour=colour, note=note)


def _key_range(queue: QueueTotals) -> str:
    if queue.lowest_key is None or queue.highest_key is None:
        return units.NONE
    if queue.lowest_key == queue.highest_key:
        return units.exact(queue.lowest_key)
    return f"{queue.lowest_key} … {queue.highest_key}"


def _nothing(title: str, words: str) -> Markup:
    return tag("figure", tag("figcaption", tag("h3", title)), tag("p", words, class_="empty"))
