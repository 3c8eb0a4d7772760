"""Classic queues of version 2: headers, slots, the queue's own store, and real queues."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    BadData,
    CorruptData,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.rabbitmq import message_store
from penstock.formats.rabbitmq.journal import SequenceNumber
from penstock.formats.rabbitmq.queue_v2 import (
    HEADER_SIZE,
    SLOT,
    Header,
    Location,
    Record,
    RecordStatus,
    Slot,
    SlotStatus,
    decode_index_header,
    decode_message,
    decode_store_header,
    find_record,
    scan_index,
    scan_store,
)
from support.damage import bits, cuts, flipped, overwritten, unnoticed
from support.rabbitmq_golden import holds_body, holds_expiry, snapshot
from support.rabbitmq_reading import messages

# --- what a broker writes ------------------------------------------------------------------------


def header(marker: bytes, first: int = 4096, end: int = 8192, version: int = 2) -> bytes:
    fields = marker + bytes([version]) + first.to_bytes(8, "big") + end.to_bytes(8, "big")
    return fields.ljust(HEADER_SIZE, b"\x00")


def slot(
    where: bytes,
    *,
    location: int = 2,
    status: int = 1,
    flags: int = 1,
    body_size: int = 7,
    expiry_us: int = 0,
) -> bytes:
    head = bytes([status, flags, 0, location]) + where.ljust(16, b"\x00")
    return head + body_size.to_bytes(4, "big") + expiry_us.to_bytes(8, "big")


def place(offset: int, length: int) -> bytes:
    return offset.to_bytes(8, "big") + length.to_bytes(4, "big")


def record(message: bytes, *, checksum: bool = True) -> bytes:
    stored = (crc32(message) & 0xFFFF).to_bytes(2, "big") if checksum else b"\x00\x00"
    return len(message).to_bytes(4, "big") + bytes([checksum]) + stored + b"\x00" + message


INDEX = header(b"RCQI")
STORE = header(b"RCQS")
HEADER = Header(first=SequenceNumber(4096), end=SequenceNumber(8192))
ID = bytes(range(16))

# --- headers -------------------------------------------------------------------------------------


def test_a_header_says_which_sequence_numbers_the_files_hold() -> None:
    assert decode_index_header(INDEX) == HEADER
    assert decode_store_header(STORE) == HEADER
    real = bytes.fromhex("5243514902000000000000100000000000000020") + bytes(45)
    assert decode_index_header(real) == HEADER


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (STORE, UnknownFormat),
        (b"x", UnknownFormat),
        (header(b"RCQI", version=1), UnsupportedVersion),
        (header(b"RCQI", first=9, end=9), CorruptData),
        (header(b"RCQI", first=0, end=2**62 + 1), CorruptData),
    ],
)
def test_another_header_is_refused(data: bytes, error: type[BadData]) -> None:
    with pytest.raises(error):
        decode_index_header(data)


def test_a_header_cut_anywhere_is_truncated() -> None:
    for data in cuts(INDEX):
        with pytest.raises(TruncatedData):
            decode_index_header(data)


# --- the index -----------------------------------------------------------------------------------


def test_slots_that_are_not_empty_are_messages() -> None:
    """docs/formats/rabbitmq.md, "Version 2": a slot's place is its sequence number."""
    data = (
        INDEX
        + slot(place(64, 179))
        + bytes(SLOT.size)
        + slot(ID, location=1, flags=0, body_size=5000, expiry_us=2**63)
        + slot(b"", location=0, flags=0)
        + slot(place(64, 179), status=0)  # acked: only its first byte was cleared
    )
    assert list(scan_index(memoryview(data), HEADER)) == [
        Slot(64, 32, SlotStatus.OK, SequenceNumber(4096), True, Location.QUEUE_STORE, b"", 64, 179, 7, 0),
        Slot(128, 32, SlotStatus.OK, SequenceNumber(4098), False, Location.SHARED_STORE, ID, 0, 0, 5000, 2**63),
        Slot(160, 32, SlotStatus.OK, SequenceNumber(4099), False, Location.MEMORY, b"", 0, 0, 7, 0),
    ]  # fmt: skip


def test_an_index_may_end_behind_any_slot_and_is_torn_inside_one() -> None:
    data = INDEX + slot(place(64, 9)) * 3
    for cut in list(cuts(data))[HEADER_SIZE:]:
        whole, rest = divmod(len(cut) - HEADER_SIZE, SLOT.size)
        statuses = [found.status for found in scan_index(cut, HEADER)]
        assert statuses == [SlotStatus.OK] * whole + [SlotStatus.TORN] * (rest > 0)
    assert list(scan_index(INDEX + bytes(40), HEADER)) == []


def test_slots_that_cannot_be_cost_themselves_only() -> None:
    small = Header(first=SequenceNumber(0), end=SequenceNumber(3))
    data = INDEX + slot(b"", status=2) + slot(b"", location=3) + slot(ID, location=1) + b"behind"
    found = [(s.offset, s.size, s.status, s.sequence) for s in scan_index(data, small)]
    assert found == [
        (64, 32, SlotStatus.BAD_STATUS, 0),
        (96, 32, SlotStatus.BAD_LOCATION, 1),
        (128, 32, SlotStatus.OK, 2),
        (160, 6, SlotStatus.LEFTOVER, 3),
    ]
    assert len(list(scan_index(data[:160] + bytes(99), small))) == 3


def test_a_flipped_bit_shows_only_in_the_status_and_the_location() -> None:
    """There is no checksum in the index. A cleared status cannot be told from an ack."""
    data = INDEX + slot(ID, location=1)
    unseen = unnoticed(
        data[:64] + data[64:],
        lambda d: d[:64] != INDEX or [s.status for s in scan_index(d, HEADER)] not in ([0], []),
    )
    # The lowest bit of the status makes the slot empty; those of the location make it another one.
    assert unseen == bits(64, 96) - (bits(64, 65) - {512}) - (bits(67, 68) - {8 * 67})


# --- the store -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(messages, st.booleans())))
def test_records_are_scanned_and_found_by_their_slots(records: list[tuple[bytes, bool]]) -> None:
    store, index = STORE, INDEX
    for message, checksum in records:
        index += slot(place(len(store), len(message)))
        store += record(message, checksum=checksum)
    scanned = list(scan_store(memoryview(store)))
    found = [find_record(store, s) for s in scan_index(index, HEADER)]
    assert found == scanned
    assert [decode_message(store, r) for r in scanned] == [message for message, _ in records]


def test_a_store_cut_anywhere_keeps_the_records_before() -> None:
    parts = [record(b"\x83hne"), record(b"\x83hwo", checksum=False)]
    data = STORE + b"".join(parts)
    for cut in list(cuts(data))[HEADER_SIZE:]:
        rest = len(cut) - HEADER_SIZE
        statuses = [found.status for found in scan_store(cut)]
        whole, torn = (1, rest > 12) if rest >= 12 else (0, rest > 0)
        # A length begins with zeros: cut there, nothing shows that it was one.
        tail = RecordStatus.TORN if any(cut[64 + 12 * whole :]) else RecordStatus.ZEROS
        assert statuses == [RecordStatus.OK] * whole + [tail] * torn


def test_every_flipped_bit_of_a_message_with_a_checksum_shows() -> None:
    """The format cannot see the unused bits of the record's head, nor that the checksum is gone."""
    message = b"\x83hessage"
    data = STORE + record(message)
    (entry,) = scan_index(INDEX + slot(place(64, len(message))), HEADER)
    unseen = unnoticed(data, lambda d: find_record(d, entry).status is not RecordStatus.OK)
    # Flags but for the lowest, which says that the checksum counts; without it nothing is compared.
    assert unseen == bits(0, 64) | bits(68, 69) | bits(71, 72)
    for bit in range(8 * 64, 8 * len(data)):
        sizes = [found.size for found in scan_store(flipped(data, bit))]
        assert sum(sizes) == len(data) - HEADER_SIZE


def test_what_a_slot_points_to_is_checked() -> None:
    data = STORE + record(b"\x83hessage")

    def status(offset: int, length: int, store: bytes = data) -> RecordStatus:
        (entry,) = scan_index(INDEX + slot(place(offset, length)), HEADER)
        return find_record(store, entry).status

    assert status(64, 8) is RecordStatus.OK
    assert status(64, 9) is RecordStatus.BAD_LENGTH
    assert status(0, 8) is RecordStatus.TORN  # inside the header
    assert status(2**64 - 1, 8) is RecordStatus.TORN
    assert status(len(data), 8) is RecordStatus.TORN
    assert status(len(data) - 3, 8) is RecordStatus.TORN
    assert status(64, 8, overwritten(data, 64, b"\x00\x00\x00\x00")) is RecordStatus.BAD_LENGTH
    assert status(64, 8, overwritten(data, 72, b"\x84")) is RecordStatus.BAD_CHECKSUM
    bare = STORE + record(b"no term.", checksum=False)
    assert status(64, 8, bare) is RecordStatus.BAD_MESSAGE


def test_zeros_behind_the_records_were_never_written() -> None:
    data = STORE + record(b"\x83hne")
    assert list(scan_store(data + bytes(99)))[-1] == Record(76, 99, RecordStatus.ZEROS, 0)
    rows = list(scan_store(data + bytes(99) + b"x"))
    assert rows[-1] == Record(76, 100, RecordStatus.BAD_LENGTH, 0)


@given(st.binary(max_size=200))
def test_garbage_is_read_to_its_end(garbage: bytes) -> None:
    for entry in scan_index(INDEX + garbage, HEADER):
        if entry.status is SlotStatus.OK and entry.location is Location.QUEUE_STORE:
            find_record(STORE + garbage, entry)
    assert sum(found.size for found in scan_store(STORE + garbage)) == len(garbage)


# --- real queues ---------------------------------------------------------------------------------


def test_real_queues_hold_the_messages_that_their_client_knows() -> None:
    """Bodies are searched in the messages, which stay undecoded here. Order is queue order."""
    directory = snapshot("c7_queue_v2_kill9")
    (vhost,) = directory.vhosts.values()
    shared = {
        piece.message_id: message_store.decode_message(data, piece)
        for data in vhost.store.values()
        for piece in message_store.scan(data)
    }
    counts: Counter[tuple[Location, bool]] = Counter()
    for key, files in vhost.queues.items():
        found: list[tuple[Slot, bytes]] = []
        for segment in sorted(int(name[:-3]) for name in files if name.endswith(".qi")):
            index, store = files[f"{segment}.qi"], files[f"{segment}.qs"]
            bounds = decode_index_header(index)
            assert bounds == decode_store_header(store)
            assert (bounds.first, bounds.end) == (segment * 4096, segment * 4096 + 4096)
            assert {r.status for r in scan_store(store)} == {RecordStatus.OK}
            for entry in scan_index(index, bounds):
                assert entry.status is SlotStatus.OK
                counts[entry.location, entry.is_persistent] += 1
                if not entry.is_persistent:
                    continue
                if entry.location is Location.QUEUE_STORE:
                    found.append((entry, decode_message(store, find_record(store, entry))))
                else:
                    found.append((entry, shared[entry.message_id]))
        for (entry, message), row in zip(found, directory.truth[key], strict=True):
            assert entry.body_size == row["body_len"]
            assert holds_expiry(entry.expiry_us, row)
            assert holds_body(message, row)
    assert counts == {
        (Location.QUEUE_STORE, True): 4088,
        (Location.QUEUE_STORE, False): 41,
        (Location.SHARED_STORE, True): 94,
        (Location.SHARED_STORE, False): 52,
    }
    assert sum(map(len, directory.truth.values())) == 4182
