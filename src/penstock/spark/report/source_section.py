"""Everything about one source: its queues now, their depth and throughput along the log, keys, sizes and waits.

Sources are never summed up: two of them may be replicas of the same log.
"""

from __future__ import annotations

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.along_log import depth_chart, find_marks, throughput_charts
from penstock.spark.report.axes import Floats
from penstock.spark.report.charts import SERIES_MAX
from penstock.spark.report.distributions import key_charts, size_charts
from penstock.spark.report.facts import SourceFacts
from penstock.spark.report.inputs import Inputs
from penstock.spark.report.markup import Markup, join, name_of, tag
from penstock.spark.report.measures import Depth, Throughput, queue_totals
from penstock.spark.report.queue_table import queue_table
from penstock.spark.report.waits import Log, wait_tables


class SourceSection:
    """The part of the page about one source."""

    def __init__(self, inputs: Inputs, facts: SourceFacts, *, key: str) -> None:
        """Gather the numbers. ``key`` begins every id of this part."""
        self._inputs = inputs
        self._facts = facts
        self._key = key
        self._depth = Depth(inputs.of("depth", facts.source))
        flow = inputs.of("throughput", facts.source)
        self._throughput = Throughput(flow)
        self._queues = queue_totals(
            self._depth,
            flow if "throughput" in inputs.given else None,
            inputs.of("tasks_summary", facts.source),
        )
        self._lifecycles = inputs.of("lifecycles", facts.source)
        # A queue keeps its colour in every plot.
        self._colours = {queue.name: f"c{i}" for i, queue in enumerate(self._queues[:SERIES_MAX])}

    @property
    def waiting(self) -> float | None:
        """How many tasks wait; ``None`` if no table tells."""
        if self._inputs.given.isdisjoint({"depth", "tasks_summary"}):
            return None
        return sum(queue.depth for queue in self._queues)

    def render(self) -> Markup:
        """Return the part."""
        head = tag("h2", name_of(self._facts.source, empty="(unnamed source)"), class_="source")
        if self._facts.entries:
            head = join(head, self._facts_line())
        source, key = self._facts.source, self._key
        marks = find_marks(self._inputs, source, self._depth)
        charts = [
            depth_chart(self._depth, self._colours, marks, key=key),
            *throughput_charts(self._throughput, self._depth, key=key),
        ]
        return tag(
            "section",
            head,
            self._tiles(),
            queue_table(self._queues, self._depth, self._colours),
            tag("div", *charts, class_="charts"),
            key_charts(self._inputs.of("keys", source), key, list(self._colours.items())),
            size_charts(self._inputs.of("sizes", source), key, self._colours),
            self._waits(),
            id=key,
        )

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
        depth = self._depth.series(self._depth.queues)
        deepest, place = units.NONE, ""
        if len(depth):
            peak = int(np.argmax(depth))
            deepest, place = units.count(float(depth[peak])), self._place(peak)
        tiles = [
            ("Waiting now", units.count(self.waiting), self._waiting_note()),
            ("Deepest, all queues", deepest, place),
            ("In", *self._flow(self._throughput.adds)),
            ("Out", *self._flow(self._throughput.removes)),
            ("Oldest waiting", *self._oldest()),
        ]
        made = [
            tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="note"))
            for name, value, note in tiles
        ]
        return tag("dl", *made, class_="tiles")

    def _waiting_note(self) -> str:
        if self.waiting is None:
            return "not known"
        sizes = [q.waiting_size for q in self._queues if q.waiting_size is not None]
        queues = f"in {units.plural(sum(1 for q in self._queues if q.depth), 'queue')}"
        return f"{units.size(float(sum(sizes)))} {queues}" if sizes else queues

    def _place(self, bucket: int) -> str:
        if self._depth.time is not None:
            return f"at {units.moment(float(self._depth.time[bucket]))} UTC"
        return f"at index {units.exact(float(self._depth.index[bucket]))}"

    def _flow(self, counts: Floats) -> tuple[str, str]:
        """Return how many came or went, and how fast."""
        if "throughput" not in self._inputs.given:
            return units.NONE, "not known"
        total = units.count(float(counts.sum()))
        if not self._throughput.has_rates:
            return total, "tasks"
        rates = counts / self._throughput.seconds
        known = np.isfinite(rates)
        mean = float(counts[known].sum() / self._throughput.seconds[known].sum())
        return (
            total,
            f"{units.rate(mean)} on average, up to {units.rate(float(rates[known].max()))}",
        )

    def _oldest(self) -> tuple[str, str]:
        found = [q.oldest_index for q in self._queues if q.oldest_index is not None]
        if not found or self._facts.last_index is None:
            return units.NONE, ""
        oldest = min(found)
        note = f"index {oldest}"
        ago = max(self._facts.last_index - oldest, 0)
        began = self._depth.time_at(oldest)
        if began is not None and self._depth.last_us is not None:
            seconds = (self._depth.last_us - began) / units.SECOND_US
            return f"~{units.span(seconds)}", f"{note}, {units.plural(ago, 'entry', 'entries')} ago"
        return units.plural(ago, "entry", "entries"), note

    def _waits(self) -> Markup:
        added = self._lifecycles.numbers("added_index")
        known = [*added[np.isfinite(added)].tolist(), *self._depth.index[-1:].tolist(), 0.0]
        first, last = self._facts.first_index, self._facts.last_index
        log = Log(
            first=float(min(known) if first is None else first),
            last=float(max(known) if last is None else last),
            last_us=self._depth.last_us,
        )
        removed = float(self._throughput.removes.sum())
        return wait_tables(
            self._lifecycles, log, self._colours, waiting=self.waiting or 0.0, removed=removed
        )
