"""What rows are wanted: pushed down by Spark, or given as options. A planner skips by it, a scanner drops by it.

Spark checks every pushed filter again, so a planner may ignore what it cannot use; it never drops what it cannot
judge. Options nobody checks again: a scanner drops every row that they do not want.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The rows wanted; ``None``: all."""

    first: int | None = None  # the lowest log index
    last: int | None = None  # the highest
    queues: frozenset[str] | None = None
    ops: frozenset[str] | None = None
    paths: frozenset[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no row can be wanted."""
        if self.first is not None and self.last is not None and self.first > self.last:
            return True
        return any(
            values is not None and not values for values in (self.queues, self.ops, self.paths)
        )

    @property
    def is_open(self) -> bool:
        """Whether also a row is wanted that has no index, op or queue, as damage may not."""
        wanted = (self.first, self.last, self.queues, self.ops)
        return all(values is None for values in wanted)

    def wants_indexes(self, first: int, end: int | None) -> bool:
        """Whether entries from ``first`` up to ``end`` (``None``: unknown) may hold one that is wanted."""
        if self.last is not None and first > self.last:
            return False
        return self.first is None or end is None or end > self.first


def from_options(options: ReadOptions) -> Filters:
    """Return the filters that options make."""
    return Filters(
        first=options.starting_index,
        last=options.ending_index,
        queues=options.queues,
        ops=options.ops,
        paths=options.files,
    )


def with_pushed(filters: Filters, pushed: list[Filter]) -> Filters:
    """Return ``filters`` narrowed by what Spark pushed down, as far as we can use it."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    for one in pushed:
        match one:
            case EqualTo(("log_index",), int(value)):
                filters = _from(_up_to(filters, value), value)
            case GreaterThan(("log_index",), int(value)):
                filters = _from(filters, value + 1)
            case GreaterThanOrEqual(("log_index",), int(value)):
                filters = _from(filters, value)
            case LessThan(("log_index",), int(value)):
                filters = _up_to(filters, value - 1)
            case LessThanOrEqual(("log_index",), int(value)):
                filters = _up_to(filters, value)
            case In(("log_index",), values):
                numbers = [value for value in values if isinstance(value, int)]
                # Without a number the range is empty: nothing equals null, not even null.
                filters = _up_to(_from(filters, min(numbers, default=1)), max(numbers, default=0))
            case EqualTo((name,), str(value)) if name in _COLUMNS:
                filters = _among(filters, _COLUMNS[name], frozenset({value}))
            case In((name,), values) if name in _COLUMNS:
                wanted = frozenset(value for value in values if isinstance(value, str))
                filters = _among(filters, _COLUMNS[name], wanted)
            case _:
                pass
    return filters


_COLUMNS = {"queue": "queues", "op": "ops", "path": "paths"}


def _from(filters: Filters, first: int) -> Filters:
    return replace(filters, first=first if filters.first is None else max(first, filters.first))


def _up_to(filters: Filters, last: int) -> Filters:
    return replace(filters, last=last if filters.last is None else min(last, filters.last))


def _among(filters: Filters, field: str, values: frozenset[str]) -> Filters:
    known: frozenset[str] | None = getattr(filters, field)
    narrowed: dict[str, Any] = {field: values if known is None else known & values}
    return replace(filters, **narrowed)
