"""A table as one file: Parquet, CSV, JSON lines or Arrow, written beside its place and put there when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import InvalidValue, PathRefused
from penstock.storage.files import OsFiles
from penstock.tables.scan import Scan
from penstock.tables.text import json_lines, text_columns

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 131_072
"""Rows of one row group: a reader of the file skips groups, and a writer holds one."""

GROUP_SIZE: Final = 64 * 2**20
"""Bytes after which a row group ends sooner: payloads may be large."""

SUFFIX: Final = ".part"
"""Ends the name of a file that is being written."""

Advance = Callable[[int], None]


class Writer(Protocol):
    """What writes rows to an open file."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def _parquet(file: IO[bytes], schema: pa.Schema) -> Writer:
    from pyarrow.parquet import ParquetWriter

    writer: Writer = ParquetWriter(file, schema)
    return writer


def _arrow(file: IO[bytes], schema: pa.Schema) -> Writer:
    import pyarrow as pa

    writer: Writer = pa.ipc.new_file(file, schema)
    return writer


class _Csv:
    """Writes lines of comma-separated values below a line of names. A null is nothing, an empty text two quotes."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        from pyarrow.csv import CSVWriter, WriteOptions

        made = text_columns(_empty(schema))
        self._writer = CSVWriter(
            file, made.schema, write_options=WriteOptions(quoting_style="needed")
        )

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._writer.write_batch(text_columns(batch))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    """Writes one JSON object a line."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        del schema
        self._file = file

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._file.write(json_lines(batch).encode("ascii"))

    def close(self) -> None: ...


FORMATS: Final[dict[str, Callable[[IO[bytes], Any], Writer]]] = {
    ".parquet": _parquet,
    ".csv": _Csv,
    ".jsonl": _JsonLines,
    ".arrow": _arrow,
}
"""What writes a file, by the end of its name."""


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise ``InvalidValue`` for a name without a format, and ``PathRefused`` for a file that exists."""
    if target.suffix not in FORMATS:
        raise InvalidValue(f"{target}: the name must end in one of {', '.join(FORMATS)}")
    if target.is_dir():
        raise PathRefused(f"{target}: is a directory; name a file")
    if target.exists() and not overwrite:
        raise PathRefused(
            f"{target}: exists already; name another file, or replace it: --overwrite"
        )


def export(scan: Scan, target: Path, *, overwrite: bool, advance: Advance) -> int:
    """Write the rows of a scan to a file and return how many there are. Raises ``PenstockError`` and ``OSError``.

    ``advance`` is called with bytes of the sources that were read, by and by. The file appears when it is whole.
    """
    check_target(target, overwrite=overwrite)
    sibling = target.with_name(target.name + SUFFIX)
    try:
        with sibling.open("wb") as file:
            # Closed before the file, also on an error: a writer of Parquet writes its end when it is closed.
            with closing(FORMATS[target.suffix](file, scan.schema)) as writer:
                count = _write(scan, writer, advance)
            file.flush()
            os.fsync(file.fileno())
        check_target(target, overwrite=overwrite)
        sibling.rename(target)
    except BaseException:
        with suppress(OSError):
            sibling.unlink()
        raise
    OsFiles().sync_directory(target.parent)
    return count


def _write(scan: Scan, writer: Writer, advance: Advance) -> int:
    """Write all rows, in groups of batches, and return how many there are."""
    import pyarrow as pa

    count, waiting, rows, size = 0, list[pa.RecordBatch](), 0, 0
    for batch in _advancing(scan, advance):
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= GROUP_SIZE:
            writer.write_table(pa.Table.from_batches(waiting))
            count, waiting, rows, size = count + rows, [], 0, 0
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    return count + rows


def _advancing(scan: Scan, advance: Advance) -> Iterator[pa.RecordBatch]:
    """Yield all rows; a split counts as read as far as the bytes of its rows say, and at its end as a whole."""
    for split in scan.splits():
        left = split.size
        for batch in scan.batches_of([split], scan.columns):
            done = min(left, batch.nbytes)
            left -= done
            advance(done)
            yield batch
        advance(left)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema=schema)
