"""The queues of one source in a table: how deep each is, was, and whether that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.spark.report import units
from penstock.spark.report.frame import OTHERS
from penstock.spark.report.markup import Markup, brief, join, name_of, tag
from penstock.spark.report.measures import Depth, QueueTotals
from penstock.spark.report.tables import Column, meter, peaks, sparkline, table

QUEUES_MAX: Final = 20
"""Queues in the table; the others are one row, summed up."""

_TREND: Final = 10  # the trend is that of the last tenth of the log


def queue_table(queues: Sequence[QueueTotals], depth: Depth, colours: Mapping[str, str]) -> Markup:
    """Return the table, the deepest and busiest queues first."""
    if not queues:
        return tag("p", "The tables name no queue of this source.", class_="empty")
    most = max(queue.depth for queue in queues)
    rows = [
        _row(queue, depth, colours.get(queue.name, OTHERS), most) for queue in queues[:QUEUES_MAX]
    ]
    if len(queues) > QUEUES_MAX:
        rows.append(_others_row(queues[QUEUES_MAX:]))
    columns = [
        Column(name="Queue", class_="name"),
        Column(name="Depth", class_="shape"),
        Column(name="Waiting", is_number=True),
        Column(name="Trend", is_number=True),
        Column(name="Bytes waiting", is_number=True, is_wide=True),
        Column(name="Deepest", is_number=True, is_wide=True),
        Column(name="In", is_number=True, is_wide=True),
        Column(name="Out", is_number=True, is_wide=True),
        Column(name="Keys waiting", is_number=True, is_wide=True),
        Column(name="Oldest", is_number=True, is_wide=True),
    ]
    return tag(
        "div",
        tag("h3", f"Queues ({units.count(len(queues))})"),
        tag("p", "Trend: how much deeper or shallower than a tenth of the log ago."),
        table(columns, rows, class_="queues", label="Queues"),
        class_="card",
    )


def _row(queue: QueueTotals, depth: Depth, colour: str, most: float) -> list[str]:
    shape: str = units.NONE
    trend: str = units.NONE
    if queue.name in depth:
        values = depth.series([queue.name])
        hint = f"{brief(queue.name) or '(default)'}: up to {units.count(float(values.max()))}"
        shape = sparkline(peaks(values), colour, hint)
        if len(values) >= _TREND:
            trend = _trend(float(values[-1] - values[-1 - len(values) // _TREND]))
    return [
        join(tag("i", class_=f"swatch {colour}"), name_of(queue.name)),
        shape,
        meter(queue.waiting, most=most),
        trend,
        units.size(queue.waiting_size),
        units.count(queue.peak),
        units.count(queue.adds),
        units.count(queue.removes),
        _key_range(queue),
        _age(queue.oldest_index, depth),
    ]


def _others_row(others: Sequence[QueueTotals]) -> list[str]:
    sizes = [queue.waiting_size for queue in others if queue.waiting_size is not None]
    indexes = [queue.oldest_index for queue in others if queue.oldest_index is not None]
    words = units.plural(len(others), "other queue")
    return [
        join(tag("i", class_=f"swatch {OTHERS}"), tag("em", words)),
        "",
        units.count(sum(queue.depth for queue in others)),
        "",
        units.size(float(sum(sizes))) if sizes else units.NONE,
        units.NONE,
        _sum([queue.adds for queue in others]),
        _sum([queue.removes for queue in others]),
        units.NONE,
        units.exact(min(indexes)) if indexes else units.NONE,
    ]


def _sum(counts: Sequence[float | None]) -> str:
    known = [count for count in counts if count is not None]
    return units.count(sum(known)) if known else units.NONE


def _trend(change: float) -> Markup:
    if not change:
        return tag("span", "=")
    sign, way = ("▲", "growing") if change > 0 else ("▼", "shrinking")
    return tag("span", f"{sign}\u202f{units.count(abs(change))}", class_=way)


def _age(index: int | None, depth: Depth) -> Markup | str:
    began = None if index is None else depth.time_at(index)
    if began is None or depth.last_us is None:
        return units.exact(index)
    age = units.span((depth.last_us - began) / units.SECOND_US)
    return tag("span", f"~{age}", title=f"since index {units.exact(index)}")


def _key_range(queue: QueueTotals) -> str:
    if queue.lowest_key is None or queue.highest_key is None:
        return units.NONE
    if queue.lowest_key == queue.highest_key:
        return units.exact(queue.lowest_key)
    return f"{queue.lowest_key} … {queue.highest_key}"
