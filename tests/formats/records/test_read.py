"""Reading files of records: every truncation and every flipped bit, the chain, zeros, snapshots."""

from __future__ import annotations

from struct import pack_into

import pytest

from penstock.errors import BadData, BadRecord, TruncatedData
from penstock.formats.records.changes import encode_change
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.header import HEADER_SIZE, Kind, encode_record
from penstock.formats.records.read import (
    Chain,
    End,
    Located,
    Stop,
    check_footer,
    collect,
    decode_entry,
    find_record,
    read_snapshot,
    rebuild_footer,
    walk,
    walk_segment,
)
from penstock.formats.records.segment import FILE_HEADER_SIZE, FileHeader, encode_file_header
from penstock.formats.records.writer import write_log, write_snapshot
from support.damage import cuts, flipped, overwritten, unnoticed
from support.record_examples import (
    CHANGES,
    CLUSTER_ID,
    PRODUCERS,
    START,
    record_of,
    small_log,
    small_snapshot,
)
from support.report import report

START_OF_LOG = Chain(0, 0)


def segments(size: int = 2**20) -> list[bytes]:
    return [
        segment.data for segment in write_log(small_log(), cluster_id=CLUSTER_ID, segment_size=size)
    ]


OPEN = segments()[0]
SEALED = segments(1000)[0]


def walked(data: bytes) -> tuple[list[Located], End]:
    return collect(walk_segment(data, chain=START_OF_LOG))


def resealed(data: bytes, record: int, offset: int, form: str, value: int) -> bytes:
    """Return a file whose record has another value in its header, and a head checksum that matches."""
    copy = bytearray(data)
    pack_into(form, copy, record + offset, value)
    pack_into("<I", copy, record + 4, crc32c(copy[record + 8 : record + HEADER_SIZE]))
    return bytes(copy)


def test_a_log_gives_back_its_changes() -> None:
    records, end = walked(OPEN)
    entries = [decode_entry(OPEN, record) for record in records]
    assert [stamp for stamp, _ in entries] == [stamp for stamp, _ in small_log()]
    assert [type(change) for _, change in entries] == [type(change) for _, change in small_log()]
    assert (end.position, end.stop, end.damage) == (len(OPEN), Stop.END, None)
    assert end.chain == Chain(records[-1].header.checksum, len(entries))


def test_the_chain_goes_from_segment_to_segment() -> None:
    chain: Chain | None = START_OF_LOG
    count = 0
    for data in segments(1000):
        records, end = collect(walk_segment(data, chain=chain))
        assert end.damage is None
        count, chain = count + len(records), end.chain
    assert count == len(CHANGES)


def test_a_segment_that_does_not_continue_the_log_is_refused() -> None:
    second = segments(1000)[1]
    first_index = collect(walk_segment(second))[0][0].header.index
    with pytest.raises(BadRecord) as caught:
        walk_segment(second, chain=START_OF_LOG)
    assert (caught.value.expected, caught.value.found) == ("index 1", str(first_index))
    _, end = collect(walk_segment(second, chain=Chain(99, first_index - 1)))
    assert isinstance(end.damage, BadRecord)
    assert (end.damage.offset, end.damage.expected) == (FILE_HEADER_SIZE + 44, "00000063")


@pytest.mark.parametrize("data", [OPEN, SEALED], ids=["open", "sealed"])
def test_every_truncation_of_a_log_is_seen(data: bytes) -> None:
    """A cut between two records is the end of a shorter log, which the sync point tells; any other is damage."""
    whole, end = walked(data)
    boundaries = {record.offset for record in whole} | {end.position}
    for cut in cuts(data):
        if len(cut) < FILE_HEADER_SIZE:
            with pytest.raises(TruncatedData):
                walked(cut)
            continue
        records, end = walked(cut)
        assert records == [record for record in whole if record.body[1] <= len(cut)]
        assert (end.stop is Stop.END) == (len(cut) in boundaries)
        assert end.position == max((record.body[1] for record in records), default=FILE_HEADER_SIZE)


@pytest.mark.parametrize("data", [OPEN, SEALED], ids=["open", "sealed"])
def test_every_flipped_bit_of_a_log_is_noticed(data: bytes) -> None:
    def notices(damaged: bytes) -> bool:
        try:
            return walked(damaged)[1].damage is not None
        except BadData:
            return True

    assert unnoticed(data, notices) == set()
    report(f"records: all {8 * len(data)} flipped bits of a log were noticed")


def test_records_that_are_swapped_stale_or_missing_are_found() -> None:
    records, _ = walked(OPEN)
    first, second, third, fourth = (OPEN[slice(r.offset, r.body[1])] for r in records[3:7])
    start, rest = OPEN[: records[3].offset], OPEN[records[7].offset :]
    for middle in (
        first + third + second + fourth,
        first + third + fourth,
        first + second + second + third + fourth,
    ):
        found, end = walked(start + middle + rest)
        assert end.damage is not None
        assert end.damage.reason == "the record does not continue the one before it"
        assert end.position == records[len(found)].offset


def test_a_gap_in_the_indexes_is_found_although_the_chain_is_whole() -> None:
    header = encode_file_header(FileHeader(first_index=1, cluster_id=CLUSTER_ID))
    record = encode_record(Kind.EMPTY, b"", index=2, term=1, time_ms=0, previous=0)
    _, end = walked(header + record)
    assert isinstance(end.damage, BadRecord)
    assert (end.damage.expected, end.damage.found) == ("1", "2")


def test_zeros_end_a_log_that_is_being_written() -> None:
    records, end = walked(OPEN + bytes(4096))
    assert (len(records), end.stop, end.position) == (len(CHANGES), Stop.ZEROS, len(OPEN))
    _, end = walked(OPEN + bytes(100) + b"\x01" + bytes(100))
    assert end.stop is Stop.DAMAGE
    assert end.damage is not None
    assert end.damage.offset == len(OPEN) + 100


def test_a_footer_ends_a_segment_and_may_be_followed_by_zeros_only() -> None:
    for tail in (b"", bytes(64)):
        _, end = walked(SEALED + tail)
        assert end.stop is Stop.FOOTER
        check_footer(SEALED, end)
    for tail in (b"\x01", record_of(CHANGES["empty"])):
        assert walked(SEALED + tail)[1].stop is Stop.DAMAGE


def test_a_log_cannot_contain_records_of_a_snapshot() -> None:
    header = encode_file_header(FileHeader(first_index=1, cluster_id=CLUSTER_ID))
    record = encode_record(Kind.SNAPSHOT_START, b"", index=0, term=1, time_ms=0, previous=0)
    _, end = walked(header + record)
    assert end.damage is not None
    assert end.damage.offset == FILE_HEADER_SIZE + 12


def test_damage_is_explained_by_offset_expected_and_found() -> None:
    records, _ = walked(OPEN)
    _, end = walked(flipped(OPEN, 8 * (records[2].offset + 70)))
    assert end.position == records[2].offset
    assert isinstance(end.damage, BadRecord)
    assert end.damage.offset == records[2].offset + 40
    assert end.damage.found == f"{records[2].header.body_checksum:08X}"


def test_a_missing_footer_is_rebuilt() -> None:
    _, end = walked(SEALED)
    footer, last = rebuild_footer(SEALED[: end.position] + bytes(512))
    assert footer == end.footer
    assert last is not None
    assert end.chain == Chain(last.header.checksum, last.header.index)
    with pytest.raises(BadRecord):
        rebuild_footer(flipped(SEALED, 8 * 200))


def test_a_footer_of_another_segment_is_noticed() -> None:
    _, end = walked(SEALED)
    assert end.footer is not None
    with pytest.raises(BadRecord):
        check_footer(flipped(SEALED, 8 * 20), end)


def test_a_walk_can_begin_at_a_mark() -> None:
    records, _ = walked(OPEN)
    before, first = records[3], records[4]
    chain = Chain(before.header.checksum, before.header.index)
    assert collect(walk(OPEN, offset=first.offset, chain=chain))[0] == records[4:]


# --- snapshots -----------------------------------------------------------------------------------

SNAPSHOT = small_snapshot()


def test_a_snapshot_gives_back_its_records() -> None:
    snapshot = read_snapshot(SNAPSHOT)
    assert snapshot.start == START
    kinds = [record.header.kind for record in snapshot.records]
    assert kinds == [7, 8, 130, 5, 1, 9]
    assert [record.header.kind for record in snapshot.behind] == [132]
    assert snapshot.end.counts == {"records": 7, "tasks": 2}
    assert len(PRODUCERS) == START.counts["producers"]


def test_every_flipped_bit_of_a_snapshot_is_noticed() -> None:
    def notices(damaged: bytes) -> bool:
        try:
            read_snapshot(damaged)
        except BadData:
            return True
        return False

    assert unnoticed(SNAPSHOT, notices) == set()
    report(f"records: all {8 * len(SNAPSHOT)} flipped bits of a snapshot were noticed")


def test_every_truncation_of_a_snapshot_is_noticed() -> None:
    """Also one between two records, and one behind the first of two ends."""
    for cut in cuts(SNAPSHOT):
        with pytest.raises(BadData):
            read_snapshot(cut)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [(12, "B", Kind.EMPTY), (16, "<Q", 43), (24, "<Q", 4), (32, "<Q", 5), (44, "<I", 1)],
)
def test_a_snapshot_with_one_strange_record_is_refused(offset: int, form: str, value: int) -> None:
    """The chain is broken too, so the last record is the one to change: nothing follows it."""
    last = collect(walk(SNAPSHOT, is_snapshot=True))[0][-1].offset
    with pytest.raises(BadRecord):
        read_snapshot(resealed(SNAPSHOT, last, offset, form, value))


def test_a_snapshot_without_start_or_end_is_refused() -> None:
    header = SNAPSHOT[:FILE_HEADER_SIZE]
    for data in (header, header + bytes(64), SNAPSHOT + bytes(64), header + SNAPSHOT[-200:]):
        with pytest.raises(BadData):
            read_snapshot(data)


def test_a_snapshot_without_paged_queues_has_one_end() -> None:
    data = b"".join(write_snapshot(START, [encode_change(CHANGES["add"])]))
    snapshot = read_snapshot(data)
    assert (snapshot.end.continues, snapshot.behind) == (False, ())
    assert snapshot.end.counts == {"records": 2, "tasks": 2}
    for cut in cuts(data):
        with pytest.raises(BadData):
            read_snapshot(cut)


# --- behind damage -------------------------------------------------------------------------------


def test_a_search_finds_the_next_record_behind_damage() -> None:
    records, _ = walked(OPEN)
    damaged = overwritten(OPEN, records[2].offset, bytes(64))
    assert find_record(damaged, records[2].offset) == records[3].offset
    assert find_record(damaged, records[-1].offset + 1) is None
    assert find_record(b"PSK4" * 40, 0) is None
