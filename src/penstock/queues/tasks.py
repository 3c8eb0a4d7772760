"""The tasks of one queue by id: compact, because a million of them must fit beside everything else.

Ids are given in growing order, so tasks sit in chunks of consecutive ids, keys as plain numbers and
payloads as they came; a full chunk of small ones holds them as one piece, because an object each would take
a third more. A chunk is dropped with its last task.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, cast

from penstock.errors import ReplayConflict

_BITS: Final = 6
CHUNK: Final = 1 << _BITS
"""Ids in a chunk: a lone survivor holds one chunk, so a large one would waste memory on them."""
_MASK: Final = CHUNK - 1


SEAL_SIZE_MAX: Final = 16 * 2**10
"""Payload bytes up to which a full chunk is sealed: small ones cost more as objects than as bytes."""

_SEALED_LIVE_MIN: Final = CHUNK // 4
"""Tasks below which a sealed chunk is opened again, so that what is gone is not kept for what is left."""


def _places(start: int, stop: int) -> int:
    """Return a number with the bits of some slots set."""
    return (1 << stop) - (1 << start)


class _Chunk:
    """Tasks of consecutive ids. A sealed one holds its payloads as one piece."""

    __slots__ = ("_blob", "_bounds", "_gone", "keys", "live", "open")

    def __init__(self) -> None:
        self.keys = array("q")
        self.live = 0
        # None for a task that is gone; no list at all once the chunk is sealed.
        self.open: list[bytes | None] | None = []
        self._blob = b""
        self._bounds: Sequence[int] = ()  # where each payload begins in the blob, and its end
        self._gone = 0  # a bit for each task that is gone

    def payload(self, slot: int) -> bytes | None:
        """Return a payload, ``None`` if the task is gone or was never there."""
        if self.open is not None:
            return self.open[slot] if slot < len(self.open) else None
        if self._gone >> slot & 1:
            return None
        return self._blob[self._bounds[slot] : self._bounds[slot + 1]]

    def payloads(self, start: int = 0, stop: int = CHUNK) -> list[bytes | None]:
        """Return the payloads of some slots in order, as far as there are tasks."""
        if self.open is not None:
            return self.open[start:stop]
        if self._gone & _places(start, stop):
            return [self.payload(slot) for slot in range(start, stop)]
        blob, bounds = self._blob, self._bounds[start : stop + 1]
        return [blob[begin:end] for begin, end in pairwise(bounds)]

    def drop(self, slot: int) -> None:
        """Forget the payload of a task that is there."""
        self.live -= 1
        if self.open is not None:
            self.open[slot] = None
        elif self.live < _SEALED_LIVE_MIN:
            self._gone |= 1 << slot
            self._unseal()
        else:
            self._gone |= 1 << slot

    def drop_run(self, start: int, stop: int) -> int | None:
        """Forget the payloads of some slots and return their size; do nothing if one of them is gone."""
        count = stop - start
        if self.open is None:
            places = _places(start, stop)
            if self._gone & places:
                return None
            size = self._bounds[stop] - self._bounds[start]
            self.live -= count
            self._gone |= places
            if self.live < _SEALED_LIVE_MIN:
                self._unseal()
            return size
        found = self.open[start:stop]
        if len(found) != count or None in found:
            return None
        self.live -= count
        self.open[start:stop] = [None] * count
        return sum(map(len, cast("list[bytes]", found)))

    def _unseal(self) -> None:
        """Hold what is left as an object each."""
        left: list[bytes | None] = [None] * CHUNK
        places = _places(0, CHUNK) & ~self._gone
        while places:
            slot = places.bit_length() - 1
            left[slot] = self._blob[self._bounds[slot] : self._bounds[slot + 1]]
            places ^= 1 << slot
        self.open = left
        self._blob, self._bounds, self._gone = b"", (), 0

    def seal(self) -> None:
        """Hold the payloads as one piece, if the chunk is full, whole and small."""
        if self.open is None or self.live != CHUNK:
            return
        payloads = cast("list[bytes]", self.open)  # a chunk with all of its tasks has no gap
        kinds = set(map(len, payloads))
        if len(kinds) == 1 and (size := kinds.pop()) * CHUNK <= SEAL_SIZE_MAX:
            # Payloads of one size need no list of places. A step of 0 is none, so that one is a list.
            self._bounds = range(0, CHUNK * size + 1, size) if size else bytes(CHUNK + 1)
        elif kinds and sum(map(len, payloads)) <= SEAL_SIZE_MAX:
            self._bounds = array("H", accumulate(map(len, payloads), initial=0))
        else:
            return
        self._blob = b"".join(payloads)
        self.open = None


class Tasks:
    """Tasks by id. The id of a task, given when it is added, is its place among equals for ever."""

    __slots__ = ("_chunks", "_graves", "count", "last_id", "size")

    def __init__(self, last_id: int = 0) -> None:
        self.last_id = last_id
        self.count = 0
        self.size = 0  # bytes of payload
        self._chunks: dict[int, _Chunk] = {}
        self._graves: _Walk | None = None  # a walk under way that still wants what is removed

    def add(self, keys: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Add tasks behind all others and return the first one's id; the rest follow without a gap."""
        first = self.last_id + 1
        done, count = 0, len(payloads)
        while done < count:
            chunk = self._chunk_for(first + done)
            assert chunk.open is not None, "a chunk with room is open"
            part = min(count - done, CHUNK - len(chunk.open))
            if part == count:
                chunk.keys.extend(keys)
                chunk.open.extend(payloads)
            else:
                chunk.keys.extend(keys[done : done + part])
                chunk.open.extend(payloads[done : done + part])
            chunk.live += part
            done += part
            if chunk.live == CHUNK:
                chunk.seal()
        self.last_id += count
        self.count += count
        self.size += sum(map(len, payloads))
        return first

    def _chunk_for(self, task_id: int) -> _Chunk:
        """Return the chunk of an id, filled with tasks that are gone up to the place before it."""
        number = task_id >> _BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = _Chunk()
        missing = (task_id & _MASK) - len(chunk.keys)
        if missing > 0 and chunk.open is not None:
            chunk.keys.extend([0] * missing)
            chunk.open.extend([None] * missing)
        return chunk

    def restore(self, task_id: int, key: int, payload: bytes) -> None:
        """Put a task in under the id it had. Raises ``ReplayConflict`` if the id is taken."""
        chunk = self._chunk_for(task_id)
        slot = task_id & _MASK
        if chunk.payload(slot) is not None:
            raise ReplayConflict(f"task {task_id} stands twice in its queue")
        assert chunk.open is not None, "a sealed chunk has no free place but for what was removed"
        if slot == len(chunk.open):
            chunk.keys.append(key)
            chunk.open.append(payload)
        else:
            chunk.keys[slot] = key
            chunk.open[slot] = payload
        chunk.live += 1
        self.count += 1
        self.size += len(payload)
        if chunk.live == CHUNK:
            chunk.seal()

    def get(self, task_id: int) -> tuple[int, bytes] | None:
        """Return key and payload of a task, or ``None`` if it is not there."""
        chunk = self._chunks.get(task_id >> _BITS)
        if chunk is None:
            return None
        slot = task_id & _MASK
        payload = chunk.payload(slot)
        return None if payload is None else (chunk.keys[slot], payload)

    def key(self, task_id: int) -> int | None:
        """Return the key of a task, or ``None`` if it is not there."""
        task = self.get(task_id)
        return None if task is None else task[0]

    def payloads(self, ids: Sequence[int]) -> list[bytes | None]:
        """Return the payloads of listed tasks, ``None`` for one that is gone."""
        found: list[bytes | None] = []
        if _is_run(ids):
            for number, start, stop in _parts(ids[0], ids[-1]):
                part = self._chunks.get(number)
                payloads = [] if part is None else part.payloads(start, stop)
                found += payloads + [None] * (stop - start - len(payloads))
            return found
        chunks, last = self._chunks, -1
        chunk: _Chunk | None = None
        for task_id in ids:
            number = task_id >> _BITS
            if number != last:
                chunk, last = chunks.get(number), number
            found.append(None if chunk is None else chunk.payload(task_id & _MASK))
        return found

    def remove_many(self, ids: Sequence[int]) -> None:
        """Take tasks out. Raises ``ReplayConflict`` if one is not there."""
        if self._graves is not None:
            for task_id in ids:
                self._remove_known(task_id)
            return
        if _is_run(ids):
            self._remove_run(ids[0], ids[-1])
            return
        chunks, last, size = self._chunks, -1, 0
        chunk: _Chunk | None = None
        for task_id in ids:
            number, slot = task_id >> _BITS, task_id & _MASK
            if number != last:
                chunk, last = chunks.get(number), number
            payload = None if chunk is None else chunk.payload(slot)
            if chunk is None or payload is None:
                raise ReplayConflict(f"task {task_id} is removed but is not there")
            chunk.drop(slot)
            if not chunk.live:
                del chunks[number]
                last = -1
            size += len(payload)
        self.count -= len(ids)
        self.size -= size

    def _remove_run(self, first: int, last: int) -> None:
        for number, start, stop in _parts(first, last):
            chunk = self._chunks.get(number)
            size = None if chunk is None else chunk.drop_run(start, stop)
            if chunk is None or size is None:
                ids = range((number << _BITS) + start, (number << _BITS) + stop)
                raise ReplayConflict(f"a task of {ids[0]} to {ids[-1]} is removed but is not there")
            if not chunk.live:
                del self._chunks[number]
            self.count -= stop - start
            self.size -= size

    def _remove_known(self, task_id: int) -> None:
        if self.remove(task_id) is None:
            raise ReplayConflict(f"task {task_id} is removed but is not there")

    def remove(self, task_id: int) -> tuple[int, bytes] | None:
        """Take a task out and return its key and payload, or ``None`` if it is not there."""
        number, slot = task_id >> _BITS, task_id & _MASK
        chunk = self._chunks.get(number)
        payload = None if chunk is None else chunk.payload(slot)
        if chunk is None or payload is None:
            return None
        key = chunk.keys[slot]
        if self._graves is not None:
            self._graves.bury(task_id, key, payload)
        chunk.drop(slot)
        if chunk.live == 0:
            del self._chunks[number]
        self.count -= 1
        self.size -= len(payload)
        return key, payload

    def discard(self, task_id: int) -> bool:
        """Take a task out, if it is there, and return whether it was."""
        return self.remove(task_id) is not None

    def by_key(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield a key and ids that have it, in growing order, until all are told."""
        for task_id, key, _ in self:
            yield key, (task_id,)

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of ids."""
        for number in sorted(self._chunks):
            yield from self._of_chunk(number)

    def _of_chunk(self, number: int) -> list[tuple[int, int, bytes]]:
        chunk = self._chunks.get(number)
        if chunk is None:
            return []
        base = number << _BITS
        return [
            (base + slot, key, payload)
            for slot, (key, payload) in enumerate(zip(chunk.keys, chunk.payloads(), strict=True))
            if payload is not None
        ]

    def walk(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) as of now, in the order of ids, while changes go on in between.

        One walk at a time; until ``end_walk`` tasks that are removed before it comes by are kept for it.
        """
        assert self._graves is None, "one walk at a time"
        walk = self._graves = _Walk(self.last_id)
        return self._walk(walk, sorted(self._chunks))

    def _walk(self, walk: _Walk, numbers: list[int]) -> Iterator[tuple[int, int, bytes]]:
        for number in numbers:
            tasks = [task for task in self._of_chunk(number) if task[0] <= walk.last_id]
            buried = walk.exhume(number)
            if buried:
                tasks = sorted(tasks + buried)
            yield from tasks

    def end_walk(self) -> None:
        """Keep nothing for a walk any more, whether it came to its end or not."""
        self._graves = None


def _is_run(ids: Sequence[int]) -> bool:
    """Whether ids follow each other without a gap, as those of a batch mostly do."""
    return len(ids) > 1 and tuple(ids) == tuple(range(ids[0], ids[0] + len(ids)))


def _parts(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each chunk that holds ids from ``first`` to ``last``, and from which slot to which."""
    for number in range(first >> _BITS, (last >> _BITS) + 1):
        base = number << _BITS
        yield number, max(first - base, 0), min(last - base + 1, CHUNK)


class _Walk:
    """What a walk needs of tasks that are removed before it comes by."""

    __slots__ = ("_buried", "last_id", "passed")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        self.passed = -1  # the last chunk that the walk has taken
        self._buried: dict[int, list[tuple[int, int, bytes]]] = {}

    def bury(self, task_id: int, key: int, payload: bytes) -> None:
        number = task_id >> _BITS
        if number > self.passed and task_id <= self.last_id:
            self._buried.setdefault(number, []).append((task_id, key, payload))

    def exhume(self, number: int) -> list[tuple[int, int, bytes]]:
        self.passed = number
        return self._buried.pop(number, [])
