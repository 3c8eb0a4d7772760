"""The checkpoint of a paged store, and seals: golden bytes, every truncation, every flipped bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue, UnsupportedVersion
from penstock.formats.rabbitmq import journal
from penstock.formats.rabbitmq.checkpoint import (
    NAME_SIZE_MAX,
    SEAL_SIZE,
    SEQUENCE_END,
    Checkpoint,
    QueueLengths,
    decode_checkpoint,
    encode_checkpoint,
    encode_seal,
    seal_checksum,
)
from penstock.formats.rabbitmq.journal import Kind
from penstock.formats.rabbitmq.places import TableMark
from support.damage import cuts, unnoticed

# docs/formats/paged.md, version 2: mark 7, store file 2 of 100 bytes, and a queue 1 named "q" with
# a journal of 48 bytes and segment 3 of 34 bytes, which has a table of 180 bytes.
CHECKPOINT = Checkpoint(
    mark=7,
    next_store_file=3,
    store_files={2: 100},
    queues=(
        QueueLengths(
            number=1,
            name=b"q",
            next_sequence=49_153,
            journal_length=48,
            chain=0xCAFE,
            generation=5,
            segments={3: 34},
            tables={3: TableMark(size=180, checksum=0xBEEF)},
        ),
    ),
)
GOLDEN = bytes.fromhex("""
    50 53 43 50 00 00 00 02 00 00 00 00 00 00 00 07
    00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 01
    00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 64
    00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 01 00 01 00 00 00 00 00 00
    C0 01 00 00 00 00 00 00 00 30 00 00 CA FE 00 00
    00 05 00 00 00 01 71 00 00 00 00 00 00 00 03 00
    00 00 00 00 00 00 22 00 00 00 B4 00 00 BE EF
    B3 5E 1F 28
""")

# The same in version 1, which knew no tables.
CHECKPOINT_1 = replace(CHECKPOINT, queues=(replace(CHECKPOINT.queues[0], tables={}),))
GOLDEN_1 = bytes.fromhex("""
    50 53 43 50 00 00 00 01 00 00 00 00 00 00 00 07
    00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 01
    00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 64
    00 00 00 00 00 00 00 01 00 01 00 00 00 00 00 00
    C0 01 00 00 00 00 00 00 00 30 00 00 CA FE 00 00
    00 05 00 00 00 01 71 00 00 00 00 00 00 00 03 00
    00 00 00 00 00 00 22
    58 FE A1 CB
""")

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
marks = st.builds(TableMark, size=st.integers(1, 2**32 - 1), checksum=uint32)
lengths = st.dictionaries(uint64, uint64, max_size=4)


def with_tables(files: dict[int, int], tables: list[TableMark]) -> dict[int, TableMark]:
    return dict(zip(files, tables, strict=False))


checkpoints = st.builds(
    lambda tables, queue_tables, checkpoint: replace(
        checkpoint,
        store_tables=with_tables(checkpoint.store_files, tables),
        queues=tuple(
            replace(queue, tables=with_tables(queue.segments, queue_tables))
            for queue in checkpoint.queues
        ),
    ),
    st.lists(marks, max_size=4),
    st.lists(marks, max_size=4),
    st.builds(
        Checkpoint,
        mark=st.integers(-1, 2**63 - 1),
        next_store_file=uint64,
        store_files=lengths,
        queues=st.lists(
            st.builds(
                QueueLengths,
                number=uint64,
                name=st.binary(max_size=20),
                next_sequence=uint64,
                journal_length=uint64,
                chain=uint32,
                generation=uint32,
                segments=lengths,
            ),
            max_size=3,
        ).map(tuple),
    ),
)


def test_a_checkpoint_has_its_golden_bytes() -> None:
    assert encode_checkpoint(CHECKPOINT) == GOLDEN
    assert decode_checkpoint(GOLDEN) == CHECKPOINT


def test_a_checkpoint_of_version_1_is_one_without_tables() -> None:
    assert decode_checkpoint(GOLDEN_1) == CHECKPOINT_1
    for cut in cuts(GOLDEN_1):
        with pytest.raises(BadData):
            decode_checkpoint(cut)


@given(checkpoints)
def test_what_is_encoded_is_decoded(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_a_checkpoint_cut_anywhere_is_refused() -> None:
    for cut in cuts(GOLDEN):
        with pytest.raises(BadData):
            decode_checkpoint(cut)


def test_a_flipped_bit_is_refused_wherever_it_is() -> None:
    def notices(damaged: bytes) -> bool:
        try:
            decode_checkpoint(damaged)
        except BadData:
            return True
        return False

    assert unnoticed(GOLDEN, notices) == set()


def test_another_version_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_checkpoint(GOLDEN[:7] + b"\x03" + GOLDEN[8:])


def test_another_file_is_no_checkpoint() -> None:
    with pytest.raises(CorruptData, match="not a checkpoint"):
        decode_checkpoint(b"PSSY" + GOLDEN[4:])


def test_a_name_that_is_too_long_is_refused() -> None:
    queue = CHECKPOINT.queues[0]
    with pytest.raises(InvalidValue, match="65536 bytes"):
        encode_checkpoint(
            Checkpoint(
                queues=(
                    QueueLengths(
                        number=1,
                        name=bytes(NAME_SIZE_MAX + 1),
                        next_sequence=0,
                        journal_length=0,
                        chain=0,
                        generation=queue.generation,
                    ),
                )
            )
        )


@given(uint32)
def test_a_seal_is_an_ack_of_a_number_that_no_message_has(chain: int) -> None:
    [piece] = journal.scan(encode_seal(chain))
    assert (piece.kind, piece.size) == (Kind.ACK, SEAL_SIZE)
    assert piece.sequence >= SEQUENCE_END
    assert seal_checksum(piece.sequence) == chain
