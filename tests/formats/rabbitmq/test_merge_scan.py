"""Journal and segment in columns add up to what ``merge`` says, in order or not."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.rabbitmq import journal, merge_scan, segment
from penstock.formats.rabbitmq.journal import Kind, Piece, PieceColumns, Publish, SequenceNumber
from penstock.formats.rabbitmq.merge import Entry, Place, merge
from penstock.formats.rabbitmq.merge_scan import (
    EntryColumns,
    RecordColumns,
    joined,
    merge_columns,
    records_in,
)
from support.rabbitmq_directories import NAMES
from support.rabbitmq_golden import snapshot
from support.rabbitmq_reading import JOURNAL, SEGMENT, damaged

ENTRY_COUNT = 2048


def in_columns(data: bytes, batches: Iterable[PieceColumns], *, base: int = 0) -> RecordColumns:
    """Return the records of a file in columns, without what is none."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    found = joined([records_in(buffer, pieces, base=base) for pieces in batches])
    return found.take(np.flatnonzero(found.pieces.kind != Kind.NONE))


def only_records(pieces: Iterable[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.kind is not Kind.NONE]


def entries_of(found: EntryColumns, number: int) -> list[Entry]:
    return [
        Entry(
            sequence=SequenceNumber(int(found.sequence[row])),
            message_id=found.message_id[row].tobytes(),
            is_persistent=bool(found.is_persistent[row]),
            expiry_us=int(found.expiry_us[row]),
            body_size=int(found.body_size[row]),
            length=int(found.length[row]),
            place=Place(None if found.is_journaled[row] else number, int(found.offset[row])),
            size=int(found.size[row]),
            is_delivered=bool(found.is_delivered[row]),
            is_acked=bool(found.is_acked[row]),
        )
        for row in range(len(found))
    ]


def check(jif: bytes, idx: bytes, *, number: int = 3, entry_count: int = ENTRY_COUNT) -> bool:
    """Hold columns to ``merge``; return whether there was nothing to find."""
    flushed = only_records(segment.scan(idx, segment=number, entry_count=entry_count))
    journaled = [
        piece
        for piece in only_records(journal.scan(jif))
        if piece.sequence // entry_count == number
    ]
    expected = merge(journaled, {number: flushed})
    scan = segment.scan_segment_columns(idx, segment=number, entry_count=entry_count, batch_rows=7)
    flushed_columns = in_columns(idx, scan)
    assert list(flushed_columns.to_pieces()) == flushed
    records = in_columns(jif, journal.scan_journal_columns(jif, batch_rows=7))
    records = records.take(np.flatnonzero(records.pieces.sequence // entry_count == number))
    assert list(records.to_pieces()) == journaled
    for few in (merge_scan.FEW, -1):  # the kernel merges few records too
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge_scan, "FEW", few)
            found, findings = merge_columns(
                records, flushed_columns, number=number, entry_count=entry_count
            )
        assert entries_of(found, number) == expected.entries
        assert findings == expected.findings
    return not expected.findings


def publish(sequence: int, message: bytes = b"") -> Publish:
    return Publish(
        message_id=sequence.to_bytes(16, "big"),
        is_persistent=sequence % 3 > 0,
        expiry_us=(2**64 - 1) * (sequence % 2),
        body_size=sequence,
        embedded=message,
    )


def a_queue(stages: list[tuple[str, str]], *, number: int = 3) -> tuple[bytes, bytes]:
    """Return journal and segment: what became of each message before and after the last flush."""
    jif: list[bytes] = []
    idx: list[bytes] = []
    for relative, (flushed, journaled) in enumerate(stages):
        sequence = SequenceNumber(number * ENTRY_COUNT + relative)
        record = publish(sequence, b"\x83h" + bytes(relative % 5))
        by_kind = {
            "p": journal.encode_publish(sequence, record),
            "d": journal.encode_deliver(sequence),
            "a": journal.encode_ack(sequence),
        }
        jif += [by_kind[kind] for kind in journaled]
        word = segment.encode_deliver_or_ack(relative)
        published = segment.encode_publish(relative, record)
        idx += [published if kind == "p" else word for kind in flushed]
    return b"".join(jif), b"".join(idx)


IN_ORDER = [
    ("", ""), ("p", ""), ("pd", ""), ("pda", ""), ("p", "d"), ("p", "da"), ("pd", "a"),
    ("", "p"), ("", "pd"), ("", "pda"), ("da", "p"), ("d", "pa"),
]  # fmt: skip
ODD = [
    ("pd", "d"),
    ("pd", "pd"),
    ("", "a"),
    ("", "da"),
    ("p", "a"),
    ("dp", ""),
    ("pp", ""),
    ("pdaa", ""),
]


@given(st.lists(st.sampled_from(IN_ORDER), min_size=70, max_size=120))
def test_files_that_are_in_order_are_joined(stages: list[tuple[str, str]]) -> None:
    assert check(*a_queue(stages))


@given(st.lists(st.sampled_from(IN_ORDER), max_size=100), st.sampled_from(ODD), st.randoms())
def test_what_is_odd_is_found(
    stages: list[tuple[str, str]], odd: tuple[str, str], random: Random
) -> None:
    stages.insert(random.randint(0, len(stages)), odd)
    assert not check(*a_queue(stages))


@given(
    st.lists(st.tuples(st.text("pda", max_size=5), st.text("pda", max_size=5)), max_size=80),
)
def test_any_order_of_records_is_read_alike(stages: list[tuple[str, str]]) -> None:
    check(*a_queue(stages))


@given(seed=st.integers(0, 2**32))
def test_damage_is_read_alike(seed: int) -> None:
    random = Random(seed)
    check(damaged(JOURNAL, random, records_max=80), damaged(SEGMENT, random, records_max=80))


def test_the_last_numbers_of_all_are_joined_too() -> None:
    """A journal may speak of a segment that is too high to have a file."""
    number = (2**62 - 1) // ENTRY_COUNT
    jif = b"".join(
        journal.encode_publish(SequenceNumber(2**62 - 1 - n), publish(n)) for n in range(100)
    )
    records = in_columns(jif, journal.scan_journal_columns(jif))
    found, findings = merge_columns(records, joined([]), number=number, entry_count=ENTRY_COUNT)
    assert found.sequence.tolist() == list(range(2**62 - 100, 2**62))
    assert not findings


def test_offsets_of_a_window_count_from_the_start_of_the_file() -> None:
    jif, _ = a_queue([("", "pd")] * 3)
    batches = list(journal.scan_journal_columns(jif))
    found = in_columns(jif, batches, base=1000)
    pieces = [piece._replace(offset=piece.offset + 1000) for piece in journal.scan(jif)]
    assert list(found.to_pieces()) == pieces


@pytest.mark.parametrize("name", NAMES)
def test_real_queues_are_joined_alike(name: str) -> None:
    for vhost in snapshot(name).vhosts.values():
        for files in vhost.queues.values():
            jif = files.get("journal.jif", b"")
            numbers = {segment.parse_segment_name(file) for file in files} - {None}
            numbers |= {p.sequence // vhost.entry_count for p in only_records(journal.scan(jif))}
            for number in numbers:
                assert number is not None
                idx = files.get(segment.segment_name(number), b"")
                check(jif, idx, number=number, entry_count=vhost.entry_count)
