"""The last request of every producer: what makes an enqueue count once, however often it is repeated.

Apply only records. Whether a sequence is next, a duplicate, a gap or forgotten is judged by the leader before it proposes.

The table is cut into shards, so that a frozen view costs no copy: a shard is copied at the first write afterwards. Each
shard lists its producers least recently used first, and every use has a number, so the shards merge into one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from struct import Struct
from typing import Final

from penstock.formats.records.producers import ProducerState

PRODUCERS_MAX: Final = 262_144
"""A producer is forgotten only when the table is full, least recently used first: 48 MB, measured."""

SHARDS: Final = 64
"""A full shard has 4,096 producers: its copy takes about 0.1 ms."""

_ENTRY: Final = Struct(
    ">QQQQII"
)  # use (first and big-endian, so that entries compare by it), last sequence, first id, time, queue id, count


_NOTHING: Final = b"\xff" * _ENTRY.size  # behind every entry


Shards = tuple[dict[bytes, bytes], ...]


class Producers:
    """Producers by id, bounded by their number."""

    __slots__ = ("_frozen", "_heads", "_limit", "_shards", "_uses", "count")

    def __init__(self, limit: int = PRODUCERS_MAX) -> None:
        self.count = 0
        self._limit = limit
        self._uses = 0
        self._shards: list[dict[bytes, bytes]] = [{} for _ in range(SHARDS)]
        # The oldest of each shard, or None if it must be looked up: a dict finds its first key slowly after removals.
        self._heads: list[tuple[bytes, int, bytes] | None] = [None] * SHARDS
        self._frozen = bytearray(
            SHARDS
        )  # 1: a view has this shard, so it is copied before it is written

    def record(
        self,
        producer: bytes,
        *,
        sequence: int,
        queue_id: int,
        first_id: int,
        count: int,
        time_ms: int,
    ) -> None:
        """Note a request: ``sequence`` is that of its last task."""
        number = producer[-1] % SHARDS
        shard = self._own(number) if self._frozen[number] else self._shards[number]
        old = shard.pop(producer, None)
        if old is None:
            self.count += 1
        head = self._heads[number]
        if head is not None and (old == head[0] or not shard):
            self._heads[number] = None
        shard[producer] = _ENTRY.pack(self._uses, sequence, first_id, time_ms, queue_id, count)
        self._uses += 1
        if self.count > self._limit:
            self._evict()

    def find(self, producer: bytes) -> ProducerState | None:
        """Return the last request of a producer, or None if it is unknown or forgotten."""
        entry = self._shards[producer[-1] % SHARDS].get(producer)
        return None if entry is None else _decoded(producer, entry)

    def freeze(self) -> Shards:
        """Return a view for ``requests_of`` that later changes do not touch."""
        self._frozen = bytearray(b"\1") * SHARDS
        return tuple(self._shards)

    def _own(self, number: int) -> dict[bytes, bytes]:
        shard = dict(self._shards[number])
        self._shards[number] = shard
        self._frozen[number] = 0
        return shard

    def _evict(self) -> None:
        """Forget the producer that was used least recently."""
        heads = self._heads
        for number in range(SHARDS):
            if heads[number] is None:
                heads[number] = self._find_head(number)
        _, number, producer = min([head for head in heads if head is not None])
        shard = self._own(number) if self._frozen[number] else self._shards[number]
        del shard[producer]
        heads[number] = None
        self.count -= 1

    def _find_head(self, number: int) -> tuple[bytes, int, bytes]:
        for producer, entry in self._shards[number].items():
            return entry, number, producer
        return _NOTHING, number, b""


def requests_of(shards: Shards) -> Iterator[ProducerState]:
    """Yield the producers of a frozen view, least recently used first."""
    lists = [[(entry, producer) for producer, entry in shard.items()] for shard in shards]
    for entry, producer in merge(*lists):
        yield _decoded(producer, entry)


def _decoded(producer: bytes, entry: bytes) -> ProducerState:
    _, sequence, first_id, time_ms, queue_id, count = _ENTRY.unpack(entry)
    return ProducerState(producer, sequence, queue_id, first_id, count, time_ms)
