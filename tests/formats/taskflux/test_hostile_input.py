"""Bytes that somebody else wrote: no decoder fails otherwise than by ours, or allocates what they claim.

A length of 2 GiB in a file of a hundred bytes must not cost more than the file is worth.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import BadData
from penstock.formats.taskflux import compaction, log, metadata, snapshot, sync_point
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.compaction import decode_compaction
from penstock.formats.taskflux.deltas import decode_delta
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import (
    RECORD_MARKER,
    LogLayout,
    decode_header,
    detect_layout,
    encode_header,
    encode_record,
    walk,
)
from penstock.formats.taskflux.log_scan import find_record
from penstock.formats.taskflux.metadata import decode_metadata
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.formats.taskflux.sync_point import decode_sync_point
from support.damage import overwritten, random_damage
from support.log_reading import entries_of, scanned, scanned_in_columns
from support.refusal import attempted
from support.snapshot_files import decoded
from support.taskflux_vectors import COMMANDS, DELTAS, LOGS, METADATA, SIDECARS, SNAPSHOTS

pytestmark = pytest.mark.usefixtures("warm_kernels")

HOSTILE = [pack(">I", value) for value in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF)]
HOSTILE.append(pack("<I", 0x7FFFFFFF))


def read_log(data: bytes) -> None:
    """Read a log in every layout and by every function that takes bytes."""
    for layout in LogLayout:
        if len(data) < layout.header_size:
            continue
        start = layout.header_size
        found = walk(data, layout, offset=start, end=len(data))
        assert start <= found.position <= len(data)
        rows, end = scanned(data, layout)
        assert end == len(data)
        assert scanned_in_columns(data, layout) == (rows, end)
        entries_of(data, layout)
        if layout.is_marked:
            find_record(data, layout, start, len(data))


def read_log_header(data: bytes) -> None:
    for layout in (None, *LogLayout):
        attempted(decode_header, data, layout)
    detect_layout(data)


def read_snapshot(data: bytes) -> None:
    for layout in SnapshotLayout:
        attempted(decoded, data, layout)
    decoded(data)


def read_delta(data: bytes) -> None:
    attempted(decode_delta, data, Contents.DELTAS_BY_ID)
    decode_delta(data, Contents.DELTAS_BY_VALUE)


READERS: dict[str, Callable[[bytes], object]] = {
    "log": read_log,
    "log header": read_log_header,
    "metadata": decode_metadata,
    "snapshot": read_snapshot,
    "sidecar": decode_compaction,
    "sync point": decode_sync_point,
    "delta": read_delta,
    "command": decode_command,
}
each_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)

MARKERS = [
    b"",
    log.MARKER_1 + pack(">i", 1),
    log.MARKER_1A + pack("<i", 1),
    log.MARKER + pack(">ii", 1, -1),
    log.MARKER + pack(">i", 1) + RECORD_MARKER,
    metadata.MARKER + pack(">i", 1),
    snapshot.MARKER,
    snapshot.MARKER + pack(">ii", 1, 1),
    compaction.MARKER + pack(">i", 1),
    sync_point.MARKER + pack(">i", 1),
    *(bytes((kind,)) for kind in b"CDAREQL"),
]


# --- garbage -------------------------------------------------------------------------------------


@each_reader
@given(data=st.binary(max_size=300), marker=st.sampled_from(MARKERS))
def test_garbage_raises_bad_data_or_nothing(
    reader: Callable[[bytes], object], data: bytes, marker: bytes
) -> None:
    found = attempted(reader, marker + data)
    assert not isinstance(found, BadData) or found.reason


def golden_files() -> Iterator[tuple[str, bytes]]:
    yield from (("log", vector.data) for vector in LOGS)
    yield from (("metadata", vector.data) for vector in METADATA)
    yield from (("snapshot", vector.data) for vector in SNAPSHOTS)
    yield from (("sidecar", data) for _, data, _ in SIDECARS)
    yield from (("delta", data) for _, data, _ in DELTAS)
    yield from (("command", data) for _, data in COMMANDS)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_golden_files_raise_bad_data_or_nothing(seed: int) -> None:
    """Nearer to the truth than garbage, so that the decoders come further."""
    random = Random(seed)
    refused = 0
    for kind, data in golden_files():
        for _ in range(30):
            damaged = random_damage(random, data, start=min(4, len(data) - 1))
            refused += isinstance(attempted(READERS[kind], damaged), BadData)
    assert refused > 100


# --- memory --------------------------------------------------------------------------------------


def peak_of(reader: Callable[[bytes], object], data: bytes) -> int:
    """Return how much memory reading ``data`` takes at most."""
    tracemalloc.start()
    try:
        attempted(reader, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def allowed(data: bytes) -> int:
    return 2**20 + 8 * len(data)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: value.hex())
def test_no_length_in_a_golden_file_is_believed_before_it_is_checked(value: bytes) -> None:
    """The value is written over every place where a length could be."""
    for kind, data in golden_files():
        for offset in range(4, max(5, len(data) - 3)):
            hostile = overwritten(data, offset, value)[: len(data)]
            assert peak_of(READERS[kind], hostile) < allowed(hostile)


@pytest.mark.parametrize("value", HOSTILE[:2], ids=lambda value: value.hex())
def test_no_sealed_length_in_a_snapshot_is_believed(value: bytes) -> None:
    """The checksum is made to match, so that nothing but the bytes at hand speaks against it."""
    for vector in SNAPSHOTS:
        if vector.layout.is_checked:
            for offset in range(4, len(vector.data) - 8):
                body = overwritten(vector.data[:-4], offset, value)
                crc = checksum(body[vector.layout.covered_offset :])
                hostile = body + crc.to_bytes(4, "big")
                assert peak_of(read_snapshot, hostile) < allowed(hostile)


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
@pytest.mark.parametrize("length", [0x7FFFFFFF, -1, 0x00FFFFFF])
def test_a_hostile_record_in_a_large_log_costs_a_small_multiple_of_the_log(
    layout: LogLayout, length: int
) -> None:
    fields = (RECORD_MARKER, 1, 0, length) if layout.is_marked else (1, length)
    record = encode_record(layout, term=1, payload=b"D\x01q" + bytes(40))
    data = encode_header(layout) + record * 2000 + layout.record_header.pack(*fields) + record * 9
    assert peak_of(read_log, data) < allowed(data)


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE], ids=lambda x: x.variant)
def test_a_log_full_of_markers_costs_a_small_multiple_of_the_log(layout: LogLayout) -> None:
    data = encode_header(layout) + RECORD_MARKER * 20_000
    assert peak_of(lambda raw: scanned(raw, layout), data) < allowed(data)
    assert peak_of(lambda raw: scanned_in_columns(raw, layout), data) < allowed(data)


def test_a_window_of_a_huge_file_costs_what_the_window_is_worth() -> None:
    """The file's size is a claim too."""
    for layout in LogLayout:
        data = encode_header(layout) + encode_record(layout, term=1, payload=bytes(1000)) * 100
        for size in (2**40, 2**62):
            assert (
                peak_of(lambda raw, n=size, x=layout: scanned(raw, x, size=n), data)  # type: ignore[misc]
                < allowed(data)
            )
            assert (
                peak_of(lambda raw, n=size, x=layout: scanned_in_columns(raw, x, size=n), data)  # type: ignore[misc]
                < allowed(data)
            )
