"""A scan: one table of some paths, checked once, that can be read any number of times.

Every engine reads through ``Scan.batches``. It plans on each call, so that a query which uses a scan twice reads twice and
holds no table in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidValue, needing
from penstock.families.family import Split
from penstock.families.options import LogTime
from penstock.families.plan import plan, read_splits
from penstock.families.tables import ReadOptions, parse_options, schema_of
from penstock.tables.condition import columns_of, pushed, to_expression

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.compute import Expression

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

_ARGUMENTS: Final = ("path", "paths", "table", "columns", "at")
"""Options of the Spark source that are arguments here."""

_OF_SPARK: Final = ("node", "maxEntriesPerTrigger", "failOnDataLoss")
"""Options that only Spark has: a live node, and streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A table of some paths."""

    options: ReadOptions
    condition: Expression | None  # the rows to keep; the options may select more
    columns: list[str]

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read if no others are named."""
        return self.schema_of(self.columns)

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        """Return some columns of the table, in this order."""
        import pyarrow as pa

        own = schema_of(self.options.table)
        return pa.schema([own.field(name) for name in columns])

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the columns."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches(self.columns))

    def splits(self) -> list[Split]:
        """Return what there is to read. Raises ``PenstockError``."""
        return [split for group in plan(self.options) for split in group]

    def batches(
        self,
        columns: Sequence[str],
        *,
        condition: Expression | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that meet the scan's condition and the given one, at most ``limit`` rows."""
        rows = self.batches_of(self.splits(), columns, condition=condition)
        yield from rows if limit is None else _limited(rows, limit)

    def batches_of(
        self,
        splits: Sequence[Split],
        columns: Sequence[str],
        *,
        condition: Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some splits, as ``batches`` does for all of them."""
        kept = _both(self.condition, condition)
        own = schema_of(self.options.table)
        # A filter may read columns that are not wanted. At least one is read: rows without columns cannot be counted.
        needed = set(columns) if kept is None else {*columns, *columns_of(kept, own)}
        ordered = [name for name in own.names if name in needed] or own.names[:1]
        for batch in read_splits(splits, self.options, ordered):
            if kept is not None:
                batch = batch.filter(kept)
            if batch.num_rows:
                yield batch if ordered == list(columns) else batch.select(list(columns))


def make_scan(
    path: Paths,
    table: str = "tasks",
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] | Expression | None = None,
    at: int | str | datetime | LogTime | None = None,
    options: Mapping[str, object] | None = None,
) -> Scan:
    """Return a scan; the arguments are those of ``penstock.tables.read``. Raises ``InvalidValue``, ``DependencyMissing``."""
    with needing("tables", "reading tables"):
        import pyarrow as pa  # noqa: F401 - the kernels import numba on their own
    parsed = _parse(path, table, columns, at, options or {})
    own = schema_of(parsed.table)
    return Scan(
        options=replace(parsed, filters=pushed(parsed.filters, where, parsed.table)),
        condition=None if where is None else to_expression(where, own),
        columns=list(own.names if parsed.columns is None else parsed.columns),
    )


def _parse(
    path: Paths,
    table: str,
    columns: Sequence[str] | None,
    at: int | str | datetime | LogTime | None,
    options: Mapping[str, object],
) -> ReadOptions:
    """Return the options of a read. The only place where options of families enter."""
    given = {"paths": json.dumps(_paths(path)), "table": str(table)}
    if columns is not None:
        if isinstance(columns, str):
            raise InvalidValue(f"columns is {columns!r}; pass a list of names")
        given["columns"] = ",".join(columns)
    if at is not None:
        given["at"] = str(at)
    for name, value in options.items():
        if name.lower() in _ARGUMENTS:
            raise InvalidValue(f"option {name} is an argument of its own; pass it as such")
        if name.lower() in map(str.lower, _OF_SPARK):
            raise InvalidValue(f"option {name} is for Spark; tables read files at rest")
        given[name] = _text(value)
    return parse_options(given)


def _paths(path: Paths) -> list[str]:
    single = [path] if isinstance(path, str | PathLike) else list(path)
    paths = [fspath(each) for each in single]
    if not paths or not all(paths):
        raise InvalidValue("no path to read; name a directory or a file")
    return paths


def _text(value: object) -> str:
    """Return the value of an option as Spark's options have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return json.dumps([str(each) for each in value])
    return str(value)


def _both(one: Expression | None, other: Expression | None) -> Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows; the batch behind the last of them is not read."""
    left = limit
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows
