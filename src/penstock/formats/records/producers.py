"""The body of kind 130: what a snapshot remembers of producers, least recently used first (docs/formats/records.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.binary import Bytes
from penstock.errors import BadRecord, InvalidValue
from penstock.formats.records.add import PRODUCER_ID_SIZE
from penstock.formats.records.columns import TWO_U32, ColumnReader, encode_array
from penstock.formats.records.header import TIME_MAX

COUNT_MAX: Final = 16_384
"""Producers of one record; a full table of 262,144 takes 16 records of 786 kB."""


class ProducerState(NamedTuple):
    """The last request of a producer: its answer can be given again."""

    producer: bytes
    sequence: int  # the last one that was accepted
    queue_id: int
    first_id: int
    count: int  # type: ignore[assignment] # hides a method of tuples that nothing calls
    time_ms: int  # log time of the last use


class ProducerColumns(NamedTuple):
    """A decoded body; views share the memory of the data."""

    ids: Bytes  # 16 bytes each
    sequences: memoryview
    queue_ids: memoryview
    first_ids: memoryview
    counts: memoryview
    times: memoryview

    def rows(self) -> Iterator[ProducerState]:
        """Yield the producers in their order."""
        ids = bytes(self.ids)
        starts = range(0, len(ids), PRODUCER_ID_SIZE)
        producers = (ids[start : start + PRODUCER_ID_SIZE] for start in starts)
        return map(
            ProducerState,
            producers,
            self.sequences,
            self.queue_ids,
            self.first_ids,
            self.counts,
            self.times,
        )


def decode_producers(data: Bytes, start: int, end: int) -> ProducerColumns:
    """Check the body in ``data[start:end]`` and return its columns. Raises ``BadRecord``."""
    reader = ColumnReader(data, start, end, 0)
    at = reader.take(TWO_U32.size, "producers")
    count, zero = TWO_U32.unpack_from(data, at)
    if zero or not 1 <= count <= COUNT_MAX:
        raise BadRecord(
            "impossible number of producers",
            offset=at,
            expected=f"1 to {COUNT_MAX}, and 0 behind it",
            found=f"{count}, {zero}",
        )
    reader.count = count
    ids_at = reader.take(PRODUCER_ID_SIZE * count, "producers")
    columns = ProducerColumns(
        data[ids_at : ids_at + PRODUCER_ID_SIZE * count],
        reader.array("Q", 8, "sequences"),
        reader.array("I", 4, "queue ids"),
        reader.array("Q", 8, "first ids"),
        reader.array("I", 4, "counts"),
        reader.array("q", 8, "times"),
    )
    if reader.at != end:
        raise BadRecord("bytes left over behind producers", offset=reader.at)
    if min(columns.times) < 0 or max(columns.times) > TIME_MAX:
        raise BadRecord(
            "time of a producer is out of range", offset=start, expected=f"0 to {TIME_MAX}"
        )
    return columns


def encode_producers(states: Sequence[ProducerState]) -> bytes:
    """Return the body of a record of up to ``COUNT_MAX`` producers."""
    if not 1 <= len(states) <= COUNT_MAX:
        raise InvalidValue(f"a record holds 1 to {COUNT_MAX} producers, not {len(states)}")
    ids, sequences, queue_ids, first_ids, counts, times = zip(*states, strict=True)
    return b"".join(
        (
            TWO_U32.pack(len(states), 0),
            *ids,
            encode_array("Q", sequences),
            encode_array("I", queue_ids),
            encode_array("Q", first_ids),
            encode_array("I", counts),
            encode_array("q", times),
        )
    )
