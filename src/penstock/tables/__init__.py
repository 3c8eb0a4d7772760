"""Files as Arrow tables on one machine, without Java: for pyarrow, Polars, DuckDB and pandas (docs/tables.md).

The tables have the columns and the rows of the Spark source, because both read the same splits with the same code. Needs
the extra ``tables``; ``scan_polars`` and ``duckdb_relation`` need the extra ``sql``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

from penstock.errors import needing

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from polars import DataFrame, Expr, LazyFrame
    from pyarrow import RecordBatchReader
    from pyarrow.compute import Expression

__all__ = ["duckdb_relation", "read", "scan_polars"]


def read(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    table: str = "tasks",
    *,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] | Expression | None = None,
    at: int | str | datetime | None = None,
    options: Mapping[str, object] | None = None,
) -> RecordBatchReader:
    """Read a table of files, one record batch after the other.

    ``path``: a directory or a file of any family, a pattern, or a list of them. ``table``: ``tasks``, ``entries`` or
    ``changes``. ``columns``: the columns to read; all if omitted. ``where``: the rows to keep, as ``filters`` of
    ``pyarrow.parquet.read_table``: conditions such as ``[("queue", "=", "mail"), ("key", "<", 5)]``, which all must hold,
    or an expression of ``pyarrow.compute``. ``at``: the tasks after the entry of this index, or at this
    time (a ``datetime``, or text as ``--at`` takes it), instead of after the last one. ``options``: further options by their names in Spark, such as ``{"keyFile": "key"}``.

    Files are planned when the first batch is asked for, and read as far as batches are. A reader can be read once; call
    ``read`` again for a second pass. ``read_all()`` returns a ``pyarrow.Table``, ``read_pandas()`` a pandas DataFrame.

    Raises ``InvalidValue`` for a wrong argument and ``DependencyMissing`` without the extra ``tables``. Reading raises
    ``PathMissing``, ``PathRefused``, or ``BadData`` for damage that hides what the queues hold.
    """
    from penstock.tables.scan import make_scan

    found = make_scan(path, table, columns=columns, where=where, at=at, options=options)
    return found.reader()


def scan_polars(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    table: str = "tasks",
    *,
    where: Sequence[Any] | Expression | None = None,
    at: int | str | datetime | None = None,
    options: Mapping[str, object] | None = None,
) -> LazyFrame:
    """Return a lazy frame of Polars that reads a table whenever it is collected; the arguments are those of ``read``.

    A query reads only the columns that it needs, drops rows before it keeps them, and stops after as many rows as its
    limit asks for. The predicate of a query skips no file; conditions in ``where`` can.

    Raises as ``read`` does, and ``DependencyMissing`` without the extra ``sql``.
    """
    with needing("sql", "scan_polars"):
        import polars as pl
        from polars.io.plugins import register_io_source
    from penstock.tables.scan import make_scan

    found = make_scan(path, table, where=where, at=at, options=options)

    def source(
        with_columns: list[str] | None,
        predicate: Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[DataFrame]:
        del batch_size  # a hint; our batches are of a size that Polars handles well
        wanted = found.columns if with_columns is None else with_columns
        more = [] if predicate is None else predicate.meta.root_names()
        # Polars counts the limit before it applies the predicate.
        for batch in found.batches([*dict.fromkeys([*wanted, *more])], limit=n_rows):
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate).select(wanted)

    # Pure: occurrences of the same scan in one query share one read.
    return register_io_source(source, schema=pl.Schema(found.schema), is_pure=True)


def duckdb_relation(
    connection: DuckDBPyConnection,
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    table: str = "tasks",
    *,
    where: Sequence[Any] | Expression | None = None,
    at: int | str | datetime | None = None,
    options: Mapping[str, object] | None = None,
) -> DuckDBPyRelation:
    """Return a relation of DuckDB that reads a table whenever it is executed; the arguments are those of ``read``.

    A query reads only the columns that it needs. Its filters drop rows batch by batch and skip no file, and its limit is
    DuckDB's own: it ends the read early, but is not pushed down. Conditions in ``where`` can skip files. A relation, or the
    view that ``create_view`` makes of it, can occur several times in one query; each occurrence reads the files again.

    Raises as ``read`` does, and ``DependencyMissing`` without the extra ``sql``. DuckDB wraps an exception that reading
    raises in one of its own, with the same sentence.
    """
    with needing("sql", "duckdb_relation"):
        import duckdb  # noqa: F401 - without it no connection was made, but the hint should come from here
    from penstock.tables.scan import make_scan

    found = make_scan(path, table, where=where, at=at, options=options)
    from penstock.tables.dataset import ScanDataset

    return connection.from_arrow(ScanDataset(found))
