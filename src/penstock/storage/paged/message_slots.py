"""Which messages a store holds: a slot for each, found by id, in arrays without an object a message.

A slot is a small number that stays with a message as long as somebody refers to it, wherever merges
move it; whoever refers to a message keeps the slot. A slot takes 32 bytes, and a place in the table
that finds ids 8 to 16. Nothing of this is stored: a start makes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.formats.kernel import compiled

Numbers = NDArray[np.int64]

NO_SLOT: Final = -1
_ROOM_FIRST: Final = 1024
_NONE: Final = -1  # in the table: nothing here; in the list of free slots: its end
_LOAD_MAX: Final = 0.6  # of the table; beyond it, looking for an id takes long


def id_columns(ids: Sequence[bytes]) -> Numbers:
    """Return ids of 16 bytes as two integers each."""
    return np.frombuffer(b"".join(ids), dtype=np.int64).reshape(-1, 2)


class MessageSlots:
    """The slots of one store."""

    def __init__(self) -> None:
        self.file = np.empty(0, dtype=np.int32)  # the number of the store file
        self.offset = np.empty(
            0, dtype=np.uint32
        )  # where its record begins; of a free slot: the next
        self.length = np.empty(0, dtype=np.uint32)  # of the message
        self._count = np.empty(0, dtype=np.uint32)  # who refers to it; 0 if the slot is free
        self._ids = np.empty((0, 2), dtype=np.int64)
        self._table = np.full(2 * _ROOM_FIRST, _NONE, dtype=np.int32)
        # Slots in use, and the first of the free ones that are chained by ``offset``.
        self._state = np.array([0, _NONE], dtype=np.int64)

    def __len__(self) -> int:
        """Return how many messages there are."""
        return int(self._state[0])

    @property
    def memory_size(self) -> int:
        columns = (self.file, self.offset, self.length, self._count, self._ids, self._table)
        return sum(column.nbytes for column in columns)

    def claim(self, ids: Numbers, *, counted: bool) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return a slot for each id, and whether it is new; ``counted``: somebody refers to each.

        What is new must be given its place by the caller at once.
        """
        self._make_room(len(ids))
        slots = np.empty(len(ids), dtype=np.int64)
        is_new = np.zeros(len(ids), dtype=np.bool_)
        compiled(_claim_kernel)(
            self._table, self._ids, self._count, self.offset, self._state, ids,
            1 if counted else 0, slots, is_new,
        )  # fmt: skip
        return slots, is_new

    def find(self, ids: Numbers) -> Numbers:
        """Return the slot of each id, ``NO_SLOT`` where there is none."""
        slots = np.empty(len(ids), dtype=np.int64)
        compiled(_find_kernel)(self._table, self._ids, ids, slots)
        return slots

    def refer(self, slots: Numbers) -> None:
        """Count one more reference for each."""
        np.add.at(self._count, slots, np.uint32(1))

    def release(self, slots: Numbers) -> Numbers:
        """Count one reference less for each, and return those that nobody refers to any more.

        Their places can be read until the next ``claim``.
        """
        is_gone = np.zeros(len(slots), dtype=np.bool_)
        self._free(slots, is_gone, 1)
        return slots[is_gone]

    def release_unreferred(self) -> None:
        """Let all slots go that nobody referred to since they were claimed."""
        in_use = np.zeros(len(self._count), dtype=np.bool_)
        in_use[self._table[self._table != _NONE]] = True
        slots = np.flatnonzero(in_use & (self._count == 0))
        self._free(slots, np.zeros(len(slots), dtype=np.bool_), 0)

    def _free(self, slots: Numbers, is_gone: NDArray[np.bool_], decrement: int) -> None:
        compiled(_release_kernel)(
            self._table, self._ids, self._count, self.offset, self._state, slots, decrement, is_gone
        )

    def in_files(self, numbers: Sequence[int]) -> Numbers:
        """Return the slots whose messages are in these files, by file and offset."""
        slots = np.flatnonzero(np.isin(self.file, numbers) & (self._count > 0))
        return slots[np.lexsort((self.offset[slots], self.file[slots]))]

    def extents(self) -> dict[int, tuple[int, int, int]]:
        """Return of each file how many messages it has, their bytes, and where the last one's record ends.

        The end is short by what a record has besides its message.
        """
        used = self._count > 0
        numbers, inverse = np.unique(self.file[used], return_inverse=True)
        lengths = self.length[used].astype(np.int64)
        sizes = np.zeros(len(numbers), dtype=np.int64)
        ends = np.zeros(len(numbers), dtype=np.int64)
        np.add.at(sizes, inverse, lengths)
        np.maximum.at(ends, inverse, self.offset[used] + lengths)
        columns = (numbers, np.bincount(inverse), sizes, ends)
        return {
            number: (count, size, end)
            for number, count, size, end in zip(*(c.tolist() for c in columns), strict=True)
        }

    def _make_room(self, count: int) -> None:
        used = len(self) + count
        if used > len(self._count):
            self._grow(max(used, len(self._count) * 3 // 2, _ROOM_FIRST))
        if used > len(self._table) * _LOAD_MAX:
            size = len(self._table)
            while used > size * _LOAD_MAX:
                size *= 2
            slots = self._table[self._table != _NONE]
            self._table = np.full(size, _NONE, dtype=np.int32)
            compiled(_rehash_kernel)(self._table, self._ids, slots)

    def _grow(self, room: int) -> None:
        old = len(self._count)
        self.file = np.resize(self.file, room) if old else np.zeros(room, dtype=np.int32)
        self.length = np.resize(self.length, room) if old else np.zeros(room, dtype=np.uint32)
        self._ids = np.resize(self._ids, (room, 2)) if old else np.zeros((room, 2), dtype=np.int64)
        count, offset = self._count, self.offset
        self._count = np.zeros(room, dtype=np.uint32)
        self._count[:old] = count
        # The new slots become the head of the chain; its last one links to what was free before.
        self.offset = np.arange(1, room + 1, dtype=np.uint32)
        self.offset[:old] = offset
        self.offset[room - 1] = np.uint32(int(self._state[1]) & 0xFFFFFFFF)
        self._state[1] = old


# --- kernels -------------------------------------------------------------------------------------
#
# Open addressing with linear probing; a removal moves those behind it up. Ids may be counters whose
# bytes differ anywhere, so high bits are mixed into low ones. The end of the chain of free slots is -1, which 32 bits hold as 2**32 - 1.


def _home(first: Any, second: Any, mask: Any) -> Any:
    """Return where the search for an id begins."""
    mixed = first * 0x1E3779B97F4A7C15 + second
    mixed = (mixed ^ (mixed >> 32)) * 0x3F58476D1CE4E5B9
    return (mixed ^ (mixed >> 32)) & mask


def _search(table: Any, ids: Any, first: Any, second: Any) -> Any:
    """Return the place of an id in the table, or the empty one where it belongs."""
    mask = len(table) - 1
    at = _home(first, second, mask)
    while table[at] >= 0 and (ids[table[at], 0] != first or ids[table[at], 1] != second):
        at = (at + 1) & mask
    return at


def _find_kernel(table: Any, ids: Any, wanted: Any, slots: Any) -> None:
    for i in range(len(wanted)):
        slots[i] = table[_search(table, ids, wanted[i, 0], wanted[i, 1])]


def _claim_kernel(
    table: Any, ids: Any, count: Any, chain: Any, state: Any, wanted: Any, increment: Any,
    slots: Any, is_new: Any,
) -> None:  # fmt: skip
    for i in range(len(wanted)):
        at = _search(table, ids, wanted[i, 0], wanted[i, 1])
        slot = table[at] * 1
        if slot < 0:
            slot = state[1]
            following = chain[slot]
            state[1] = -1 if following == 0xFFFFFFFF else following
            state[0] += 1
            table[at] = slot
            ids[slot, 0] = wanted[i, 0]
            ids[slot, 1] = wanted[i, 1]
            count[slot] = 0
            is_new[i] = True
        count[slot] += increment
        slots[i] = slot


def _release_kernel(
    table: Any, ids: Any, count: Any, chain: Any, state: Any, slots: Any, decrement: Any,
    is_gone: Any,
) -> None:  # fmt: skip
    for i in range(len(slots)):
        slot = slots[i]
        count[slot] -= decrement
        if count[slot] == 0:
            is_gone[i] = True
            _remove(table, ids, _search(table, ids, ids[slot, 0], ids[slot, 1]))
            chain[slot] = 0xFFFFFFFF if state[1] < 0 else state[1]
            state[1] = slot
            state[0] -= 1


def _remove(table: Any, ids: Any, hole: Any) -> None:
    """Empty a place of the table; those behind it move up."""
    mask = len(table) - 1
    at = (hole + 1) & mask
    while table[at] >= 0:
        other = table[at]
        home = _home(ids[other, 0], ids[other, 1], mask)
        # It may move up unless its home lies behind the hole, cyclically.
        if ((at - home) & mask) >= ((at - hole) & mask):
            table[hole] = other
            hole = at
        at = (at + 1) & mask
    table[hole] = -1


def _rehash_kernel(table: Any, ids: Any, slots: Any) -> None:
    for i in range(len(slots)):
        table[_search(table, ids, ids[slots[i], 0], ids[slots[i], 1])] = slots[i]
