"""The tasks of one source that wait longest, and those that waited longest before they were removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.spark.report import units
from penstock.spark.report.frame import OTHERS
from penstock.spark.report.inputs import Rows
from penstock.spark.report.markup import Markup, join, name_of, tag
from penstock.spark.report.tables import Column, span_bar, table

LIFECYCLES_MAX: Final = 12
"""Tasks in each of the two tables; the table of lifecycles has them all."""

QUEUE_LIFECYCLES_MAX: Final = 5
"""Of these, tasks of the same queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """From where to where the log goes."""

    first: float
    last: float
    last_us: float | None  # when it ended, if that is known

    def share(self, index: float) -> float:
        """Return how far into the log an index is, from 0 to 1."""
        return (index - self.first) / max(self.last - self.first, 1.0)


def wait_tables(
    rows: Rows, log: Log, colours: Mapping[str, str], *, waiting: float, removed: float
) -> Markup:
    """Return both tables. ``waiting`` and ``removed`` are how many tasks there are of either kind."""
    if not len(rows):
        return Markup("")
    # Ids begin anew when a queue does; only then an id needs its queue's incarnation beside it.
    is_reborn = len(np.unique(rows.positions("incarnation"))) > 1
    is_removed = np.isfinite(rows.numbers("removed_index"))
    tables = []
    for is_open, title, total in (
        (True, "Longest waiting now", waiting),
        (False, "Slowest of the removed", removed),
    ):
        shown = _slowest(rows.where(is_removed != is_open))
        cells = [_row(row, log, colours, is_open=is_open, is_reborn=is_reborn) for row in shown]
        all_of_them = max(total, len(shown))
        said = f"{units.count(len(shown))} of {units.plural(all_of_them, 'task')}, at most {QUEUE_LIFECYCLES_MAX} of a queue."
        body = table(_columns(is_open=is_open), cells, class_="waits", label=title) if shown else ""
        tables.append(
            tag("div", tag("h3", title), tag("p", said if shown else "None."), body, class_="card")
        )
    return join(*tables)


def _slowest(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows that waited longest. One slow queue does not hide all others."""
    codes, _ = rows.codes("queue")
    waited = rows.numbers("removed_time") - rows.numbers("added_time")
    if not np.isfinite(waited).any():  # the files hold no times, or nothing was removed
        waited = rows.numbers("waited")
    order = np.argsort(-np.nan_to_num(waited, nan=-np.inf), kind="stable")
    taken: Counter[int] = Counter()
    chosen: list[int] = []
    for row in order.tolist():
        taken[codes[row]] += 1
        if taken[codes[row]] <= QUEUE_LIFECYCLES_MAX:
            chosen.append(row)
        if len(chosen) == LIFECYCLES_MAX:
            break
    return rows.take(chosen).dicts()


def _columns(*, is_open: bool) -> list[Column]:
    removed = [] if is_open else [Column(name="Removed", is_number=True, is_wide=True)]
    return [
        Column(name="Queue", class_="name"),
        Column(name="Task", is_number=True),
        Column(name="Key", is_number=True),
        Column(name="Waited", is_number=True),
        Column(name="In the log", class_="shape", is_wide=True),
        Column(name="Size", is_number=True, is_wide=True),
        Column(name="Added", is_number=True, is_wide=True),
        *removed,
        Column(name="Deliveries", is_number=True, is_wide=True),
    ]


def _row(
    row: dict[str, Any], log: Log, colours: Mapping[str, str], *, is_open: bool, is_reborn: bool
) -> list[str]:
    name = row["queue"] or ""
    colour = colours.get(name, OTHERS)
    removed = [] if is_open else [_event(row["removed_index"], row["removed_time"])]
    return [
        join(tag("i", class_=f"swatch {colour}"), name_of(name)),
        units.exact(row["task_id"])
        + (f" (#{units.exact(row['incarnation'])})" if is_reborn else ""),
        units.exact(row["key"]),
        _waited(row, log.last_us if is_open else row["removed_time"]),
        _stretch(row, log, colour, is_open=is_open),
        units.size(row["size"]),
        _event(row["added_index"], row["added_time"]),
        *removed,
        tag(
            "span",
            units.count(row["deliveries"]),
            class_="badge notice" if (row["deliveries"] or 0) > 1 else None,
        ),
    ]


def _waited(row: dict[str, Any], end_us: float | None) -> Markup:
    waited = row["waited"]
    entries = units.NONE if waited is None else units.plural(waited, "entry", "entries")
    if end_us is None or row["added_time"] is None:
        return tag("b", entries)
    # The clock of another leader may lie behind; nothing waited less than no time.
    seconds = max((end_us - row["added_time"]) / units.SECOND_US, 0.0)
    return join(tag("b", units.span(seconds)), " ", tag("small", entries))


def _stretch(row: dict[str, Any], log: Log, colour: str, *, is_open: bool) -> str:
    added = row["added_index"]
    if added is None:
        return units.NONE
    end = log.last if is_open else row["removed_index"]
    return span_bar(
        log.share(added),
        log.share(end),
        colour=colour,
        hint=f"from index {added} to {'now' if is_open else end}",
    )


def _event(index: int | None, time_us: int | None) -> Markup:
    said = tag("span", units.exact(index))
    return said if time_us is None else join(said, " ", tag("small", units.moment(time_us)))
