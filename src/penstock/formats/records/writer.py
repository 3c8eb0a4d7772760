"""Writing logs, sealed segments and snapshots from changes (docs/formats/records.md). Pure: bytes are returned.

For tests, for conversion, and for the node, which appends what ``record_of`` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.errors import InvalidValue
from penstock.formats.records.add import FIXED
from penstock.formats.records.changes import Change, EncodedChange, Stamp, encode_change
from penstock.formats.records.footer import FooterBuilder, encode_footer
from penstock.formats.records.header import (
    HEADER_SIZE,
    RECORD_SIZE_MAX,
    Header,
    Kind,
    decode_header,
    encode_record,
    head_checksum,
)
from penstock.formats.records.read import Chain
from penstock.formats.records.segment import SEGMENT_SIZE, FileHeader, encode_file_header
from penstock.formats.records.settings import (
    HASH_SIZE,
    SnapshotEnd,
    SnapshotStart,
    encode_settings,
)


def record_of(
    change: Change, stamp: Stamp, previous: int, body_checksum: int | None = None
) -> bytes:
    """Return the record of a change. ``body_checksum`` is the client's where the body travelled whole."""
    return _record(encode_change(change), stamp, previous, body_checksum)


def _record(
    encoded: EncodedChange, stamp: Stamp, previous: int, body_checksum: int | None = None
) -> bytes:
    kind, queue_id, first_id, body = encoded
    if HEADER_SIZE + len(body) > RECORD_SIZE_MAX:
        raise InvalidValue(f"a record with a body of {len(body)} bytes is above 32 MiB")
    return encode_record(
        kind,
        body,
        index=stamp.index,
        term=stamp.term,
        time_ms=stamp.time_ms,
        previous=previous,
        queue_id=queue_id,
        principal_id=stamp.principal_id,
        first_id=first_id,
        body_checksum=body_checksum,
    )


class WrittenSegment(NamedTuple):
    """One file of a log."""

    first_index: int
    data: bytes
    is_sealed: bool  # it ends with a footer


class _Segment:
    """A segment that grows by records."""

    def __init__(self, first_index: int, cluster_id: bytes, names: Mapping[int, bytes]) -> None:
        self.first_index = first_index
        self.size = 0
        self.footer = FooterBuilder(names)
        self._parts: list[bytes] = []
        self._put(encode_file_header(FileHeader(first_index=first_index, cluster_id=cluster_id)))
        self._last: Header | None = None

    @property
    def is_empty(self) -> bool:
        return self._last is None

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def append(self, record: bytes, change: Change) -> None:
        self._last = decode_header(record)
        self.footer.note(self.size, self._last, change)
        self._put(record)

    def sealed(self) -> WrittenSegment:
        """Return the file with a footer."""
        last = self._last
        assert last is not None
        data = b"".join(self._parts)
        footer = self.footer.footer(blake2b(data, digest_size=HASH_SIZE).digest())
        return WrittenSegment(
            self.first_index, data + footer_record(encode_footer(footer), last), True
        )

    def open(self) -> WrittenSegment:
        """Return the file without a footer, as one that is still being written."""
        return WrittenSegment(self.first_index, b"".join(self._parts), False)


def footer_record(body: bytes, last: Header) -> bytes:
    """Return the record of a footer behind the last record of a segment. The log's chain goes on from that one."""
    stamp = Stamp(last.index, last.term, last.time_ms)
    return _record(EncodedChange(Kind.FOOTER, 0, 0, body), stamp, last.checksum)


def write_log(
    entries: Iterable[tuple[Stamp, Change]],
    *,
    cluster_id: bytes,
    segment_size: int = SEGMENT_SIZE,
    chain: Chain | None = None,
    names: Mapping[int, bytes] | None = None,
) -> Iterator[WrittenSegment]:
    """Yield the segments of a log. All but the last are sealed; that one is too if it is full.

    ``chain``: the entry before the first; ``names``: of queues that exist then. A segment is cut before the record that
    would exceed ``segment_size``; one larger than a quarter of it gets a segment of its own.
    """
    records = _records(entries, chain or Chain(0, 0))
    return write_segments(records, cluster_id=cluster_id, segment_size=segment_size, names=names)


def _records(
    entries: Iterable[tuple[Stamp, Change]], chain: Chain
) -> Iterator[tuple[bytes, Change]]:
    index, previous = chain.index, chain.checksum
    for stamp, change in entries:
        if stamp.index != index + 1 or previous is None:
            raise InvalidValue(f"entry {stamp.index} does not follow entry {index}")
        record = record_of(change, stamp, previous)
        index, previous = stamp.index, head_checksum(record)
        yield record, change


def write_segments(
    records: Iterable[tuple[bytes, Change]],
    *,
    cluster_id: bytes,
    segment_size: int = SEGMENT_SIZE,
    names: Mapping[int, bytes] | None = None,
) -> Iterator[WrittenSegment]:
    """Yield the segments of a log whose records are bytes already, as ``write_log`` does. ``change``: what each says."""
    writer = LogWriter(cluster_id=cluster_id, segment_size=segment_size, names=names)
    for record, change in records:
        yield from writer.append(record, change)
    yield from writer.finish()


class LogWriter:
    """Cuts a log into segments, record by record."""

    def __init__(
        self,
        *,
        cluster_id: bytes,
        segment_size: int = SEGMENT_SIZE,
        names: Mapping[int, bytes] | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._segment_size = segment_size
        self._names = dict(names or {})
        self._segment: _Segment | None = None

    def append(self, record: bytes, change: Change) -> Iterator[WrittenSegment]:
        """Add a record; yield the segments that are complete."""
        is_large = 4 * len(record) > self._segment_size
        segment = self._segment
        if segment is not None and (is_large or segment.size + len(record) > self._segment_size):
            yield self._sealed(segment)
        if self._segment is None:
            self._segment = _Segment(decode_header(record).index, self._cluster_id, self._names)
        self._segment.append(record, change)
        if is_large:
            yield self._sealed(self._segment)

    def finish(self) -> Iterator[WrittenSegment]:
        """Yield the last segment, if it has records."""
        if self._segment is not None:
            yield self._segment.open()

    def _sealed(self, segment: _Segment) -> WrittenSegment:
        self._names, self._segment = segment.footer.names, None
        return segment.sealed()


def write_snapshot(
    start: SnapshotStart,
    parts: Iterable[EncodedChange],
    behind: Iterable[EncodedChange] | None = None,
) -> Iterator[bytes]:
    """Yield the pieces of a snapshot file. ``parts`` are its records in canonical order, without start and end.

    ``behind``: records of paged queues, which the digest of the state leaves out; a second end follows them.
    """
    writer = _Snapshot(start)
    yield writer.file_header()
    yield writer.record(EncodedChange(Kind.SNAPSHOT_START, 0, 0, encode_settings(start)))
    yield from map(writer.record, parts)
    yield writer.end(continues=behind is not None)
    if behind is not None:
        yield from map(writer.record, behind)
        yield writer.end(continues=False)


class _Snapshot:
    """Makes the pieces of a snapshot file, and counts and digests them."""

    def __init__(self, start: SnapshotStart) -> None:
        self._header = FileHeader(first_index=start.last_index, cluster_id=start.cluster_id)
        self._stamp = Stamp(start.last_index, start.last_term, start.time_ms)
        self._digest = blake2b(digest_size=HASH_SIZE)
        self._previous = self._records = self._tasks = 0

    def file_header(self) -> bytes:
        header = encode_file_header(self._header)
        self._digest.update(header)
        return header

    def record(self, part: EncodedChange) -> bytes:
        record = _record(part, self._stamp, self._previous)
        self._previous = head_checksum(record)
        self._records += 1
        self._tasks += FIXED.unpack_from(part.body)[0] if part.kind == Kind.ADD else 0
        self._digest.update(record)
        return record

    def end(self, *, continues: bool) -> bytes:
        counts = {"records": self._records, "tasks": self._tasks}
        end = SnapshotEnd(counts=counts, digest=self._digest.digest(), continues=continues)
        return self.record(EncodedChange(Kind.SNAPSHOT_END, 0, 0, encode_settings(end)))
