"""A scan as a dataset of pyarrow, which DuckDB can scan any number of times and ask for some columns.

DuckDB calls ``scanner`` once for each scan of a query, with the columns and the filter that the scan must apply. A
``RecordBatchReader`` instead would be empty when a query reads it for the second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.compute import Expression

from penstock.errors import PenstockError
from penstock.tables.scan import Scan


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """Internal: only what DuckDB uses. Methods that are inherited have no dataset of pyarrow's to work on."""

    def __init__(self, scan: Scan) -> None:
        # The initialiser of the base class refuses to run; it would wrap a dataset of Arrow's own.
        self._scan = scan
        self.error: PenstockError | None = (
            None  # what the last read raised; DuckDB keeps its words only
        )

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,  # noqa: A002 - pyarrow's name
        **others: Any,
    ) -> _Scanner:
        """Return a scanner of some columns of the rows that pass a filter."""
        del others  # sizes and threads: hints
        wanted = self._scan.columns if columns is None else list(columns)
        return _Scanner(self._scan.schema_of(wanted), self._batches(wanted, filter))

    def _batches(
        self, columns: Sequence[str], condition: Expression | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._scan.batches(columns, condition=condition)
        except PenstockError as error:
            self.error = error
            raise


class _Scanner:
    """What DuckDB asks a scanner for. Pyarrow's own reads ahead on a thread.

    A query with a limit leaves that thread behind, and closing the connection then waits for it for ever: the thread needs
    the interpreter's lock, which the connection holds.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)
