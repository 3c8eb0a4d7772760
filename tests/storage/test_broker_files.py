"""Reading in windows finds what reading whole files finds, and holds no more of a file than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.formats.rabbitmq import journal, message_store, queue_v2
from penstock.formats.rabbitmq.journal import Status
from penstock.storage.broker_files import (
    begins_with_record,
    scan_index_file,
    scan_queue_store,
    scan_slots,
    scan_store_file,
)
from penstock.storage.files import File, OsFiles
from support.rabbitmq_directories import journaled, message, publish, stored
from support.rabbitmq_reading import JOURNAL, SEGMENT, STORE, damaged, rows_of, scan_segment


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    """A function that writes a file and opens it."""
    opened: list[File] = []

    def write(data: bytes, *, size: int = 0) -> File:
        path = tmp_path / "file"
        path.write_bytes(data)
        with path.open("r+b") as file:
            file.truncate(max(size, len(data)))
        opened.append(OsFiles().open(path, write=False))
        return opened[-1]

    yield write
    for file in opened:
        file.close()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("window", [48, 100])
def test_an_index_in_windows_is_the_index(written: Any, seed: int, window: int) -> None:
    for form, scan in ((JOURNAL, journal.scan), (SEGMENT, scan_segment)):
        data = damaged(form, Random(seed))
        found = list(scan_index_file(written(data), scan, window=window))
        assert found == list(scan(data))


@pytest.mark.parametrize("seed", range(60))
def test_a_store_file_in_windows_is_the_store_file(written: Any, seed: int) -> None:
    data = damaged(STORE, Random(seed))
    rows = []
    for window in scan_store_file(written(data), window=64):
        rows += [(window.base + row[0], *row[1:]) for row in rows_of(window.pieces)]
    whole = [tuple(map(int, piece[:-1])) for piece in message_store.scan(data)]
    assert [row for row in rows if row[2] == message_store.Status.OK] == [
        row for row in whole if row[2] == message_store.Status.OK
    ]
    assert _covered(rows) == len(data)


def _covered(rows: list[tuple[int, ...]]) -> int:
    """Return where the pieces end; they follow each other without a gap."""
    end = 0
    for offset, size, *_ in rows:
        assert offset == end
        end += size
    return end


def test_a_long_end_of_zeros_is_not_held_in_memory(written: Any) -> None:
    record = journaled(0, publish(0))
    size = 2**40  # a hole: the file takes no room
    file = written(record, size=size)
    *_, last = scan_index_file(file, journal.scan)
    assert (last.status, last.offset, last.size) == (Status.ZEROS, len(record), size - len(record))


def test_bytes_behind_a_long_run_of_zeros_are_no_zeros(written: Any) -> None:
    data = journaled(0, publish(0)) + bytes(2**10) + b"\x01"
    *_, last = scan_index_file(written(data), journal.scan, window=256)
    assert (last.status, last.size) == (Status.BAD_RECORD, 2**10 + 1)


def test_a_length_that_no_broker_embeds_is_damage(written: Any) -> None:
    good = journaled(0, publish(0))
    giant = bytearray(journaled(1, publish(1)))
    giant[8:24] = bytes(16)  # no id that its message has
    giant[36:40] = (2**20).to_bytes(4, "big")
    file = written(good + bytes(giant), size=2**21)
    pieces = list(scan_index_file(file, journal.scan, window=2**12, window_max=2**16))
    assert [(piece.status, piece.offset) for piece in pieces] == [
        (Status.OK, 0),
        (Status.BAD_RECORD, len(good)),
    ]


def test_records_behind_a_long_hole_are_found(written: Any) -> None:
    """Section 7: brokers from 3.13 on leave holes between records."""
    first, last = stored(1, b"first"), stored(2, b"last")
    file = written(first + bytes(100_000) + last)
    places = [
        window.base + int(window.pieces.offset[at])
        for window in scan_store_file(file, window=1024)
        for at in (window.pieces.status == message_store.Status.OK).nonzero()[0]
    ]
    assert places == [0, len(first) + 100_000]


def test_records_behind_a_giant_that_is_none_are_found(written: Any) -> None:
    """A wrong length that fits into the file must not bring all of it into memory."""
    giant = (50_000).to_bytes(8, "big") + b"\x07" * 20_000
    file = written(giant + stored(2, b"last") + b"\x07" * 100_000)
    found = []
    for window in scan_store_file(file, window=1024, window_max=8192):
        assert len(window.data) <= 32_768
        found += [
            window.base + offset
            for offset, _, status, _ in rows_of(window.pieces)
            if status == message_store.Status.OK
        ]
    assert found == [len(giant)]


# --- version 2 -----------------------------------------------------------------------------------


def _index(slots: int, tail: bytes = b"") -> bytes:
    header = queue_v2.HEADER.pack(queue_v2.INDEX_MARKER, 2, 100, 100 + slots).ljust(64, b"\x00")
    random = Random(slots)
    parts = [header]
    for _ in range(slots):
        status, location = random.choice((0, 1, 1, 9)), random.choice((0, 1, 2, 7))
        parts.append(queue_v2.SLOT.pack(status, 1, 0, location, random.randbytes(16), 5, 0))
    return b"".join(parts) + tail


@pytest.mark.parametrize("tail", [b"", bytes(40), b"\x00\x01"])
@pytest.mark.parametrize("cut", [0, 1, 31, 33, 640])
def test_slots_in_windows_are_the_slots(written: Any, tail: bytes, cut: int) -> None:
    data = _index(30, tail)
    data = data[: len(data) - cut]
    header = queue_v2.decode_index_header(data)
    expected = list(queue_v2.scan_index(data, header))
    for slots in (1, 7, 30, 31):
        assert list(scan_slots(written(data), header, slots=slots)) == expected


def test_a_queues_own_store_in_parts_is_the_store(written: Any) -> None:
    term = message(0, b"body")
    records = [queue_v2.RECORD_HEAD.pack(len(term), flags, 0, 0) + term for flags in (0, 1, 0)]
    header = queue_v2.HEADER.pack(queue_v2.STORE_MARKER, 2, 0, 9).ljust(64, b"\x00")
    for tail in (b"", bytes(3), bytes(100), b"\xff", b"\xff" * 30, bytes(20) + b"\x01"):
        data = header + b"".join(records) + tail
        found = [record for record, _ in scan_queue_store(written(data))]
        assert found == list(queue_v2.scan_store(data)), tail


def test_what_a_file_begins_with_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(journaled(0, publish(0)))
    assert begins_with_record(path, "journal")
    assert not begins_with_record(path, "segment")
    path.write_bytes(b"\x40\x01")
    assert begins_with_record(path, "segment")
