"""A round: what is sent of a spool before the next position is saved, cut into requests. Pure.

The same frames are always cut into the same requests with the same numbers, whatever stands behind them: a round that is
sent again after a crash is known to the node request by request, and counts once. Tasks of one queue stay in their order,
in requests that are sent one after the other; those of different queues may be under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.client.batches import BATCH_COUNT_MAX, BATCH_SIZE_MAX
from penstock.errors import InvalidQueueName, InvalidValue
from penstock.formats.beats.state import Position
from penstock.formats.beats.task_event import SpooledTask
from penstock.model import RESERVED_PREFIX, QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import MILLISECONDS_MAX, Enqueue, Producer
from penstock.spooling.task_reader import Outgoing

RULE: Final = 1
"""Raised whenever rounds are cut in another way: one that was begun by the old rule cannot be repeated by the new."""

ROUND_COUNT_MAX: Final = 8192
"""Tasks after which a round is sent: enough that saving its end costs little, and soon sent again after a crash."""

ROUND_SIZE_MAX: Final = 8 * 2**20
"""Bytes of payload after which a round is sent: what a forwarder holds in memory."""

REQUESTS_MAX: Final = 256
"""Requests after which a round is sent. All of a round must be among the last 1024 that the node remembers."""

GRAIN_NS: Final = 10_000_000
"""Tasks with a delay or ttl that were spooled within this time of each other go together: they are delivered, or
expire, up to ten milliseconds early, and a request for each of them would take far longer than that."""

SEGMENT_MAX: Final = 2**31 - 1
INDEX_MAX: Final = 2**32 - 1
"""A request's number is the segment's, then 32 bits for the place of its first task; nodes keep 63 bits of it."""

_MS: Final = 1_000_000


def checked_target(name: str) -> QueueName:
    """Return the name of a queue that a task can be spooled for. Raises ``InvalidQueueName``."""
    queue = QueueName(name)
    if queue.startswith(RESERVED_PREFIX):
        raise InvalidQueueName(f"names that begin with {RESERVED_PREFIX!r} are those of no queue")
    return queue


class Terms(NamedTuple):
    """When tasks of one request are due: counted from when the first of them was spooled."""

    delay_ms: int | None
    ttl_ms: int | None
    timestamp: int | None  # None if nothing is counted from it

    def left(self, now_ns: int) -> tuple[int | None, int | None]:
        """Return what is left of delay and ttl; at least 1 ms of ttl, so that the same tasks are sent again."""
        passed = 0 if self.timestamp is None else max(0, now_ns - self.timestamp) // _MS
        delay, ttl = self.delay_ms, self.ttl_ms
        delay_left = None if delay is None or delay <= passed else delay - passed
        return delay_left, None if ttl is None else max(1, ttl - passed)


_NO_TERMS: Final = Terms(None, None, None)


@dataclass(slots=True)
class Parcel:
    """Tasks of one queue that go together: one request."""

    queue: QueueName
    terms: Terms
    number: int  # the request's, among those of its producer
    places: list[int] = field(default_factory=list)  # in the round
    keys: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    size: int = 0  # of the payloads

    def __len__(self) -> int:
        return len(self.places)

    def takes(self, task: SpooledTask, timestamp: int) -> bool:
        """Return whether a task may be added."""
        terms = self.terms
        return (
            (task.delay_ms, task.ttl_ms) == (terms.delay_ms, terms.ttl_ms)
            and (terms.timestamp is None or 0 <= timestamp - terms.timestamp <= GRAIN_NS)
            and len(self.places) < BATCH_COUNT_MAX
            and self.size + len(task.payload) <= BATCH_SIZE_MAX
        )

    def add(self, place: int, task: SpooledTask) -> None:
        self.places.append(place)
        self.keys.append(task.key)
        self.payloads.append(task.payload)
        self.size += len(task.payload)

    def request(self, producer: bytes, *, now_ns: int) -> Enqueue:
        """Return what is sent. Only delay and ttl depend on the time, and a node that has it does not look at them."""
        delay_ms, ttl_ms = self.terms.left(now_ns)
        number = Producer(producer, self.number)
        return Enqueue(self.queue, self.keys, self.payloads, delay_ms, ttl_ms, number)

    def singles(self) -> Iterator[Parcel]:
        """Yield a parcel for each task, numbered by its place."""
        base = self.number - self.places[0]
        for place, key, payload in zip(self.places, self.keys, self.payloads, strict=True):
            yield Parcel(
                self.queue, self.terms, base + place, [place], [key], [payload], len(payload)
            )


class Round:
    """A round that is being put together."""

    def __init__(self, start: Position) -> None:
        """Begin at ``start``. Raises ``InvalidValue`` for a place that no number can name."""
        if start.segment > SEGMENT_MAX or start.index > INDEX_MAX - 2 * ROUND_COUNT_MAX:
            raise InvalidValue(
                f"segment {start.segment}, frame {start.index}: no numbers are left for its tasks; begin a new spool"
            )
        self._first = start.segment << 32 | start.index
        self.count = 0
        self.size = 0
        self.parcels: list[Parcel] = []
        self.unsendable: dict[int, str] = {}  # why, by place
        self._open: dict[str, Parcel] = {}  # the last parcel of each queue
        self._waves: list[list[Parcel]] = []
        self._depths: dict[str, int] = {}  # how many parcels a queue has

    @property
    def is_full(self) -> bool:
        return (
            self.count >= ROUND_COUNT_MAX
            or self.size >= ROUND_SIZE_MAX
            or len(self.parcels) >= REQUESTS_MAX
        )

    def waves(self) -> list[list[Parcel]]:
        """Return the parcels by turns: each holds at most one of a queue, and follows what stands before it."""
        return [list(wave) for wave in self._waves]

    def add(self, tasks: Sequence[Outgoing]) -> None:
        """Add what stands behind the last."""
        for task, timestamp in tasks:
            place = self.count
            self.count += 1
            self.size += len(task.payload)
            parcel = self._open.get(task.queue)
            if parcel is None or not parcel.takes(task, timestamp):
                reason = why_unsendable(task)
                if reason is not None:
                    self.unsendable[place] = reason
                    continue
                parcel = self._begin(task, timestamp, place)
            parcel.add(place, task)

    def _begin(self, task: SpooledTask, timestamp: int, place: int) -> Parcel:
        is_timed = task.delay_ms is not None or task.ttl_ms is not None
        terms = Terms(task.delay_ms, task.ttl_ms, timestamp) if is_timed else _NO_TERMS
        parcel = Parcel(QueueName(task.queue), terms, self._first + place)
        self.parcels.append(parcel)
        self._open[task.queue] = parcel
        depth = self._depths.get(task.queue, 0)
        self._depths[task.queue] = depth + 1
        if depth == len(self._waves):
            self._waves.append([])
        self._waves[depth].append(parcel)
        return parcel


def why_unsendable(task: SpooledTask) -> str | None:
    """Return why no node could ever take a task, ``None`` if one could."""
    try:
        checked_target(task.queue)
    except InvalidQueueName as error:
        return str(error)
    if len(task.payload) > PAYLOAD_SIZE_MAX:
        return f"a payload of {len(task.payload)} bytes is above {PAYLOAD_SIZE_MAX}"
    if max(task.delay_ms or 0, task.ttl_ms or 0) > MILLISECONDS_MAX:
        return f"a delay or ttl is above {MILLISECONDS_MAX} ms"
    return None
