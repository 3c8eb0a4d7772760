"""The order of delivery of a queue: smallest key first, and within a key by id.

The order refers to ids, never to chunks, and is a hint: an id stays listed after its task is gone or has another key, until
a sweep drops it. A reader asks the chunk whether the task is there and has this key. That makes removal, compaction and
replay free of work here.

Keys are kept in blocks: an array of keys and a list of what is listed under each. A key that is one task costs 8 bytes for
the key, 8 for the reference and 32 for the id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import eq
from typing import Final, TypeAlias

from penstock.queues.columnar.runs import (
    Listed,
    Run,
    extended,
    first_of,
    inserted,
    listed_of,
    runs_after,
    runs_of,
)

BLOCK_MAX: Final = 512
"""Keys of a block, which is split in two beyond that: bounds the bytes that an insertion moves."""

BLOCK_MIN: Final = 128
"""A sweep joins neighbours that have fewer keys together."""

LOOK_COST: Final = 4
"""The cost of looking up one run, in tasks that are copied."""

SAMPLE: Final = 4096
"""Keys that are looked at to tell whether they are distinct. Either answer gives the same order."""

MANY: Final = 64
"""More new keys than this, and than half of those that are listed, are merged with them instead of inserted one by one."""

FLOAT_MAX: Final = 2**53
"""Integers up to this are floats without a loss."""

Keep: TypeAlias = "Callable[[int, Run], Run | None]"
"""Returns what is left of a run that is listed under a key, or None if nothing is."""


class Block:
    """Neighbouring keys, ascending, and what is listed under each."""

    __slots__ = ("keys", "listed")

    def __init__(self, keys: array[int], listed: list[Listed]) -> None:
        self.keys = keys
        self.listed = listed


class Order:
    """Runs of ids for each key."""

    __slots__ = ("_blocks", "_bounds", "key_count")

    def __init__(self) -> None:
        self.key_count = 0
        self._blocks: list[Block] = []
        self._bounds: list[
            int
        ] = []  # the first key of each block when it was made; a lower one joins the first block

    def append(self, key: int, ids: Sequence[int]) -> None:
        """List ascending ids that are above all ids of this key."""
        block, place = self._find(key)
        if place < len(block.keys) and block.keys[place] == key:
            block.listed[place] = extended(block.listed[place], ids)
        else:
            self._insert(block, place, key, listed_of(ids))

    def insert(self, key: int, task_id: int) -> None:
        """List one id at its place, unless it is listed there already."""
        block, place = self._find(key)
        if place < len(block.keys) and block.keys[place] == key:
            block.listed[place] = inserted(block.listed[place], task_id)
        else:
            self._insert(block, place, key, task_id)

    def extend(self, keys: list[int], ids: list[int]) -> None:
        """List many tasks: ascending ids above all that are listed, and the key of each."""
        if len(keys) > self.key_count // 2 + MANY and _are_distinct(keys):
            self._merge(*sorted_by_key(keys, ids))
            return
        groups: dict[int, list[int]] = {}
        for key, task_id in zip(keys, ids, strict=True):
            if key in groups:
                groups[key].append(task_id)
            else:
                groups[key] = [task_id]
        if len(groups) > self.key_count // 2 + MANY:
            self._merge(*sorted_by_key(list(groups), list(map(listed_of, groups.values()))))
            return
        for key, group in groups.items():
            self.append(key, group)

    def runs(self, after: tuple[int, int] | None = None) -> Iterator[tuple[int, Run]]:
        """Yield (key, run) in the order of delivery, from the beginning or behind a (key, id)."""
        index, place = 0, 0
        if after is not None and self._blocks:
            index = max(bisect_right(self._bounds, after[0]) - 1, 0)
            block = self._blocks[index]
            place = bisect_left(block.keys, after[0])
            if place < len(block.keys) and block.keys[place] == after[0]:
                for run in runs_after(block.listed[place], after[1]):
                    yield after[0], run
                place += 1
        while index < len(self._blocks):
            block = self._blocks[index]
            for key, listed in zip(block.keys[place:], block.listed[place:], strict=True):
                if isinstance(listed, list):
                    for run in listed:
                        yield key, run
                else:
                    yield key, listed
            index, place = index + 1, 0

    def trim(self, keep: Keep, budget: int) -> int:
        """Drop what is not there any more from the front, up to the first run that is; return the cost, 0 if nothing was."""
        cost = 0
        is_dropped = False
        while self._blocks and cost < budget:
            block = self._blocks[0]
            key, listed = block.keys[0], block.listed[0]
            first = runs_of(listed)[0]
            cost += _cost(first)
            run = keep(key, first)
            if run is not None:
                if isinstance(listed, list):
                    listed[0] = run
                else:
                    block.listed[0] = run
                break
            is_dropped = True
            if isinstance(listed, list) and len(listed) > 1:
                del listed[0]
            else:
                self._drop_first(block)
        return cost if is_dropped else 0

    def sweep(
        self, keep: Keep, position: tuple[int, int] | None, budget: int
    ) -> tuple[tuple[int, int] | None, int]:
        """Drop what is not there any more, from a (key, id) on. Return where to continue, None at the end, and the cost."""
        cost = 0
        index, place, first_id = self._position(position)
        while index < len(self._blocks):
            block = self._blocks[index]
            while place < len(block.keys):
                if cost >= budget:
                    return (block.keys[place], first_id), cost
                next_id, more = self._sweep_key(index, place, keep, first_id, budget - cost)
                cost += more
                if next_id is not None:
                    return (block.keys[place], next_id), cost
                first_id = 0
                if block.listed[place] == []:
                    del block.keys[place], block.listed[place]
                    self.key_count -= 1
                else:
                    place += 1
            place = 0
            if not block.keys:
                del self._blocks[index], self._bounds[index]
            elif not index or not self._join(index):
                index += 1
        return None, cost

    def _position(self, position: tuple[int, int] | None) -> tuple[int, int, int]:
        """Return block, place and first id to continue with. The key may be gone, then the next one is taken whole."""
        if position is None or not self._blocks:
            return 0, 0, 0
        key, first_id = position
        index = max(bisect_right(self._bounds, key) - 1, 0)
        keys = self._blocks[index].keys
        place = bisect_left(keys, key)
        is_there = place < len(keys) and keys[place] == key
        return index, place, first_id if is_there else 0

    def _sweep_key(
        self, index: int, place: int, keep: Keep, first_id: int, budget: int
    ) -> tuple[int | None, int]:
        """Sweep the runs of a key from an id on. Return the id to continue with, None at the end, and the cost."""
        block = self._blocks[index]
        key, listed = block.keys[place], block.listed[place]
        runs = runs_of(listed)
        at = bisect_left(runs, first_id, key=first_of)
        cost = 0
        while at < len(runs):
            if cost >= budget:
                return first_of(runs[at]), cost
            cost += _cost(runs[at])
            run = keep(key, runs[at])
            if run is None:
                del runs[at]
            else:
                runs[at] = run
                at += 1
        block.listed[place] = runs[0] if len(runs) == 1 else runs
        return None, cost

    def drop(self, budget: int) -> int:
        """Forget keys from the end, up to ``budget``: deletes a large order in slices. Return how many."""
        dropped = 0
        while self._blocks and dropped < budget:
            dropped += len(self._blocks.pop().keys)
            self._bounds.pop()
        self.key_count -= dropped
        return dropped

    def _join(self, index: int) -> bool:
        """Join a block with the one before if both are small."""
        left, right = self._blocks[index - 1], self._blocks[index]
        if len(left.keys) + len(right.keys) > BLOCK_MIN:
            return False
        left.keys.extend(right.keys)
        left.listed += right.listed
        del self._blocks[index], self._bounds[index]
        return True

    def _find(self, key: int) -> tuple[Block, int]:
        """Return the block of a key and the place where the key is or would be."""
        if not self._blocks:
            self._blocks.append(Block(array("q"), []))
            self._bounds.append(key)
        index = bisect_right(self._bounds, key) - 1
        block = self._blocks[max(index, 0)]
        return block, bisect_left(block.keys, key)

    def _insert(self, block: Block, place: int, key: int, listed: Listed) -> None:
        block.keys.insert(place, key)
        block.listed.insert(place, listed)
        self.key_count += 1
        if len(block.keys) > BLOCK_MAX:
            index = max(bisect_right(self._bounds, key) - 1, 0)
            # Keys that only grow (deadlines) fill the last block: it is cut at its end, so that blocks stay full.
            is_last = index == len(self._blocks) - 1 and place == BLOCK_MAX
            cut = BLOCK_MAX if is_last else BLOCK_MAX // 2
            new = Block(block.keys[cut:], block.listed[cut:])
            del block.keys[cut:], block.listed[cut:]
            self._blocks.insert(index + 1, new)
            self._bounds.insert(index + 1, new.keys[0])

    def _drop_first(self, block: Block) -> None:
        del block.keys[0], block.listed[0]
        self.key_count -= 1
        if not block.keys:
            del self._blocks[0], self._bounds[0]

    def _merge(self, keys: list[int], listed: Sequence[Listed]) -> None:
        """Merge many ascending keys into the blocks, each block once."""
        old_blocks, old_bounds = self._blocks, self._bounds
        self._blocks, self._bounds = [], []
        self.key_count = 0
        at = 0
        for index, block in enumerate(old_blocks):
            is_last = index + 1 == len(old_blocks)
            end = len(keys) if is_last else bisect_left(keys, old_bounds[index + 1], at)
            if at == end:
                self._append_blocks(block.keys, block.listed)
            else:
                both = [*block.keys, *keys[at:end]]
                self._append_blocks(*sorted_by_key(both, [*block.listed, *listed[at:end]]))
            at = end
        if not old_blocks:
            self._append_blocks(keys, listed)

    def _append_blocks(self, keys: Sequence[int], listed: Sequence[Listed]) -> None:
        self.key_count += len(keys)
        # Full blocks would be split by the next key; so many keys leave room.
        size = BLOCK_MAX if len(keys) <= BLOCK_MAX else BLOCK_MAX * 3 // 4
        for start in range(0, len(keys), size):
            self._blocks.append(
                Block(array("q", keys[start : start + size]), list(listed[start : start + size]))
            )
            self._bounds.append(keys[start])


def _are_distinct(keys: list[int]) -> bool:
    """Return whether most keys occur once, as far as a sample tells."""
    sample = keys[:: max(len(keys) // SAMPLE, 1)]
    return 4 * len(set(sample)) > 3 * len(sample)


def sorted_by_key(keys: list[int], listed: Sequence[Listed]) -> tuple[list[int], Sequence[Listed]]:
    """Return keys in ascending order, each once, and what is listed under each.

    Of equal keys the later one has the higher ids. Python compares floats in half the time that it takes for integers
    of more than 30 bits, so keys that floats represent exactly are compared as floats.
    """
    is_exact = min(keys) >= -FLOAT_MAX and max(keys) <= FLOAT_MAX
    values = list(map(float, keys)) if is_exact else keys
    places = sorted(range(len(keys)), key=values.__getitem__)
    keys = list(map(keys.__getitem__, places))
    listed = list(map(listed.__getitem__, places))
    is_next_equal = bytes(map(eq, keys, islice(keys, 1, None)))
    return _folded(keys, listed, is_next_equal) if 1 in is_next_equal else (keys, listed)


def _folded(
    keys: list[int], listed: list[Listed], is_next_equal: bytes
) -> tuple[list[int], list[Listed]]:
    """Return each key once."""
    new_keys: list[int] = []
    new_listed: list[Listed] = []
    at = 0
    while at < len(keys):
        end = is_next_equal.find(1, at)
        if end < 0:
            end = len(keys) - 1
        new_keys += keys[at : end + 1]
        new_listed += listed[at : end + 1]
        at = end + 1
        while at < len(keys) and keys[at] == keys[end]:
            for run in runs_of(listed[at]):
                ids = (run,) if isinstance(run, int) else run
                new_listed[-1] = extended(new_listed[-1], ids)
            at += 1
    return new_keys, new_listed


def _cost(run: Run) -> int:
    """Return what it costs to look at a run, in tasks."""
    return len(run) if isinstance(run, array) and len(run) > LOOK_COST else LOOK_COST
