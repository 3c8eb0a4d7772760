"""Writing: where segments are cut, what footers say, snapshots of equal contents have equal bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidValue
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    EncodedChange,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    Stamp,
    encode_change,
)
from penstock.formats.records.footer import MARK_DISTANCE, Footer, QueueSummary
from penstock.formats.records.header import RECORD_SIZE_MAX, Kind
from penstock.formats.records.ids import MoveReason, RemoveReason
from penstock.formats.records.read import (
    Chain,
    Stop,
    check_footer,
    collect,
    decode_entry,
    read_snapshot,
    rebuild_footer,
    walk_segment,
)
from penstock.formats.records.writer import record_of, write_log, write_snapshot
from support.record_examples import CLUSTER_ID, START, added
from support.record_strategies import changes


def add_of(
    size: int, *, queue_id: int = 1, name: bytes = b"q", key: int = 0, first_id: int = 1
) -> AddTasks:
    return added(encode_add(name, key, [bytes(size)]), queue_id=queue_id, first_id=first_id)


def entries(*changed: Change) -> list[tuple[Stamp, Change]]:
    return [(Stamp(index, 1, 1000 + index), change) for index, change in enumerate(changed, 1)]


def footer_of(data: bytes) -> Footer:
    _, end = collect(walk_segment(data))
    assert end.footer is not None
    check_footer(data, end)
    return end.footer


@given(st.lists(changes, min_size=1, max_size=6), st.integers(200, 4000))
def test_any_log_can_be_read_back_and_its_footers_rebuilt(log: list[Change], size: int) -> None:
    written = list(write_log(entries(*log), cluster_id=CLUSTER_ID, segment_size=size))
    chain: Chain | None = Chain(0, 0)
    names: dict[int, bytes] = {}
    found: list[Change] = []
    for segment in written:
        records, end = collect(walk_segment(segment.data, chain=chain))
        assert end.stop is (Stop.FOOTER if segment.is_sealed else Stop.END)
        assert records[0].header.index == segment.first_index
        footer, _ = rebuild_footer(segment.data, names, chain)
        if segment.is_sealed:
            assert footer == end.footer
        names |= {queue.queue_id: queue.name for queue in footer.queues if queue.name is not None}
        found += [decode_entry(segment.data, record)[1] for record in records]
        chain = end.chain
    assert list(map(encode_change, found)) == list(map(encode_change, log))


def test_a_segment_is_cut_before_the_record_that_would_exceed_its_size() -> None:
    log = entries(*(add_of(136, first_id=index) for index in range(1, 12)))
    written = list(write_log(log, cluster_id=CLUSTER_ID, segment_size=64 + 5 * 232))
    assert [segment.first_index for segment in written] == [1, 6, 11]
    assert [segment.is_sealed for segment in written] == [True, True, False]
    assert len(written[2].data) == 64 + 232


def test_a_record_larger_than_a_quarter_has_a_segment_of_its_own() -> None:
    log = entries(add_of(8), add_of(8), add_of(1000), add_of(8), add_of(1000))
    written = list(write_log(log, cluster_id=CLUSTER_ID, segment_size=4000))
    assert [segment.first_index for segment in written] == [1, 3, 4, 5]
    assert [footer_of(segment.data).entries for segment in written] == [2, 1, 1, 1]


def test_a_footer_has_a_mark_about_every_mebibyte() -> None:
    log = entries(*(add_of(300_000, first_id=index) for index in range(1, 12)))
    (segment,) = write_log(log, cluster_id=CLUSTER_ID)
    footer, _ = rebuild_footer(segment.data)
    assert [mark.index for mark in footer.marks] == [1, 5, 9]
    distances = {b.offset - a.offset for a, b in zip(footer.marks, footer.marks[1:], strict=False)}
    assert all(MARK_DISTANCE <= distance < MARK_DISTANCE + 301_000 for distance in distances)
    records, _ = collect(walk_segment(segment.data))
    by_offset = {record.offset: record.header for record in records}
    assert all(by_offset[mark.offset].previous == mark.previous for mark in footer.marks)


def test_a_footer_sums_up_every_queue_that_a_segment_names() -> None:
    log = entries(
        add_of(8, key=5, first_id=10),
        add_of(8, queue_id=2, name=b"dead", key=-3, first_id=7),
        MoveTasks(1, range(10, 11), MoveReason.MOVED, 2, 20),
        Envelope(
            (
                Part(RemoveTasks(1, range(3, 5), RemoveReason.ACKED)),
                Part(add_of(8, key=9, first_id=11)),
                Part(RemoveTasks(3, range(1, 100), RemoveReason.PURGED, is_span=True)),
            )
        ),
    )
    (segment,) = write_log(log, cluster_id=CLUSTER_ID, names={4: b"unused"})
    footer, _ = rebuild_footer(segment.data)
    assert footer.queues == (
        QueueSummary(1, b"q", 3, 3, 11, 5, 9, 1001, 1004),
        QueueSummary(2, b"dead", 2, 7, 20, -3, -3, 1002, 1003),
        QueueSummary(3, None, 1, 1, 99, least_time=1004, greatest_time=1004),
    )
    assert rebuild_footer(segment.data, {3: b"old"})[0].queues[2].name == b"old"


def test_an_entry_that_does_not_follow_is_refused() -> None:
    with pytest.raises(InvalidValue):
        list(write_log([(Stamp(2, 1, 0), add_of(1))], cluster_id=CLUSTER_ID))
    log = write_log([(Stamp(2, 1, 0), add_of(1))], cluster_id=CLUSTER_ID, chain=Chain(9, 1))
    assert next(log).first_index == 2


def test_a_record_above_the_limit_is_refused() -> None:
    change = add_of(RECORD_SIZE_MAX - 64)
    with pytest.raises(InvalidValue):
        record_of(change, Stamp(1, 1, 0), 0)


def test_a_checksum_of_the_client_is_kept() -> None:
    record = record_of(add_of(1), Stamp(1, 1, 0), 0, body_checksum=0x01020304)
    assert record[40:44] == bytes((4, 3, 2, 1))


def test_equal_contents_give_equal_snapshots() -> None:
    parts = [EncodedChange(Kind.ADD, 1, 1, encode_add(b"q", 1, [b"a", b"b"]))]
    once = b"".join(write_snapshot(START, parts))
    again = b"".join(write_snapshot(START, iter(parts)))
    assert once == again
    assert read_snapshot(once).end.counts == {"records": 2, "tasks": 2}


def test_paged_queues_do_not_change_the_digest_of_the_state() -> None:
    parts = [EncodedChange(Kind.ADD, 1, 1, encode_add(b"q", 1, [b"a", b"b"]))]
    alone = read_snapshot(b"".join(write_snapshot(START, parts)))
    for behind in ([], parts):
        snapshot = read_snapshot(b"".join(write_snapshot(START, parts, behind)))
        assert snapshot.end.digest == alone.end.digest
        assert snapshot.end.counts == alone.end.counts
        assert len(snapshot.behind) == len(behind)
