"""The order of delivery: smallest key first, and within a key by id, first in first out.

Distinct keys are kept in a heap or an array, each with a FIFO of ids. An id may be listed that is not to
be delivered any more (its task was removed, or is delayed); the caller skips it, and rebuilds the order
when such ids pile up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from penstock.model import Implementation, Policy

ARRAY_SPAN_MAX: Final = 4096
"""A wider range of keys is kept as a heap: an array would take memory and time for keys never used."""

_TRIM: Final = 1024  # FIFO places already served that are kept before they are given back


class _Fifo:
    """Ids of one key, smallest first. Most come in growing order; those that come back go to a heap."""

    __slots__ = ("_back", "_head", "_ids")

    def __init__(self) -> None:
        self._ids = array("Q")
        self._head = 0
        self._back: list[int] = []

    def __len__(self) -> int:
        return len(self._ids) - self._head + len(self._back)

    def push(self, task_id: int) -> None:
        ids = self._ids
        if len(ids) > self._head and task_id < ids[-1]:
            heappush(self._back, task_id)
        else:
            ids.append(task_id)

    def extend(self, ids: Iterable[int]) -> None:
        """Add ids that are larger than all before, in growing order."""
        self._ids.extend(ids)

    def pop(self) -> int:
        back, head = self._back, self._head
        if back and (head == len(self._ids) or back[0] < self._ids[head]):
            return heappop(back)
        task_id = self._ids[head]
        self._head = head = head + 1
        if head >= _TRIM and head * 2 >= len(self._ids):
            del self._ids[:head]
            self._head = 0
        return task_id

    def pop_run(self, count_max: int) -> list[int]:
        """Take off up to ``count_max`` ids; at least one, unless it is empty."""
        if self._back:
            return [self.pop()]
        start = self._head
        run = self._ids[start : start + count_max].tolist()
        self._head = head = start + len(run)
        if head >= _TRIM and head * 2 >= len(self._ids):
            del self._ids[:head]
            self._head = 0
        return run

    def ids(self) -> list[int]:
        return sorted([*self._back, *self._ids[self._head :]])


class _Keys(Protocol):
    """The keys in use; finds the smallest."""

    def add(self, key: int) -> None: ...

    def lowest(self) -> int: ...

    def drop_lowest(self) -> None: ...


class _HeapKeys:
    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, key: int) -> None:
        heappush(self._heap, key)

    def lowest(self) -> int:
        return self._heap[0]

    def drop_lowest(self) -> None:
        heappop(self._heap)


class _ArrayKeys:
    """One bit a key: the smallest is found by the machine, whatever the number of keys in use."""

    __slots__ = ("_base", "_bits")

    def __init__(self, base: int) -> None:
        self._base = base
        self._bits = 0

    def add(self, key: int) -> None:
        self._bits |= 1 << (key - self._base)

    def lowest(self) -> int:
        return self._base + (self._bits & -self._bits).bit_length() - 1

    def drop_lowest(self) -> None:
        self._bits &= self._bits - 1


def _keys_for(policy: Policy) -> _Keys:
    keys = policy.keys
    if (
        policy.implementation is Implementation.ARRAY
        and keys is not None
        and keys.highest - keys.lowest < ARRAY_SPAN_MAX
    ):
        return _ArrayKeys(keys.lowest)
    return _HeapKeys()


class Order:
    """Which task is next."""

    __slots__ = ("_fifos", "_keys", "_policy", "count")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.clear()

    def clear(self) -> None:
        self._fifos: dict[int, _Fifo] = {}
        self._keys = _keys_for(self._policy)
        self.count = 0  # ids listed, those to be skipped counted

    def push(self, key: int, task_id: int) -> None:
        self._fifo(key).push(task_id)
        self.count += 1

    def extend(self, key: int, ids: Sequence[int]) -> None:
        """List ids of one key, in growing order, that are larger than all listed before."""
        if ids:
            self._fifo(key).extend(ids)
            self.count += len(ids)

    def _fifo(self, key: int) -> _Fifo:
        fifo = self._fifos.get(key)
        if fifo is None:
            keys = self._policy.keys
            if isinstance(self._keys, _ArrayKeys) and not (
                keys is not None and keys.lowest <= key <= keys.highest
            ):
                self._use_heap()  # a log from elsewhere may hold a key that the policy forbids
            fifo = self._fifos[key] = _Fifo()
            self._keys.add(key)
        return fifo

    def _use_heap(self) -> None:
        heap = _HeapKeys()
        for key in self._fifos:
            heap.add(key)
        self._keys = heap

    def pop(self) -> int | None:
        """Take the next id off the list, or return ``None`` if nothing is listed."""
        if not self.count:
            return None
        key = self._keys.lowest()
        fifo = self._fifos[key]
        task_id = fifo.pop()
        self.count -= 1
        if not len(fifo):
            del self._fifos[key]
            self._keys.drop_lowest()
        return task_id

    def pop_run(self, count_max: int) -> tuple[int, list[int]]:
        """Take the next ids of one key off the list; return the key and at most ``count_max`` of them."""
        if not self.count:
            return 0, []
        key = self._keys.lowest()
        fifo = self._fifos[key]
        run = fifo.pop_run(count_max)
        self.count -= len(run)
        if not len(fifo):
            del self._fifos[key]
            self._keys.drop_lowest()
        return key, run

    def in_order(self) -> list[int]:
        """Return all listed ids in the order of delivery."""
        return [task_id for key in sorted(self._fifos) for task_id in self._fifos[key].ids()]
