"""What the index of a queue knows: every message in the order of the queue, and where it is.

Both versions give the same answer. A segment is read when its turn comes, together with what the journal
says of it, so that one segment and the journal are held at a time, never a whole queue. A directory may
hold both versions, if a broker was stopped while it converted a queue; version 1 is then believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge as merge_sorted
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import BadData, InvalidValue, PathRefused
from penstock.families.damage import Damage, Report, words_of
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.damage import REASONS, UNREADABLE, damage_at, reason_of
from penstock.families.rabbitmq.location import Queue
from penstock.families.rabbitmq.plausible import (
    BAD_ACK,
    BAD_EXPIRY,
    BAD_SEQUENCE,
    EXPIRY_MIN_US,
    SEQUENCE_BELIEVED,
    expiry_end_us,
    expiry_reason,
    is_plausible_expiry,
    sequence_reason,
)
from penstock.families.rabbitmq.windows import (
    ScanColumns,
    scan_index_columns,
    scan_index_file,
    scan_slots,
    segment_scan,
    segment_scan_columns,
)
from penstock.formats.rabbitmq import journal, queue_v2
from penstock.formats.rabbitmq.journal import Kind, Piece
from penstock.formats.rabbitmq.merge import Anomaly, Entry, Finding, merge
from penstock.formats.rabbitmq.merge_scan import (
    PUBLISHES,
    EntryColumns,
    RecordColumns,
    joined,
    merge_columns,
    records_in,
)
from penstock.formats.rabbitmq.queue_v2 import Location as SlotLocation
from penstock.formats.rabbitmq.queue_v2 import Slot, SlotStatus
from penstock.formats.rabbitmq.segment import PUBLISH_SIZE
from penstock.storage.files import opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECORDS_MAX: Final = 2**22
"""Records of one file that are held. A segment has 49,152 if nothing stands twice, and a broker empties its
journal at 32,768, unless told otherwise; a file of tiny records that are none must not fill the memory.
"""


class Embedded(NamedTuple):
    """A message that stands in the index itself."""

    path: Path
    offset: int
    length: int


class Shared(NamedTuple):
    """A message in the vhost's store."""

    message_id: bytes


class Own(NamedTuple):
    """A message in the queue's own store, as version 2 has one."""

    path: Path
    slot: Slot


class Nowhere(NamedTuple):
    """A message that was only in a broker's memory."""


class Indexed(NamedTuple):
    """A message that the index knows."""

    sequence: int
    path: Path  # of the record that says so
    offset: int
    is_acked: bool
    is_persistent: bool
    is_delivered: bool | None  # None in version 2, which does not say
    expiry_us: int
    body_size: int
    body: Embedded | Shared | Own | Nowhere


def message_damage(indexed: Indexed, status: str, reason: str) -> Damage:
    """Return a damage of a message, at the record that names it."""
    return damage_at(indexed.path, status, reason, offset=indexed.offset, sequence=indexed.sequence)


def read_index(
    queue: Queue, *, entry_count: int, report: Report, progress: Progress = no_progress
) -> Iterator[Indexed]:
    """Yield the messages of a queue in its order, acked ones that are still on record included."""
    old = _read_version_1(queue, entry_count, report, progress)
    if not queue.indexes:
        yield from old
        return
    last = -1
    # Of two with one number that of version 1 comes first, and the other is the same message.
    new = _read_version_2(queue, report, progress)
    for found in merge_sorted(old, new, key=lambda indexed: indexed.sequence):
        if found.sequence != last:
            yield found
        last = found.sequence


# --- version 1 -----------------------------------------------------------------------------------


def _read_version_1(
    queue: Queue, entry_count: int, report: Report, progress: Progress
) -> Iterator[Indexed]:
    journaled = _journal_by_segment(queue, entry_count, report, progress)
    paths = dict(queue.segments)
    end_us = expiry_end_us()
    for number in sorted(journaled.keys() | paths.keys()):
        pieces = _segment_pieces(paths.get(number), number, entry_count, report, progress)
        merged = merge(journaled.pop(number, []), {number: pieces})
        for finding in merged.findings:
            report(_damage(queue, paths, finding))
        # The damage of a segment is reported before its messages, in columns too.
        yield from [
            _judged(_indexed(queue, paths, entry), report, end_us) for entry in merged.entries
        ]


def _judged(indexed: Indexed, report: Report, end_us: int) -> Indexed:
    """Return a message without an expiry that cannot be; report it, and a sequence number that cannot be."""
    if indexed.is_acked:
        return indexed
    for damage in _implausible(indexed, end_us):
        report(damage)
        if damage.status == BAD_EXPIRY:
            indexed = indexed._replace(expiry_us=0)
    return indexed


def _implausible(indexed: Indexed, end_us: int) -> Iterator[Damage]:
    if not is_plausible_expiry(indexed.expiry_us, end_us):
        reason = expiry_reason(indexed.expiry_us)
        yield message_damage(indexed, BAD_EXPIRY, reason)
    if indexed.sequence >= SEQUENCE_BELIEVED:
        reason = sequence_reason(indexed.sequence)
        yield message_damage(indexed, BAD_SEQUENCE, reason)


def _journal_by_segment(
    queue: Queue, entry_count: int, report: Report, progress: Progress
) -> dict[int, list[Piece]]:
    """Return the journal's records by segment; brokers empty a journal at 32,768 records at the latest."""
    found: dict[int, list[Piece]] = defaultdict(list)
    path = queue.journal
    if path is None:
        return found
    try:
        with opened(path) as file:
            pieces = scan_index_file(file, journal.scan, progress=progress)
            for piece in _records(path, pieces, report):
                found[piece.sequence // entry_count].append(piece)
    except (OSError, PathRefused) as error:
        report(damage_at(path, UNREADABLE, words_of(error)))
    return found


def _segment_pieces(
    path: Path | None, number: int, entry_count: int, report: Report, progress: Progress
) -> list[Piece]:
    if path is None:
        return []
    try:
        with opened(path) as file:
            scan = segment_scan(number, entry_count)
            return _records(path, scan_index_file(file, scan, progress=progress), report)
    except (OSError, PathRefused) as error:
        report(damage_at(path, UNREADABLE, words_of(error)))
    except InvalidValue as error:
        report(damage_at(path, "bad-name", str(error)))
    return []


def _records(path: Path, pieces: Iterator[Piece], report: Report) -> list[Piece]:
    """Return the records of a file, as many as are held; report what else there is."""
    held: list[Piece] = []
    for piece in pieces:
        if len(held) >= RECORDS_MAX and piece.kind is not Kind.NONE:
            report(_too_many(path, piece.offset))
            break
        held.append(piece)
    return [held[row] for row in _believed(path, held, report)]


def _believed(path: Path, pieces: Sequence[Piece], report: Report) -> list[int]:
    """Return which pieces are records that count; report where there are none.

    Before damage with records behind it, the delivers and acks of a segment are in doubt back to the last publish that
    its message proves: two bytes of anything may look like one, and an ack that is none would lose a message.
    """
    believed: list[int] = []
    doubtful = 0  # how many of the believed come before what is in doubt
    last: int | None = None  # the sequence number of the last publish
    for row, piece in enumerate(pieces):
        if piece.kind is not Kind.NONE:
            believed.append(row)
            if piece.kind in PUBLISHES:
                last = piece.sequence
                doubtful = len(believed) if piece.length else doubtful
            continue
        reason = reason_of(piece.status)
        if row + 1 < len(pieces):
            kept = [at for at in believed[doubtful:] if pieces[at].kind is not Kind.DELIVER_OR_ACK]
            ignored = len(believed) - doubtful - len(kept)
            reason = _gap_reason(_skipped(last, piece, pieces[row + 1]), ignored)
            believed[doubtful:] = kept
        report(damage_at(path, piece.status.word, reason, offset=piece.offset, size=piece.size))
    return believed


def _skipped(before: int | None, gap: Piece, behind: Piece) -> int | None:
    """Return how many sequence numbers lie between the publishes around a gap; ``None`` if it cannot hold as many.

    Brokers flush a journal from its last message to its first, so numbers may rise or fall.
    """
    if before is None or before == behind.sequence:
        return None
    count = abs(behind.sequence - before) - 1
    return count if count <= gap.size // PUBLISH_SIZE + 1 else None


def _gap_reason(skipped: int | None, ignored: int) -> str:
    """Return what is said of a stretch between two publishes that is no record."""
    count = "an unknown number of" if skipped is None else skipped
    reason = (
        f"no record begins here: {count} entries skipped, up to the next that its message proves"
    )
    if ignored:
        reason += f"; {ignored} delivers or acks before it are in doubt and ignored"
    return reason


def _too_many(path: Path, offset: int) -> Damage:
    reason = f"more than {RECORDS_MAX} records; those from here on are not read"
    return damage_at(path, "too-many", reason, offset=offset)


def _damage(queue: Queue, segments: dict[int, Path], finding: Finding) -> Damage:
    path = _path(queue, segments, finding.place.segment)
    word, sequence = finding.anomaly.word, finding.sequence
    reason = REASONS[word]
    is_orphan = finding.anomaly is Anomaly.ORPHAN
    if is_orphan and sequence is not None and sequence >= SEQUENCE_BELIEVED:
        word, reason = BAD_ACK, sequence_reason(sequence)
    return damage_at(path, word, reason, offset=finding.place.offset, sequence=sequence)


def _path(queue: Queue, segments: dict[int, Path], segment: int | None) -> Path:
    path = queue.journal if segment is None else segments[segment]
    assert path is not None, "a record comes from a file"
    return path


def _indexed(queue: Queue, segments: dict[int, Path], entry: Entry) -> Indexed:
    path = _path(queue, segments, entry.place.segment)
    body: Embedded | Shared = Shared(entry.message_id)
    if entry.length:
        body = Embedded(path, entry.place.offset + entry.size - entry.length, entry.length)
    return Indexed(
        sequence=entry.sequence,
        path=path,
        offset=entry.place.offset,
        is_acked=entry.is_acked,
        is_persistent=entry.is_persistent,
        is_delivered=entry.is_delivered,
        expiry_us=entry.expiry_us,
        body_size=entry.body_size,
        body=body,
    )


# --- version 1 in columns ------------------------------------------------------------------------


class IndexPart(NamedTuple):
    """What a segment and the journal's records of it add up to, and the damage of the two."""

    entries: EntryColumns
    segment: Path | None
    journal: Path | None
    found_damage: list[Damage]


def indexed_at(entries: EntryColumns, at: int, path: Path) -> Indexed:
    """Return one of the messages as ``read_index`` yields it; ``path`` is the file of its record."""
    offset, length = int(entries.offset[at]), int(entries.length[at])
    body: Embedded | Shared = Shared(entries.message_id[at].tobytes())
    if length:
        body = Embedded(path, offset + int(entries.size[at]) - length, length)
    return Indexed(
        sequence=int(entries.sequence[at]),
        path=path,
        offset=offset,
        is_acked=bool(entries.is_acked[at]),
        is_persistent=bool(entries.is_persistent[at]),
        is_delivered=bool(entries.is_delivered[at]),
        expiry_us=int(entries.expiry_us[at]),
        body_size=int(entries.body_size[at]),
        body=body,
    )


def read_index_columns(
    queue: Queue, *, entry_count: int, report: Report, progress: Progress = no_progress
) -> Iterator[IndexPart]:
    """Yield what ``read_index`` yields of a queue of version 1, segment by segment.

    The damage of the journal itself is reported at once, all else with its part. Raises ``DependencyMissing``.
    """
    records = _record_columns(queue.journal, journal.scan_journal_columns, report, progress)
    order, numbers, firsts = _by_segment(records, entry_count)
    end_us = expiry_end_us()
    journaled = dict(zip(numbers, pairwise([*firsts, len(order)]), strict=True))
    paths = dict(queue.segments)
    for number in sorted(journaled.keys() | paths.keys()):
        found_damage: list[Damage] = []
        path = paths.get(number)
        scan = segment_scan_columns(number, entry_count)
        flushed = _record_columns(path, scan, found_damage.append, progress)
        first, end = journaled.get(number, (0, 0))
        entries, findings = merge_columns(
            records.take(order[first:end]), flushed, number=number, entry_count=entry_count
        )
        found_damage += [_damage(queue, paths, finding) for finding in findings]
        part = IndexPart(entries, path, queue.journal, found_damage)
        yield _judged_columns(part, end_us)


def _judged_columns(part: IndexPart, end_us: int) -> IndexPart:
    """Return what ``_judged`` returns of the messages of a part; the damage is reported with the part."""
    import numpy as np

    entries = part.entries
    expiry = entries.expiry_us
    is_expiry_bad = (expiry != 0) & ((expiry < EXPIRY_MIN_US) | (expiry >= end_us))
    is_bad = (is_expiry_bad | (entries.sequence >= SEQUENCE_BELIEVED)) & ~entries.is_acked
    if not is_bad.any():
        return part
    for row in np.flatnonzero(is_bad).tolist():
        path = part.journal if entries.is_journaled[row] else part.segment
        assert path is not None, "a record comes from a file"
        part.found_damage.extend(_implausible(indexed_at(entries, row, path), end_us))
    without = np.where(is_expiry_bad & is_bad, np.uint64(0), expiry)
    return part._replace(entries=replace(entries, expiry_us=without))


def _by_segment(
    records: RecordColumns, entry_count: int
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Return the rows sorted by segment, the numbers of those, and where in the rows each begins."""
    import numpy as np

    numbers = records.pieces.sequence // entry_count
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    return order, found.tolist(), firsts.tolist()


def _record_columns(
    path: Path | None, scan: ScanColumns, report: Report, progress: Progress
) -> RecordColumns:
    """Return the records of a file, as many as are held; report what else there is."""
    parts: list[RecordColumns] = []
    if path is None:
        return joined(parts)
    try:
        with opened(path) as file:
            count = 0
            for window in scan_index_columns(file, scan, progress=progress):
                parts.append(records_in(window.data, window.pieces, base=window.base))
                count += len(window.pieces)
                if count > RECORDS_MAX:
                    break
    except (OSError, PathRefused) as error:
        report(damage_at(path, UNREADABLE, words_of(error)))
    except InvalidValue as error:
        report(damage_at(path, "bad-name", str(error)))
    return _only_records(path, joined(parts), report)


def _only_records(path: Path, records: RecordColumns, report: Report) -> RecordColumns:
    """Return what is a record that counts; report what is none, and where those begin that are too many."""
    pieces = records.pieces
    if len(records) > RECORDS_MAX and pieces.kind[RECORDS_MAX] != Kind.NONE:
        report(_too_many(path, int(pieces.offset[RECORDS_MAX])))
        records = records.take(slice(0, RECORDS_MAX))
    if not (records.pieces.kind == Kind.NONE).any():
        return records
    return records.take(_rows(_believed(path, list(records.to_pieces()), report)))


def _rows(rows: list[int]) -> NDArray[np.int64]:
    import numpy as np

    return np.array(rows, dtype=np.int64)


# --- version 2 -----------------------------------------------------------------------------------


def _read_version_2(queue: Queue, report: Report, progress: Progress) -> Iterator[Indexed]:
    stores = dict(queue.stores)
    end_us = expiry_end_us()
    for number, path in queue.indexes:
        try:
            with opened(path) as file:
                header = queue_v2.decode_index_header(file.read(0, queue_v2.HEADER_SIZE))
                for slot in scan_slots(file, header, progress=progress):
                    if slot.status is SlotStatus.OK:
                        # Without its file it is missing, like a record that the file does not have.
                        store = stores.get(number, path.with_suffix(queue_v2.STORE_SUFFIX))
                        yield _judged(_indexed_slot(path, store, slot), report, end_us)
                    else:
                        report(_bad_slot(path, slot))
        except BadData as error:
            report(damage_at(path, "bad-header", error.reason, offset=error.offset))
        except (OSError, PathRefused) as error:
            report(damage_at(path, UNREADABLE, words_of(error)))


def _bad_slot(path: Path, slot: Slot) -> Damage:
    sequence = None if slot.status is SlotStatus.LEFTOVER else slot.sequence
    reason = reason_of(slot.status)
    return damage_at(
        path, slot.status.word, reason, offset=slot.offset, size=slot.size, sequence=sequence
    )


def _indexed_slot(path: Path, store: Path, slot: Slot) -> Indexed:
    body: Shared | Own | Nowhere = Nowhere()
    if slot.location is SlotLocation.SHARED_STORE:
        body = Shared(slot.message_id)
    elif slot.location is SlotLocation.QUEUE_STORE:
        body = Own(store, slot)
    return Indexed(
        sequence=slot.sequence,
        path=path,
        offset=slot.offset,
        is_acked=False,
        is_persistent=slot.is_persistent,
        is_delivered=None,
        expiry_us=slot.expiry_us,
        body_size=slot.body_size,
        body=body,
    )
