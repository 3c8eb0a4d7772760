"""The ways to read a log, each giving its pieces as plain tuples and the position it returned."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from penstock.formats.taskflux.entries import EntryColumns, scan_entries
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.log_scan import PieceColumns, scan, scan_columns

Row = tuple[int, ...]
"""Offset, size, status, term, length."""

T = TypeVar("T")


def exhausted(generator: Generator[T, None, int]) -> tuple[list[T], int]:
    """Return all that a scan yields and what it returns."""
    found: list[T] = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as done:
            return found, int(done.value)


def scanned(
    data: bytes,
    layout: LogLayout,
    *,
    start: int | None = None,
    stop: int | None = None,
    term: int = 0,
    size: int | None = None,
) -> tuple[list[Row], int]:
    """Return what the plain scanner finds."""
    start = layout.header_size if start is None else start
    pieces, position = exhausted(scan(data, layout, start=start, stop=stop, term=term, size=size))
    return [tuple(map(int, piece)) for piece in pieces], position


def scanned_in_columns(
    data: bytes,
    layout: LogLayout,
    *,
    start: int | None = None,
    stop: int | None = None,
    term: int = 0,
    size: int | None = None,
    batch_rows: int = 65_536,
) -> tuple[list[Row], int]:
    """Return what the bulk scanner finds."""
    start = layout.header_size if start is None else start
    batches, position = exhausted(
        scan_columns(
            data,
            layout,
            start=start,
            stop=stop,
            term=term,
            size=size,
            batch_rows=batch_rows,
        )
    )
    return [row for batch in batches for row in rows_of(batch)], position


def rows_of(batch: PieceColumns) -> list[Row]:
    columns = (batch.offset, batch.size, batch.status, batch.term, batch.length)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def entries_of(
    data: bytes, layout: LogLayout, *, batch_rows: int = 65_536
) -> tuple[list[EntryColumns], int]:
    """Return the batches of entries of a whole log."""
    return exhausted(
        scan_entries(
            data,
            layout,
            start=layout.header_size,
            batch_rows=batch_rows,
        )
    )
