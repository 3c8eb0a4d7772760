"""The bulk scan finds the records that the plain reader finds, and ends where and as that one does."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import Change, Empty, Stamp
from penstock.formats.records.read import Chain, End, Located, Stop, collect, walk
from penstock.formats.records.scan import SMALL_BODY, RecordColumns, scan_records
from penstock.formats.records.segment import FILE_HEADER_SIZE
from penstock.formats.records.writer import write_log
from support.damage import cuts, flipped, random_damage
from support.record_examples import CLUSTER_ID, added, small_log, small_snapshot
from support.record_strategies import changes

START_OF_LOG = Chain(0, 0)


def log_of(*log: Change, size: int = 2**20) -> bytes:
    entries = [(Stamp(index, 1, 1000 + index, 3), change) for index, change in enumerate(log, 1)]
    return next(iter(write_log(entries, cluster_id=CLUSTER_ID, segment_size=size))).data


LARGE = added(encode_add(b"q", 1, [bytes([place]) * SMALL_BODY for place in range(3)]))
OPEN = log_of(*(change for _, change in small_log()), LARGE, Empty(), LARGE)
SEALED = log_of(*(change for _, change in small_log()), size=1000)
SNAPSHOT = small_snapshot()


def scanned(
    data: bytes,
    *,
    chain: Chain | None = START_OF_LOG,
    is_snapshot: bool = False,
    is_last: bool = True,
    check_bodies: bool = True,
    batch_rows: int = 4,
) -> tuple[list[RecordColumns], End]:
    batches = scan_records(
        data,
        chain=chain,
        is_snapshot=is_snapshot,
        is_last=is_last,
        check_bodies=check_bodies,
        batch_rows=batch_rows,
    )
    found: list[RecordColumns] = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration as done:
            return found, done.value


def rows(batches: list[RecordColumns]) -> list[tuple[int, ...]]:
    """Return what a scan found, as the reader gives it."""
    return [
        tuple(
            int(value)
            for value in (
                batch.offset[row], batch.size[row], batch.kind[row], batch.flags[row],
                batch.version[row], batch.index[row], batch.term[row], batch.time_ms[row],
                batch.body_checksum[row], batch.queue_id[row], batch.principal_id[row],
                int(batch.first_id[row]) % 2**64, batch.checksum[row],
            )
        )
        for batch in batches
        for row in range(len(batch))
    ]  # fmt: skip


def expected(records: list[Located]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for offset, header in records:
        before, after = header[:8], header[9:]
        found.append((offset, *before, *after))
    return found


def ends(end: End) -> tuple[object, ...]:
    damage = end.damage
    explained = None if damage is None else (type(damage), str(damage))
    return end.position, end.stop, end.chain, end.footer, explained


def check(data: bytes, *, chain: Chain | None = START_OF_LOG) -> None:
    """Compare a scan with a walk."""
    is_snapshot = data[: FILE_HEADER_SIZE + 16] == SNAPSHOT[: FILE_HEADER_SIZE + 16]
    if is_snapshot:
        chain = Chain(0, 42)
    records, end = collect(walk(data, chain=chain, is_snapshot=is_snapshot))
    found, scan_end = scanned(data, chain=chain, is_snapshot=is_snapshot)
    assert rows(found) == expected(records)
    assert ends(scan_end) == ends(end)


@pytest.mark.parametrize("data", [OPEN, SEALED, SNAPSHOT], ids=["open", "sealed", "snapshot"])
def test_a_whole_file_is_scanned(data: bytes) -> None:
    check(data)
    check(data, chain=None)
    check(data + bytes(1000))
    check(data + bytes(1001))


@given(st.lists(changes, min_size=1, max_size=5), st.integers(0, 2**32))
def test_any_log_is_scanned_as_it_is_read_also_behind_damage(log: list[Change], seed: int) -> None:
    data = log_of(*log)
    check(data)
    check(random_damage(Random(seed), data, start=FILE_HEADER_SIZE))


@pytest.mark.parametrize("data", [OPEN, SEALED, SNAPSHOT], ids=["open", "sealed", "snapshot"])
def test_a_flipped_bit_ends_a_scan_where_it_ends_a_walk(data: bytes) -> None:
    for bit in range(8 * FILE_HEADER_SIZE, 8 * len(data), 5):
        check(flipped(data, bit))


def test_a_truncation_ends_a_scan_where_it_ends_a_walk() -> None:
    for cut in cuts(OPEN):
        if len(cut) >= FILE_HEADER_SIZE:
            check(cut)


def test_the_first_number_of_a_body_is_a_column() -> None:
    batches, _ = scanned(OPEN)
    counts = [int(count) for batch in batches for count in batch.count]
    kinds = [int(kind) for batch in batches for kind in batch.kind]
    assert [count for count, kind in zip(counts, kinds, strict=True) if kind == 1] == [2, 2, 3, 3]
    assert {count for count, kind in zip(counts, kinds, strict=True) if kind in (0, 6)} == {0}


def test_a_window_of_a_file_ends_before_the_record_that_goes_on_behind_it() -> None:
    records, _ = collect(walk(OPEN, chain=START_OF_LOG))
    for record in records:
        for size in (record.offset + 1, record.offset + 64, record.body[1] - 1):
            if size == record.body[1]:
                continue
            _, end = scanned(OPEN[:size], is_last=False)
            assert (end.position, end.stop, end.damage) == (record.offset, Stop.MORE, None)
            _, end = scanned(OPEN[:size])
            assert (end.position, end.stop) == (record.offset, Stop.DAMAGE)


def test_without_bodies_only_headers_and_chain_are_checked() -> None:
    records, _ = collect(walk(OPEN, chain=START_OF_LOG))
    bodies = flipped(flipped(OPEN, 8 * (records[1].offset + 64)), 8 * (records[-1].offset + 99))
    found, end = scanned(bodies, check_bodies=False)
    assert (len(rows(found)), end.stop) == (len(records), Stop.END)
    _, end = scanned(flipped(OPEN, 8 * (records[5].offset + 20)), check_bodies=False)
    assert (end.position, end.stop) == (records[5].offset, Stop.DAMAGE)


def test_a_scan_takes_arrays_that_can_be_written() -> None:
    import numpy as np

    data = np.frombuffer(bytearray(OPEN), dtype=np.uint8)
    batches = list(scan_records(data, chain=START_OF_LOG))
    assert sum(map(len, batches)) == len(small_log()) + 3
