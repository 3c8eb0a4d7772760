"""What a queue's index knows, and its messages that are still there, in order, each read when its turn comes.

Both versions of an index give the same answer. A segment is read when its turn comes, together with what the journal
says of it, so that one segment and the journal are held at a time, never a whole queue. A directory may
hold both versions, if a broker was stopped while it converted a queue; version 1 is then believed.

Unless told otherwise the messages are those that a broker would have after a restart: persistent ones
that can be found, and that have not expired.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import merge as merge_sorted
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never

from penstock.errors import BadData, InvalidValue, PathRefused, UnsupportedVersion
from penstock.families.damage import Damage, Report, words_of
from penstock.families.family import Progress, no_progress
from penstock.families.options import Values
from penstock.families.rabbitmq.damage import BAD_MESSAGE, REASONS, UNREADABLE, damage_at, reason_of
from penstock.families.rabbitmq.family import DROP
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.store_map import StoreMap, build_map
from penstock.families.tables import MISSING
from penstock.formats.rabbitmq import journal, queue_v2
from penstock.formats.rabbitmq.journal import Kind, Piece, begins_like_message
from penstock.formats.rabbitmq.merge import Anomaly, Entry, Finding, merge
from penstock.formats.rabbitmq.merge_scan import (
    PUBLISHES,
)
from penstock.formats.rabbitmq.messages import Message, decode_message
from penstock.formats.rabbitmq.queue_v2 import Location as SlotLocation
from penstock.formats.rabbitmq.queue_v2 import RecordStatus, Slot, SlotStatus
from penstock.formats.rabbitmq.segment import PUBLISH_SIZE
from penstock.storage.broker_files import (
    Scan,
    scan_index_file,
    scan_slots,
    segment_scan,
)
from penstock.storage.files import OpenFiles, opened

# --- bounds for fields that no checksum covers: a value outside them is damage -------------------
#
# A flipped bit in an expiry makes a message expire at once, or never; one beyond the range of a broker's timers ends the
# queue's process when a broker loads the message. A message with such a field is kept: its body is whole.

EXPIRY_MIN_US: Final = 946_684_800_000_000
"""2000-01-01: no broker is as old."""


CLOCK_MIN_US: Final = 1_767_225_600_000_000
"""2026-01-01: a clock that is earlier is wrong, and must not make good expiries look impossible."""


TTL_MAX_US: Final = 10 * 366 * 86_400 * 1_000_000
"""Ten years: the longest time to live that is believed. Brokers up to 3.10 take 50 days at most."""


SEQUENCE_BELIEVED: Final = 2**48
"""The first sequence number that is not believed: a million messages a second reach it in nine years."""


BAD_EXPIRY: Final = "bad-expiry"
BAD_SIZE: Final = "bad-size"
BAD_SEQUENCE: Final = "bad-sequence"
BAD_ACK: Final = "bad-ack"  # of a message with an impossible sequence number


def expiry_end_us() -> int:
    """Return the first expiry that is not believed now."""
    return max(time.time_ns() // 1000, CLOCK_MIN_US) + TTL_MAX_US


def is_plausible_expiry(expiry_us: int, end_us: int) -> bool:
    """Return whether a message may have this expiry; 0 is never."""
    return expiry_us == 0 or EXPIRY_MIN_US <= expiry_us < end_us


def expiry_reason(expiry_us: int) -> str:
    """Return what is wrong with an expiry, and what is done about it."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=expiry_us)
        shown = moment.isoformat()
    except OverflowError:
        shown = f"year {1970 + expiry_us // (31_556_952 * 1_000_000)}"
    return f"an impossible expiry, {shown}: the message is read as one that never expires"


def sequence_reason(sequence: int) -> str:
    return f"an impossible sequence number, {sequence}: its place in the queue is unknown"


# --- the index -----------------------------------------------------------------------------------

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
    # Brokers empty a journal at 32,768 records at the latest.
    journaled: dict[int, list[Piece]] = defaultdict(list)
    for piece in _file_records(queue.journal, journal.scan, report, progress):
        journaled[piece.sequence // entry_count].append(piece)
    paths = dict(queue.segments)
    end_us = expiry_end_us()
    for number in sorted(journaled.keys() | paths.keys()):
        scan = segment_scan(number, entry_count)
        pieces = _file_records(paths.get(number), scan, report, progress)
        merged = merge(journaled.pop(number, []), {number: pieces})
        for finding in merged.findings:
            report(finding_damage(queue, paths, finding))
        # The damage of a segment is reported before its messages, in columns too.
        yield from [
            _judged(_indexed(queue, paths, entry), report, end_us) for entry in merged.entries
        ]


def _judged(indexed: Indexed, report: Report, end_us: int) -> Indexed:
    """Return a message without an expiry that cannot be; report it, and a sequence number that cannot be."""
    if indexed.is_acked:
        return indexed
    for damage in implausible(indexed, end_us):
        report(damage)
        if damage.status == BAD_EXPIRY:
            indexed = indexed._replace(expiry_us=0)
    return indexed


def implausible(indexed: Indexed, end_us: int) -> Iterator[Damage]:
    if not is_plausible_expiry(indexed.expiry_us, end_us):
        reason = expiry_reason(indexed.expiry_us)
        yield message_damage(indexed, BAD_EXPIRY, reason)
    if indexed.sequence >= SEQUENCE_BELIEVED:
        reason = sequence_reason(indexed.sequence)
        yield message_damage(indexed, BAD_SEQUENCE, reason)


def _file_records(path: Path | None, scan: Scan, report: Report, progress: Progress) -> list[Piece]:
    """Return the records of a journal or a segment; report what else there is."""
    if path is None:
        return []
    try:
        with opened(path) as file:
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
            report(too_many(path, piece.offset))
            break
        held.append(piece)
    return [held[row] for row in believed_rows(path, held, report)]


def believed_rows(path: Path, pieces: Sequence[Piece], report: Report) -> list[int]:
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


def too_many(path: Path, offset: int) -> Damage:
    reason = f"more than {RECORDS_MAX} records; those from here on are not read"
    return damage_at(path, "too-many", reason, offset=offset)


def finding_damage(queue: Queue, segments: dict[int, Path], finding: Finding) -> Damage:
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


# --- which messages are asked for, and which are left out ----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages are asked for, beside those that survive a restart."""

    as_of_us: int  # messages that expire at this time or before are expired
    transient: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are imported, and how."""

    wanted: Wanted
    vhost: bytes | None = None
    queue: bytes | None = None
    with_envelope: bool = True  # else the payload is the bare body


@dataclass(slots=True)
class Left:
    """How many messages were left out."""

    transient: int = 0
    expired: int = 0
    lost: int = 0  # no whole message was found
    too_large: int = 0  # for a node

    def add(self, other: Left) -> None:
        self.transient += other.transient
        self.expired += other.expired
        self.lost += other.lost
        self.too_large += other.too_large


def selection_of(values: Values, as_of_us: int) -> Selection:
    """Return the messages that options select; ``as_of_us`` is the time of expiry unless an option gives one."""
    return Selection(
        wanted=Wanted(
            as_of_us=values.get("as_of", as_of_us),
            transient="include_transient" in values,
            expired="include_expired" in values,
        ),
        vhost=_bytes(values.get("vhost")),
        queue=_bytes(values.get("queue")),
        with_envelope=values.get("properties") != DROP,
    )


def _bytes(name: Any) -> bytes | None:
    """Return a name as it was typed: arguments that are not UTF-8 arrive as surrogates."""
    return None if name is None else str(name).encode("utf-8", "surrogateescape")


# --- messages ------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A message that a queue still holds."""

    indexed: Indexed
    message: Message


@dataclass(slots=True, kw_only=True)
class Bodies:
    """Finds the bodies of a vhost's messages. A store is scanned when it is first needed."""

    vhost: Vhost
    files: OpenFiles
    report: Report  # what is no whole record in the stores
    progress: Progress = no_progress
    _persistent: StoreMap | None = field(default=None, init=False)
    _transient: StoreMap | None = field(default=None, init=False)

    @property
    def persistent(self) -> StoreMap:
        if self._persistent is None:
            self._persistent = build_map(self.vhost.persistent, self.report, progress=self.progress)
        return self._persistent

    @property
    def transient(self) -> StoreMap:
        if self._transient is None:
            self._transient = build_map(self.vhost.transient, self.report, progress=self.progress)
        return self._transient

    def read(self, indexed: Indexed) -> bytes | Damage:
        """Return the message that an index speaks of, or why it is not there."""
        body = indexed.body
        match body:
            case Embedded():
                return self._read_embedded(indexed, body)
            case Shared():
                return self._read_shared(indexed, body)
            case Own():
                return self._read_own(indexed, body)
            case Nowhere():
                return _missing(indexed, "the message was only in the broker's memory")
            case _ as never:
                assert_never(never)

    def _read_embedded(self, indexed: Indexed, body: Embedded) -> bytes | Damage:
        try:
            data = self.files.read(body.path, body.offset, body.length)
        except (OSError, PathRefused):
            return _missing(indexed, "the file cannot be read any more")
        return data if len(data) == body.length else _missing(indexed, "the file was cut")

    def _read_shared(self, indexed: Indexed, body: Shared) -> bytes | Damage:
        found = self.persistent.read(body.message_id, self.files)
        if found is None and not indexed.is_persistent:
            found = self.transient.read(body.message_id, self.files)
        return _missing(indexed, REASONS[MISSING]) if found is None else found

    def _read_own(self, indexed: Indexed, body: Own) -> bytes | Damage:
        slot, head_size = body.slot, queue_v2.RECORD_HEAD.size
        offset = slot.message_offset
        try:
            head = self.files.read(body.path, offset, head_size)
            # Only a length that the index confirms is worth reading; without one the head says enough.
            length = int.from_bytes(head[:4], "big")
            size = head_size + (length if length == slot.message_length else 0)
            data = self.files.read(body.path, offset, size)
        except (OSError, PathRefused, OverflowError):
            return _missing(indexed, f"{body.path.name} cannot be read")
        if len(head) == head_size and length != slot.message_length:
            return _missing(indexed, f"offset {offset} of {body.path.name}: another length")
        # The record as if it stood first in its file: a header's room before it, and nothing behind.
        alone = slot._replace(message_offset=queue_v2.HEADER_SIZE)
        view = bytes(queue_v2.HEADER_SIZE) + data
        record = queue_v2.find_record(view, alone)
        if offset >= queue_v2.HEADER_SIZE and record.status is RecordStatus.OK:
            return queue_v2.decode_message(view, record)
        return _missing(
            indexed, f"offset {offset} of {body.path.name}: {REASONS[record.status.word]}"
        )


def _missing(indexed: Indexed, reason: str) -> Damage:
    return message_damage(indexed, MISSING, reason)


def read_queue(
    queue: Queue,
    bodies: Bodies,
    wanted: Wanted,
    *,
    report: Report,
    left: Left | None = None,
    progress: Progress = no_progress,
) -> Iterator[Held]:
    """Yield the messages of a queue's directory in order; report what is damaged or cannot be found."""
    left = Left() if left is None else left
    entry_count = bodies.vhost.entry_count
    for indexed in read_index(queue, entry_count=entry_count, report=report, progress=progress):
        if indexed.is_acked:
            continue
        if not indexed.is_persistent and not wanted.transient:
            left.transient += 1
        elif is_expired(indexed, wanted.as_of_us) and not wanted.expired:
            left.expired += 1
        else:
            held = read_held(indexed, bodies, report)
            if held is None:
                left.lost += indexed.is_persistent
                left.transient += not indexed.is_persistent
            elif is_forgotten(held) and not wanted.transient:
                left.transient += 1
            else:
                yield held


def is_expired(indexed: Indexed, as_of_us: int) -> bool:
    return 0 < indexed.expiry_us <= as_of_us


def is_forgotten(held: Held) -> bool:
    """Return whether a broker drops a message that its index calls persistent."""
    return isinstance(held.indexed.body, Embedded) and not held.message.is_persistent


def read_held(indexed: Indexed, bodies: Bodies, report: Report) -> Held | None:
    """Return a message that an index knows; report one that cannot be found or read."""
    data = bodies.read(indexed)
    if isinstance(data, Damage):
        # Where a transient message was is none of a restart's business: mostly it was in memory alone.
        if indexed.is_persistent:
            report(data)
        return None
    message = decode(data, lambda status, reason: report(message_damage(indexed, status, reason)))
    if message is None:
        return None
    size = message.content.body_size
    if size != indexed.body_size:
        reason = f"the index says {indexed.body_size} bytes of body, the message has {size}"
        report(message_damage(indexed, BAD_SIZE, reason))
    return Held(indexed, message)


def decode(data: bytes, report: Callable[[str, str], None]) -> Message | None:
    """Return the message in a term; report status and reason if it is none."""
    try:
        return decode_message(data)
    except UnsupportedVersion as error:
        report("unsupported", f"{error.reason}: {error.found}")
    except BadData as error:
        # A message that does not even begin like one was reported by the scan of the record.
        if begins_like_message(data, 0, len(data)):
            report(BAD_MESSAGE, error.reason)
    return None
