"""Small states of generation 4 for tests of one rule."""

from __future__ import annotations

from typing import Any

from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import AddTasks, Change, SetQueue, Stamp
from penstock.formats.records.settings import QueueSettings
from penstock.model import QueueName
from penstock.queues.columnar.chunk import Chunk, chunk_of
from penstock.queues.columnar.state import State

TIME_MS = 1_700_000_000_000


class Example:
    """A state with the queues ``a`` (1) and ``b`` (2), and the next index to apply."""

    def __init__(self) -> None:
        self.state = State()
        self.index = 0
        self.term = 1
        self.time_ms = TIME_MS
        self.apply(SetQueue(1, QueueSettings(name=QueueName("a"))))
        self.apply(SetQueue(2, QueueSettings(name=QueueName("b"))))

    def apply(self, change: Change) -> int:
        self.index += 1
        stamp = Stamp(self.index, self.term, self.time_ms, 0)
        return self.state.apply(change, stamp)

    def add(
        self, count: int, *, queue_id: int = 1, keys: Any = 5, size: int = 4, **columns: Any
    ) -> int:
        """Add tasks with payloads that name them, and return the first id."""
        first_id = self.state.queues[queue_id].last_id + 1
        payloads = [b"%0*d" % (size, first_id + number) for number in range(count)]
        assert not self.apply(added(queue_id, first_id, keys, payloads, **columns))
        return first_id


def added(
    queue_id: int, first_id: int, keys: Any, payloads: list[bytes], **columns: Any
) -> AddTasks:
    body = encode_add(b"a", keys, payloads, **columns)
    return AddTasks(queue_id, first_id, decode_add(body, 0, len(body), Rules.RECORD))


def chunk(first_id: int, count: int, *, keys: Any = 5, entry: int = 1, **columns: Any) -> Chunk:
    """Return a chunk whose payloads name their tasks."""
    payloads = [b"%d" % (first_id + number) for number in range(count)]
    change = added(1, first_id, keys, payloads, **columns)
    return chunk_of(first_id, change.body, entry=entry, time_ms=TIME_MS, principal_id=0)
