"""Reading a file of records one by one, with an explanation of what does not fit (docs/formats/records.md).

`walk` checks head checksum, body checksum, chain and index of every record. What ends a walk is a value, because it is
expected: the end of the bytes, zeros, or damage. The sync point tells whether damage at the end of a log is a torn tail.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadData, BadRecord
from penstock.formats.records.changes import Change, Stamp, decode_change
from penstock.formats.records.footer import Footer, FooterBuilder, decode_footer
from penstock.formats.records.header import (
    HEADER_SIZE,
    LOCAL_KIND_MIN,
    MARKER,
    Header,
    Kind,
    check_body,
    decode_header,
)
from penstock.formats.records.segment import FILE_HEADER_SIZE, decode_file_header
from penstock.formats.records.settings import (
    HASH_SIZE,
    SnapshotEnd,
    SnapshotStart,
    decode_snapshot_end,
    decode_snapshot_start,
)

_ZEROS_STEP: Final = 2**16


class Located(NamedTuple):
    """A record and where it begins."""

    offset: int
    header: Header

    @property
    def body(self) -> tuple[int, int]:
        """Where the body begins and ends."""
        return self.offset + HEADER_SIZE, self.offset + self.header.size


class Chain(NamedTuple):
    """What the next record must continue: head checksum and index of the one before."""

    checksum: int | None  # None: not known
    index: int  # type: ignore[assignment] # hides a method of tuples that nothing calls


class Stop(StrEnum):
    """Why a walk ended."""

    END = "end"  # the bytes end behind a record
    ZEROS = "zeros"  # nothing but zeros follows: a segment that is still being written
    FOOTER = "footer"  # the segment is sealed
    MORE = "more"  # a record goes on behind the bytes that are there; of a scan of a window only
    DAMAGE = "damage"


class End(NamedTuple):
    """Where a walk ended, and why."""

    position: int  # behind the last good record
    stop: Stop
    chain: Chain | None  # what a next record must continue; None if nothing is known of it
    damage: BadData | None = None
    footer: Footer | None = None


def walk(
    data: Bytes,
    *,
    offset: int = FILE_HEADER_SIZE,
    chain: Chain | None = None,
    is_snapshot: bool = False,
) -> Generator[Located, None, End]:
    """Yield the records of a log from ``offset`` on; return where they end.

    ``chain``: what the first record must continue; without it the first one is believed. In a snapshot every record
    has the same index and is part of the chain.
    """
    while True:
        try:
            if offset == len(data):
                return End(offset, Stop.END, chain)
            if bytes(data[offset : offset + len(MARKER)]).strip(b"\x00") == b"":
                return _end_of_zeros(data, offset, chain)
            header = decode_header(data, offset)
            check_body(data, offset, header)
            _check_chain(header, offset, chain, is_snapshot=is_snapshot)
            if header.kind == Kind.FOOTER and not is_snapshot:
                return _end_of_segment(data, Located(offset, header), chain)
            if header.kind >= LOCAL_KIND_MIN and not is_snapshot:
                raise BadRecord(f"a log cannot contain kind {header.kind}", offset=offset + 12)
        except BadData as error:
            return End(offset, Stop.DAMAGE, chain, error)
        yield Located(offset, header)
        chain = Chain(header.checksum, header.index)
        offset += header.size


def walk_segment(data: Bytes, *, chain: Chain | None = None) -> Generator[Located, None, End]:
    """Walk a whole segment file; its header is checked too. Raises ``BadData`` if that does not fit."""
    first_index = decode_file_header(data).first_index
    if chain is not None and first_index != chain.index + 1:
        raise BadRecord(
            "the segment does not continue the log",
            offset=16,
            expected=f"index {chain.index + 1}",
            found=str(first_index),
        )
    return walk(data, chain=chain or Chain(None, first_index - 1))


def collect(records: Generator[Located, None, End]) -> tuple[list[Located], End]:
    """Return all records of a walk, and how it ended."""
    found: list[Located] = []
    while True:
        try:
            found.append(next(records))
        except StopIteration as done:
            return found, done.value


def _check_chain(header: Header, offset: int, chain: Chain | None, *, is_snapshot: bool) -> None:
    if chain is None:
        return
    checksum = UNKNOWN if chain.checksum is None else chain.checksum
    place = break_in_chain(
        header.kind, header.index, header.previous, checksum, chain.index, is_snapshot
    )
    if place == PREVIOUS_AT:
        raise BadRecord(
            "the record does not continue the one before it",
            offset=offset + place,
            expected=f"{chain.checksum:08X}",
            found=f"{header.previous:08X}",
        )
    if place:
        is_same = is_snapshot or header.kind >= LOCAL_KIND_MIN
        raise BadRecord(
            "the index of the record does not follow",
            offset=offset + place,
            expected=str(chain.index + (not is_same)),
            found=str(header.index),
        )


UNKNOWN: Final = -1
"""In place of a checksum or an index that nothing is known of."""

INDEX_AT: Final = 16
PREVIOUS_AT: Final = 44


def break_in_chain(
    kind: Any, index: Any, previous: Any, known_checksum: Any, known_index: Any, is_snapshot: Any
) -> Any:
    """Return the place of the field of a header that does not continue the record before, or 0 if all do.

    In a snapshot every record has one index; kinds that are local to a file have that of the entry before them. Also
    a part of the kernel that scans records.
    """
    if known_checksum != UNKNOWN and previous != known_checksum:
        return PREVIOUS_AT
    expected = known_index if is_snapshot or kind >= LOCAL_KIND_MIN else known_index + 1
    return INDEX_AT if known_index != UNKNOWN and index != expected else 0


def _end_of_zeros(data: Bytes, offset: int, chain: Chain | None) -> End:
    """Return the end of a log at ``offset``, from where on there should be nothing but zeros."""
    for at in range(offset, len(data), _ZEROS_STEP):
        piece = bytes(data[at : at + _ZEROS_STEP])
        rest = piece.lstrip(b"\x00")
        if rest:
            damage = BadRecord(
                "bytes behind the end of the log",
                offset=at + len(piece) - len(rest),
                expected="zeros",
                found=rest[:8].hex(" ").upper(),
            )
            return End(offset, Stop.DAMAGE, chain, damage)
    return End(offset, Stop.ZEROS, chain)


def _end_of_segment(data: Bytes, record: Located, chain: Chain | None) -> End:
    """Return the end of a sealed segment; zeros may follow the footer, nothing else."""
    footer = decode_footer(data, *record.body)
    end = record.body[1]
    rest = _end_of_zeros(data, end, chain)
    if rest.damage is not None:
        return rest
    return End(record.offset, Stop.FOOTER, chain, footer=footer)


def decode_entry(data: Bytes, record: Located) -> tuple[Stamp, Change]:
    """Return stamp and change of a record of a log. Raises ``BadRecord``."""
    header = record.header
    stamp = Stamp(header.index, header.term, header.time_ms, header.principal_id)
    return stamp, decode_change(header, data, *record.body)


# --- footers -------------------------------------------------------------------------------------


def rebuild_footer(
    data: Bytes, names: Mapping[int, bytes] | None = None, chain: Chain | None = None
) -> tuple[Footer, Located | None]:
    """Return the footer that a segment should have, and its last record. Raises ``BadData`` for a damaged segment.

    ``names``: of queues, from earlier segments and snapshots.
    """
    records, end = collect(walk_segment(data, chain=chain))
    if end.damage is not None:
        raise end.damage
    builder = FooterBuilder(names)
    for record in records:
        builder.note(record.offset, record.header, decode_entry(data, record)[1])
    return builder.footer(digest_of(data, end.position)), records[-1] if records else None


def check_footer(data: Bytes, end: End) -> None:
    """Compare the digest in the footer of a sealed segment. Raises ``BadRecord``."""
    assert end.footer is not None
    actual = digest_of(data, end.position)
    if actual != end.footer.digest:
        raise BadRecord(
            "the digest in the footer does not match the segment",
            offset=end.position,
            expected=actual.hex(),
            found=end.footer.digest.hex(),
        )


def digest_of(data: Bytes, end: int) -> bytes:
    """Return the BLAKE2b-128 of the first ``end`` bytes of a file."""
    return blake2b(memoryview(data)[:end], digest_size=HASH_SIZE).digest()


# --- snapshots -----------------------------------------------------------------------------------

SNAPSHOT_KINDS: Final = frozenset(
    (Kind.MEMBERS, Kind.ACCESS, Kind.PRODUCERS, Kind.QUEUE, Kind.ADD, Kind.DELIVER)
)
"""What is between start and end of a snapshot."""

BEHIND_KINDS: Final = frozenset((Kind.QUEUE, Kind.ADD, Kind.DELIVER, Kind.PAGE_CHECKPOINT))
"""What may be behind an end that continues: the contents of paged queues, which its digest leaves out."""


class Snapshot(NamedTuple):
    """A checked snapshot file. Its records are checked one by one as they are decoded."""

    start: SnapshotStart
    end: SnapshotEnd  # its digest is that of the state
    end_offset: int  # where the record of this end begins
    records: tuple[Located, ...]  # between start and end
    behind: tuple[Located, ...]  # between this end and a second one, if it continues


def read_snapshot(data: Bytes) -> Snapshot:
    """Check a whole snapshot file: chain, checksums, counts, digest. Raises ``BadData``."""
    file_header = decode_file_header(data)
    records = _all_records(data, file_header.first_index)
    if not records or records[0].header.kind != Kind.SNAPSHOT_START:
        raise BadRecord("a snapshot begins with its start", offset=FILE_HEADER_SIZE)
    start = decode_snapshot_start(data, *records[0].body)
    places = [n for n, record in enumerate(records) if record.header.kind == Kind.SNAPSHOT_END]
    ends = [_decode_end(data, records, place) for place in places]
    if [end.continues for end in ends] not in ([False], [True, False]) or places[-1] + 1 != len(
        records
    ):
        raise BadRecord("a snapshot is cut, or goes on behind its end", offset=records[-1].offset)
    inside, behind = tuple(records[1 : places[0]]), tuple(records[places[0] + 1 : places[-1]])
    _check_kinds(inside, SNAPSHOT_KINDS)
    _check_kinds(behind, BEHIND_KINDS)
    for record in records:
        _, _, _, _, index, term, time_ms, *_ = record.header
        if (index, term, time_ms) != (start.last_index, start.last_term, start.time_ms):
            raise BadRecord(
                "a record of a snapshot has another index, term or time",
                offset=record.offset + 16,
                expected=f"{start.last_index}, {start.last_term}, {start.time_ms}",
                found=f"{index}, {term}, {time_ms}",
            )
    return Snapshot(start, ends[0], records[places[0]].offset, inside, behind)


def _decode_end(data: Bytes, records: list[Located], place: int) -> SnapshotEnd:
    """Return the end at a place of a snapshot's records; it must fit what is before it."""
    record = records[place]
    end = decode_snapshot_end(data, *record.body)
    digest = digest_of(data, record.offset)
    if digest != end.digest or end.counts.get("records") != place:
        raise BadRecord(
            "digest or number of records in the end of a snapshot does not match",
            offset=record.offset,
            expected=f"{digest.hex()}, {place} records",
            found=f"{end.digest.hex()}, {end.counts.get('records')} records",
        )
    return end


def _all_records(data: Bytes, index: int) -> list[Located]:
    """Return the records of a snapshot; raise what ends it early."""
    records, end = collect(walk(data, chain=Chain(0, index), is_snapshot=True))
    if end.damage is not None:
        raise end.damage
    if end.stop is not Stop.END:
        raise BadRecord("bytes behind the end of a snapshot", offset=end.position)
    return records


def _check_kinds(records: tuple[Located, ...], allowed: frozenset[Kind]) -> None:
    for record in records:
        if record.header.kind not in allowed:
            raise BadRecord(
                f"a snapshot cannot contain kind {record.header.kind} here",
                offset=record.offset + 12,
            )


# --- behind damage -------------------------------------------------------------------------------


def find_record(data: Bytes, start: int) -> int | None:
    """Return where the first place from ``start`` on is that has a whole header, or ``None``. For repair only.

    A payload may contain whole records: the chain tells them from the log's own.
    """
    raw = bytes(data)
    offset = raw.find(MARKER, start)
    while offset >= 0:
        if offset % 8 == 0:
            try:
                decode_header(raw, offset)
            except BadData:
                pass
            else:
                return offset
        offset = raw.find(MARKER, offset + 1)
    return None
