"""The tasks of a queue that is larger than memory: keys and sizes stay here, payloads are on pages.

Order is the same as in every other queue: ids are given in growing order, and what is delivered next is decided
by key and id, in memory. A page is only asked for when a payload is delivered. What pages are is
storage's business; here they are an interface.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import Final, Protocol

from penstock.errors import ReplayConflict

_BITS: Final = 12
CHUNK: Final = 1 << _BITS
"""Ids in a chunk. A lone survivor holds one, at 13 bytes a place."""
_MASK: Final = CHUNK - 1

READ_MAX: Final = 256
"""Payloads that a walk over all tasks reads at a time."""


class Pages(Protocol):
    """Where the payloads of one queue are. Ids are the queue's own."""

    def add(self, first: int, keys: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Store consecutive tasks behind all others."""
        ...

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """Return payloads of tasks that are there. Raises ``BadData`` if one is not what was stored."""
        ...

    def remove(self, ids: Sequence[int]) -> None:
        """Forget tasks that are there."""
        ...

    def stored(self) -> Iterable[tuple[int, array[int], array[int]]]:
        """Yield the tasks that are there, in the order of ids, as runs of consecutive ones.

        The first one's id, the keys (``q``), and the sizes of the payloads (``I``).
        """
        ...


class _Chunk:
    """What is known of consecutive ids."""

    __slots__ = ("is_there", "keys", "live", "sizes")

    def __init__(self) -> None:
        self.keys = array("q", bytes(8 * CHUNK))
        self.sizes = array("I", bytes(4 * CHUNK))
        self.is_there = bytearray(CHUNK)
        self.live = 0


class PagedTasks:
    """Tasks by id, with the same face as ``Tasks``."""

    __slots__ = ("_chunks", "_pages", "count", "last_id", "size")

    def __init__(self, pages: Pages, last_id: int = 0) -> None:
        """Take over what the pages hold; ``last_id`` is the last id that was ever given."""
        self._pages = pages
        self._chunks: dict[int, _Chunk] = {}
        self.last_id = last_id
        self.count = 0
        self.size = 0  # bytes of payload
        for first, keys, sizes in pages.stored():
            self._note(first, keys, sizes)
            if first + len(keys) - 1 > last_id:
                raise ReplayConflict(
                    f"task {first + len(keys) - 1} is on the pages, and only {last_id} were added"
                )

    def _note(self, first: int, keys: array[int], sizes: array[int]) -> None:
        done, count = 0, len(keys)
        while done < count:
            number, slot = (first + done) >> _BITS, (first + done) & _MASK
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = _Chunk()
            part = min(count - done, CHUNK - slot)
            chunk.keys[slot : slot + part] = keys[done : done + part]
            chunk.sizes[slot : slot + part] = sizes[done : done + part]
            chunk.is_there[slot : slot + part] = b"\1" * part
            chunk.live += part
            done += part
        self.count += count
        self.size += count * sizes[0] if _are_alike(sizes) else sum(sizes)

    def add(self, keys: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Add tasks behind all others and return the first one's id; the rest follow without a gap."""
        first = self.last_id + 1
        if payloads:
            self._pages.add(first, keys, payloads)
            self._note(first, array("q", keys), array("I", map(len, payloads)))
            self.last_id += len(keys)
        return first

    def restore(self, task_id: int, key: int, payload: bytes) -> None:
        """Refuse: the tasks of a paged queue are on its pages, never in a snapshot."""
        del key, payload
        raise ReplayConflict(f"task {task_id} of a paged queue stands in the snapshot")

    def key(self, task_id: int) -> int | None:
        """Return the key of a task, or ``None`` if it is not there."""
        chunk, slot = self._chunks.get(task_id >> _BITS), task_id & _MASK
        return None if chunk is None or not chunk.is_there[slot] else chunk.keys[slot]

    def get(self, task_id: int) -> tuple[int, bytes] | None:
        """Return key and payload of a task, or ``None`` if it is not there."""
        key = self.key(task_id)
        return None if key is None else (key, self._pages.read([task_id])[0])

    def payloads(self, ids: Sequence[int]) -> list[bytes | None]:
        """Return the payloads of listed tasks, ``None`` for one that is gone."""
        there = [task_id for task_id in ids if self.key(task_id) is not None]
        read = self._pages.read(there) if there else []
        if len(there) == len(ids):
            return list(read)
        found = dict(zip(there, read, strict=True))
        return [found.get(task_id) for task_id in ids]

    def remove_many(self, ids: Sequence[int]) -> None:
        """Take tasks out. Raises ``ReplayConflict`` if one is not there."""
        for task_id in ids:
            if not self._drop(task_id):
                raise ReplayConflict(f"task {task_id} is removed but is not there")
        self._pages.remove(ids)

    def _drop(self, task_id: int) -> bool:
        number, slot = task_id >> _BITS, task_id & _MASK
        chunk = self._chunks.get(number)
        if chunk is None or not chunk.is_there[slot]:
            return False
        chunk.is_there[slot] = 0
        chunk.live -= 1
        self.count -= 1
        self.size -= chunk.sizes[slot]
        if not chunk.live and number != self.last_id >> _BITS:
            del self._chunks[number]
        return True

    def discard(self, task_id: int) -> bool:
        """Take a task out, if it is there, and return whether it was."""
        is_there = self._drop(task_id)
        if is_there:
            self._pages.remove([task_id])
        return is_there

    def by_key(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield a key and ids that have it, many at a time, until all are told; those of a key in growing order."""
        for number in sorted(self._chunks):
            chunk, base = self._chunks[number], number << _BITS
            if chunk.live == CHUNK and _are_alike(chunk.keys):
                yield chunk.keys[0], range(base, base + CHUNK)
                continue
            by_key: dict[int, list[int]] = {}
            for task_id, key in self._of_chunk(number):
                ids = by_key.get(key)
                if ids is None:
                    by_key[key] = [task_id]
                else:
                    ids.append(task_id)
            yield from by_key.items()

    def _of_chunk(self, number: int) -> Iterator[tuple[int, int]]:
        """Return ids and keys of a chunk, in the order of ids."""
        chunk, base = self._chunks[number], number << _BITS
        return compress(enumerate(chunk.keys, base), chunk.is_there)

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (id, key, payload) in the order of ids."""
        for number in sorted(self._chunks):
            listed = self._of_chunk(number)
            while some := list(islice(listed, READ_MAX)):
                ids = [task_id for task_id, _ in some]
                payloads = self._pages.read(ids)
                yield from ((*one, payload) for one, payload in zip(some, payloads, strict=True))

    def walk(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield nothing: a snapshot names a paged queue, and its pages keep what it holds."""
        return iter(())

    def end_walk(self) -> None:
        """Do nothing: a walk keeps nothing here."""


def _are_alike(numbers: array[int]) -> bool:
    """Return whether all are the same: a look at bytes, a hundred times faster than one at each number."""
    return numbers.tobytes() == numbers[:1].tobytes() * len(numbers)
