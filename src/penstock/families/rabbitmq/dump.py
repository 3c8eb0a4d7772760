"""Every record, slot and stored message of a location, in file order, damage included.

Nothing is joined here: an ack stands beside the message that it takes away. ``tasks`` is for what remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathRefused
from penstock.families.damage import Severity, damage_row, fault_fields, words_of
from penstock.families.family import Progress, Row, encode_payload, no_progress
from penstock.families.rabbitmq.damage import (
    BAD_PROPERTIES,
    REASONS,
    UNREADABLE,
    damage_at,
    reason_of,
    severity_of,
)
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import Location, Queue, Vhost
from penstock.families.rabbitmq.read import decode
from penstock.families.rabbitmq.rows import message_fields, name_fields, place
from penstock.formats.rabbitmq import journal, message_store, queue_v2
from penstock.formats.rabbitmq.journal import Kind, Piece, Status
from penstock.formats.rabbitmq.queue_v2 import SlotStatus
from penstock.storage.broker_files import (
    Scan,
    StoreWindow,
    scan_index_file,
    scan_queue_store,
    scan_slots,
    scan_store_file,
    segment_scan,
)
from penstock.storage.files import File, opened

_OPS: Final = {
    Kind.PUBLISH_PERSISTENT: "publish",
    Kind.PUBLISH_TRANSIENT: "publish",
    Kind.DELIVER: "deliver",
    Kind.ACK: "ack",
    Kind.DELIVER_OR_ACK: "deliver-or-ack",
}


def dump(location: Location, *, progress: Progress = no_progress) -> Iterator[Row]:
    """Yield a row for everything that is stored; nothing stops it but the end."""
    for damage in location.found_damage:
        yield damage_row(FAMILY, damage)
    for vhost in location.vhosts:
        for queue in vhost.queues:
            yield from _queue_rows(vhost, queue, progress)
        if not location.lends_stores:
            for path in (*vhost.persistent, *vhost.transient):
                yield from _read(path, _store_rows(path, progress))


def _queue_rows(vhost: Vhost, queue: Queue, progress: Progress) -> Iterator[Row]:
    names = name_fields(vhost, queue)
    for number, path in queue.segments:
        scan = segment_scan(number, vhost.entry_count)
        yield from _read(path, _index_rows(path, "entry", names, scan, progress))
    if queue.journal is not None:
        path = queue.journal
        yield from _read(path, _index_rows(path, "record", names, journal.scan, progress))
    for _, path in queue.indexes:
        yield from _read(path, _slot_rows(path, names, progress))
    for _, path in queue.stores:
        yield from _read(path, _own_store_rows(path, names, progress))


def _read(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows of a file, and one more if it cannot be read any further."""
    try:
        yield from rows
    except BadData as error:
        yield damage_row(FAMILY, damage_at(path, "bad-header", error.reason, offset=error.offset))
    except (OSError, PathRefused) as error:
        yield damage_row(FAMILY, damage_at(path, UNREADABLE, words_of(error)))


# --- journals and segments -----------------------------------------------------------------------


def _index_rows(path: Path, kind: str, names: Row, scan: Scan, progress: Progress) -> Iterator[Row]:
    with opened(path) as file:
        for piece in scan_index_file(file, scan, progress=progress):
            yield _piece_row(path, kind, names, piece, file)


def _piece_row(path: Path, kind: str, names: Row, piece: Piece, file: File) -> Row:
    is_record = piece.kind is not Kind.NONE
    row = place(path, kind if is_record else "damage", piece.offset, piece.size, piece.status.word)
    if piece.status is not Status.OK:
        severity = severity_of(piece.status.word, piece.offset)
        row |= fault_fields(reason_of(piece.status), severity)
    row |= names
    if not is_record:
        return row
    row |= {"op": _OPS[piece.kind], "seq": piece.sequence}
    if row["op"] != "publish":
        return row
    row |= {
        "persistent": piece.kind is Kind.PUBLISH_PERSISTENT,
        "message_id": piece.message_id.hex(),
        "expiry_us": piece.expiry_us or None,
        "body_size": piece.body_size,
    }
    if piece.length:
        end = piece.offset + piece.size
        _add_message(row, file.read(end - piece.length, piece.length))
    return row


def _add_message(row: Row, data: bytes) -> None:
    """Add what a message says to its row; if it is none, its bytes as they are."""

    def report(status: str, reason: str) -> None:
        row.update({"status": status} | fault_fields(reason, Severity.LOST))

    message = decode(data, report)
    if message is None:
        row["raw"] = encode_payload(data)
        return
    fields, reason = message_fields(message)
    if reason is not None:
        report(BAD_PROPERTIES, reason)
    row |= fields


# --- stores --------------------------------------------------------------------------------------


def _store_rows(path: Path, progress: Progress) -> Iterator[Row]:
    with opened(path) as file:
        for window in scan_store_file(file, progress=progress):
            yield from _window_rows(path, window)


def _window_rows(path: Path, window: StoreWindow) -> Iterator[Row]:
    pieces, head_size = window.pieces, message_store.HEAD.size
    columns = (pieces.offset, pieces.size, pieces.status, pieces.length)
    for offset, size, code, length in zip(*(c.tolist() for c in columns), strict=True):
        status = message_store.Status(code)
        kind = "message" if length else "damage"
        row = place(path, kind, window.base + offset, size, status.word)
        if status is not message_store.Status.OK:
            # Brokers from 3.13 on leave zeros in a store on purpose.
            is_hole = status is message_store.Status.ZEROS
            severity = Severity.HARMLESS if is_hole else Severity.LOST
            row |= fault_fields(reason_of(status), severity)
        if length:
            head = window.data[offset : offset + head_size + length].tobytes()
            row["message_id"] = head[head_size - 16 : head_size].hex()
            _add_message(row, head[head_size:])
        yield row


# --- version 2 -----------------------------------------------------------------------------------


def _slot_rows(path: Path, names: Row, progress: Progress) -> Iterator[Row]:
    with opened(path) as file:
        header = queue_v2.decode_index_header(file.read(0, queue_v2.HEADER_SIZE))
        for slot in scan_slots(file, header, progress=progress):
            is_slot = slot.status is SlotStatus.OK
            kind = "slot" if is_slot else "damage"
            row = place(path, kind, slot.offset, slot.size, slot.status.word)
            if not is_slot:
                severity = severity_of(slot.status.word, slot.offset)
                row |= fault_fields(reason_of(slot.status), severity)
            row |= names | {"seq": slot.sequence}
            yield row | _slot_fields(slot) if is_slot else row


def _slot_fields(slot: queue_v2.Slot) -> Row:
    fields: Row = {
        "persistent": slot.is_persistent,
        "location": slot.location.name.lower().replace("_", "-"),
        "expiry_us": slot.expiry_us or None,
        "body_size": slot.body_size,
    }
    if slot.location is queue_v2.Location.SHARED_STORE:
        fields["message_id"] = slot.message_id.hex()
    elif slot.location is queue_v2.Location.QUEUE_STORE:
        fields |= {"message_offset": slot.message_offset, "message_size": slot.message_length}
    return fields


def _own_store_rows(path: Path, names: Row, progress: Progress) -> Iterator[Row]:
    with opened(path) as file:
        queue_v2.decode_store_header(file.read(0, queue_v2.HEADER_SIZE))
        for record, message in scan_queue_store(file, progress=progress):
            is_whole = record.status is queue_v2.RecordStatus.OK
            kind = "message" if message else "damage"
            row = place(path, kind, record.offset, record.size, record.status.word)
            if not is_whole:
                row |= fault_fields(REASONS[record.status.word], Severity.LOST)
            row |= names
            if is_whole:
                _add_message(row, message)
            elif message:
                row["raw"] = encode_payload(message)
            yield row
