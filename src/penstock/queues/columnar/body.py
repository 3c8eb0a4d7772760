"""A chunk as the body of an add, in the one form that a snapshot has for its tasks.

A column is there exactly if a task has a value other than the default, and has one value exactly if all are equal. Gathered
chunks are like that already; what depends on the record is decided here: times and the sources count from its header.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

from penstock.formats.records import add
from penstock.formats.records.add_encode import build_add
from penstock.formats.records.columns import I64, NONE, ZEROS, Blobs
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import Column
from penstock.queues.columnar.details import Details
from penstock.queues.columnar.sources import UNKNOWN_MS


def add_body(name: bytes, chunk: Chunk, *, index: int) -> bytes:
    """Return the tasks of a gathered chunk as an add of an entry ``index`` at the chunk's ``base_ms``."""
    columns: dict[int, bytes] = {}
    if chunk.ids is not None:
        columns[add.IDS] = _padded(chunk.ids.tobytes())
    _put_sources(columns, chunk, index)
    details = chunk.details
    if details is not None:
        _put_details(columns, details)
    sizes = chunk.sizes
    if not isinstance(sizes, int):
        offsets = sizes.tolist()
        sizes = array("i", [end - start for start, end in pairwise(offsets)])
    return build_add(name, chunk.count, chunk.keys, sizes, [chunk.data], columns)


def _put_sources(columns: dict[int, bytes], chunk: Chunk, index: int) -> None:
    count, time_ms = chunk.count, chunk.base_ms
    sources = None if chunk.details is None else chunk.details.sources
    if sources is None:
        enqueued = array("q", [_relative(chunk.enqueued_ms, time_ms)]) * count
        principals = array("I", [chunk.principal_id]) * count
        entries = array("Q", [chunk.entry]) * count
    else:
        relative = array("q", [_relative(ms, time_ms) for ms in sources.enqueued])
        enqueued = sources.spread(relative, count)
        principals = sources.spread(sources.principals, count)
        entries = sources.spread(sources.entries, count)
    for bit, column, default in (
        (add.ENQUEUED, enqueued, 0),
        (add.PRINCIPAL_EACH, principals, 0),
        (add.ENTRY_EACH, entries, index),
    ):
        if column != array(column.typecode, [default]) * count:
            columns[bit] = _padded(column.tobytes())


def _relative(enqueued_ms: int, time_ms: int) -> int:
    """Return an enqueue time as the column has it. A record without a time has tasks without one by default."""
    if enqueued_ms == UNKNOWN_MS:
        return NONE if time_ms else 0
    return enqueued_ms - time_ms


def _put_details(columns: dict[int, bytes], details: Details) -> None:
    _put_times(columns, details.not_before, add.NOT_BEFORE_ONE, add.NOT_BEFORE_EACH)
    _put_times(columns, details.expires, add.EXPIRES_ONE, add.EXPIRES_EACH)
    if details.attempts is not None:
        columns[add.ATTEMPTS] = _padded(details.attempts.tobytes())
    if details.born_queues is not None and details.born_ids is not None:
        columns[add.BORN] = _padded(details.born_queues.tobytes()) + details.born_ids.tobytes()
    for bit, strings in details.strings.items():
        columns[bit] = _blobs(strings)


def _put_times(columns: dict[int, bytes], column: Column | None, one: int, each: int) -> None:
    if isinstance(column, int):
        columns[one] = I64.pack(column)
    elif column is not None:
        columns[each] = column.tobytes()


def _blobs(strings: Blobs) -> bytes:
    size = strings.offsets[-1] - strings.offsets[0]
    text = bytes(strings.data[strings.at : strings.at + size])
    return _padded(strings.offsets.tobytes()) + _padded(text)


def _padded(column: bytes) -> bytes:
    return column + ZEROS[-len(column) % 8]
