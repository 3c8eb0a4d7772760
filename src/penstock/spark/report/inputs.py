"""The tables that a page is made of: their columns, and the rows of one source.

A table may be missing, which is not the same as empty: what was not looked at is not whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.spark.report.axes import Floats
from penstock.spark.report.markup import printable

_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
_QUEUE: Final = {"source": _TEXT, "queue": _TEXT}

COLUMNS: Final[dict[str, dict[str, pa.DataType]]] = {
    "depth": {
        **_QUEUE, "bucket": _NUMBER, "log_index": _NUMBER, "event_time": _TIME, "added": _NUMBER,
        "removed": _NUMBER, "depth": _NUMBER,
    },
    "throughput": {
        **_QUEUE, "bucket": _NUMBER, "first_index": _NUMBER, "last_index": _NUMBER, "adds": _NUMBER,
        "removes": _NUMBER, "bytes_added": _NUMBER, "seconds": pa.float64(),
    },
    "keys": {**_QUEUE, "key": _NUMBER, "adds": _NUMBER, "removes": _NUMBER, "waiting": _NUMBER},
    "sizes": {**_QUEUE, "size_low": _NUMBER, "adds": _NUMBER, "bytes": _NUMBER},
    "lifecycles": {
        **_QUEUE, "incarnation": _NUMBER, "task_id": _NUMBER, "key": _NUMBER, "size": _NUMBER,
        "added_index": _NUMBER, "removed_index": _NUMBER, "waited": _NUMBER, "deliveries": _NUMBER,
        "added_time": _TIME, "removed_time": _TIME,
    },
    "tasks_summary": {
        **_QUEUE, "count": _NUMBER, "bytes": _NUMBER, "lowest_key": _NUMBER, "highest_key": _NUMBER,
        "oldest_index": _NUMBER,
    },
    "damage": {
        "source": _TEXT, "family": _TEXT, "path": _TEXT, "offset": _NUMBER, "size": _NUMBER, "log_index": _NUMBER,
        "status": _TEXT, "reason": _TEXT,
    },
    "gaps": {"source": _TEXT, "path": _TEXT, "expected": _NUMBER, "found": _NUMBER, "reason": _TEXT},
    "divergence": {
        "log_index": _NUMBER, "source": _TEXT, "queue": _TEXT, "term": _NUMBER, "checksum": _NUMBER,
        "other_source": _TEXT, "other_term": _NUMBER, "other_checksum": _NUMBER, "reason": _TEXT,
    },
}  # fmt: skip
"""Every table that the page knows. A column that a table lacks is null throughout, one too many is passed over."""


class Rows:
    """Some rows of one table, by column."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def numbers(self, name: str) -> Floats:
        """Return a column for plots and sums: exact up to 2**53, NaN where it is null."""
        column = self._table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(_NUMBER)
        found: Floats = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        return found

    def counts(self, name: str) -> Floats:
        """Return a column whose nulls count nothing."""
        return np.nan_to_num(self.numbers(name))

    def positions(self, name: str) -> NDArray[np.int64]:
        """Return a column with all its digits, 0 where it is null."""
        found: NDArray[np.int64] = pc.fill_null(self._table.column(name), 0).to_numpy()
        return found

    def words(self, name: str) -> list[str]:
        """Return a column of text, empty where it is null."""
        found: list[str] = pc.fill_null(self._table.column(name), "").to_pylist()
        return found

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return a column of text as numbers, and the text of each number."""
        column = pc.fill_null(self._table.column(name), "").combine_chunks().dictionary_encode()
        return column.indices.to_numpy().astype(np.int64), column.dictionary.to_pylist()

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """Return the rows for which ``mask`` is true."""
        return Rows(self._table.filter(pa.array(mask)))

    def sorted(self, name: str, *, limit: int) -> Rows:
        """Return the rows with the highest values of a column, highest first."""
        order = np.argsort(-np.nan_to_num(self.numbers(name), nan=-np.inf), kind="stable")
        return self.take(order[:limit].tolist())

    def take(self, rows: Sequence[int]) -> Rows:
        """Return these rows, in this order."""
        return Rows(self._table.take(pa.array(rows, pa.int64())))

    def head(self, limit: int) -> Rows:
        """Return the first rows."""
        return Rows(self._table.slice(0, limit))

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows, times as microseconds. For tables that people read: cut them first."""
        columns = {}
        for name in self._table.column_names:
            column = self._table.column(name)
            columns[name] = column.cast(_NUMBER) if pa.types.is_timestamp(column.type) else column
        found: list[dict[str, Any]] = pa.table(columns).to_pylist()
        return found


class Inputs:
    """All tables of a page, with the columns that ``COLUMNS`` names."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.given = frozenset(tables) & COLUMNS.keys()
        self._tables = {name: _normal(tables.get(name), COLUMNS[name]) for name in COLUMNS}

    def all(self, name: str) -> Rows:
        """Return a whole table."""
        return Rows(self._tables[name])

    def of(self, name: str, source: str) -> Rows:
        """Return a source's rows of a table."""
        table = self._tables[name]
        return Rows(table.filter(pc.equal(table.column("source"), source)))

    def count(self, name: str, column: str, source: str) -> int:
        """Return how many rows of a table name a source in this column."""
        return pc.sum(pc.equal(self._tables[name].column(column), source)).as_py() or 0

    def sources(self) -> list[str]:
        """Return every source that a table names."""
        found: dict[str, None] = {}
        for table in self._tables.values():
            found.update(dict.fromkeys(pc.unique(table.column("source")).to_pylist()))
        return list(found)


def _normal(table: pa.Table | None, columns: Mapping[str, pa.DataType]) -> pa.Table:
    rows = 0 if table is None else table.num_rows
    made: dict[str, Any] = {}
    for name, kind in columns.items():
        if table is None or name not in table.column_names:
            made[name] = pa.nulls(rows, kind)
        elif kind == _TEXT:
            made[name] = _text(table.column(name))
        else:
            made[name] = table.column(name).cast(kind)
    made["source"] = pc.fill_null(made["source"], "")
    return pa.table(made, schema=pa.schema(list(columns.items())))


def _text(column: Any) -> pa.Array:
    """Return a column's text fit to be seen. Arrow does not check UTF-8, and names need not be any."""
    encoded = column.combine_chunks().cast(pa.large_binary()).dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    seen = [printable(value.decode("utf-8", "replace")) for value in encoded.dictionary.to_pylist()]
    return pa.array(seen, _TEXT).take(encoded.indices)
