"""The order of delivery of a queue: smallest key first, and within a key by id.

The order refers to ids, never to chunks, and is a hint: an id stays listed after its task is gone or has another key, until
a sweep drops it. Whoever reads it asks the chunk whether the task is there and has this key. That makes removal, compaction and
replay free of work here.

Keys are kept in blocks: an array of keys and a list of what is listed under each. A key that is one task costs 8 bytes for
the key, 8 for the reference and 32 for the id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from penstock.queues.columnar.runs import (
    Listed,
    Run,
    extended,
    inserted,
    packed,
    runs_after,
    runs_of,
)

BLOCK_MAX: Final = 512
"""Keys of a block, which is split in two beyond that: bounds the bytes that an insertion moves."""

BLOCK_MIN: Final = 128
"""A sweep joins neighbours that have fewer keys together."""

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
            self._insert(block, place, key, packed(ids))

    def insert(self, key: int, task_id: int) -> None:
        """List one id at its place, unless it is listed there already."""
        block, place = self._find(key)
        if place < len(block.keys) and block.keys[place] == key:
            block.listed[place] = inserted(block.listed[place], task_id)
        else:
            self._insert(block, place, key, task_id)

    def extend(self, keys: Sequence[int], ids: Sequence[int]) -> None:
        """List many tasks: ascending ids above all that are listed, and the key of each."""
        groups: dict[int, Listed] = dict(zip(keys, ids, strict=True))
        if len(groups) < len(keys):  # some keys have several tasks
            lists: dict[int, list[int]] = {}
            for key, task_id in zip(keys, ids, strict=True):
                if key in lists:
                    lists[key].append(task_id)
                else:
                    lists[key] = [task_id]
            if len(lists) <= 4 * len(self._blocks) + 16:
                for key, listed in lists.items():
                    self.append(key, listed)
                return
            groups = {key: packed(listed) for key, listed in lists.items()}
        elif len(groups) <= 4 * len(self._blocks) + 16:
            for key, task_id in zip(keys, ids, strict=True):
                self.append(key, (task_id,))
            return
        self._merge(groups)

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
        """Drop what is not there any more from the front, up to the first run that is; return the steps taken."""
        steps = 0
        while self._blocks and steps < budget:
            steps += 1
            block = self._blocks[0]
            key, listed = block.keys[0], block.listed[0]
            run = keep(key, runs_of(listed)[0])
            if run is not None:
                _replace_first(block.listed, listed, run)
                break
            if isinstance(listed, list) and len(listed) > 1:
                del listed[0]
            else:
                self._drop_first(block)
        return steps

    def sweep(self, keep: Keep, key: int | None, budget: int) -> tuple[int | None, int]:
        """Drop what is not there any more, block by block from the one with ``key`` on.

        Returns the key to continue with, or None at the end, and the ids looked at. At least one block is swept.
        """
        steps = 0
        index = 0 if key is None else max(bisect_right(self._bounds, key) - 1, 0)
        while index < len(self._blocks) and (not steps or steps < budget):
            steps += self._sweep_block(index, keep)
            if not self._blocks[index].keys:
                del self._blocks[index], self._bounds[index]
            elif index and self._join(index):
                continue
            else:
                index += 1
        return (self._bounds[index] if index < len(self._blocks) else None), steps

    def drop(self, budget: int) -> int:
        """Forget keys from the end, up to ``budget``: deletes a large order in slices. Return how many."""
        dropped = 0
        while self._blocks and dropped < budget:
            dropped += len(self._blocks.pop().keys)
            self._bounds.pop()
        self.key_count -= dropped
        return dropped

    def _sweep_block(self, index: int, keep: Keep) -> int:
        block = self._blocks[index]
        steps = 1
        keys: array[int] = array("q")
        kept: list[Listed] = []
        for key, listed in zip(block.keys, block.listed, strict=True):
            runs = [run for run in (keep(key, run) for run in runs_of(listed)) if run is not None]
            steps += len(runs_of(listed))
            if runs:
                keys.append(key)
                kept.append(runs[0] if len(runs) == 1 else runs)
        self.key_count -= len(block.keys) - len(keys)
        block.keys, block.listed = keys, kept
        return steps

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

    def _merge(self, groups: dict[int, Listed]) -> None:
        """Merge many keys into the blocks, each block once."""
        keys = sorted(groups)
        old_blocks, old_bounds = self._blocks, self._bounds
        self._blocks, self._bounds = [], []
        at = 0
        for index, block in enumerate(old_blocks):
            is_last = index + 1 == len(old_blocks)
            end = len(keys) if is_last else bisect_left(keys, old_bounds[index + 1], at)
            self._merge_block(block, keys[at:end], groups)
            at = end
        if not old_blocks:
            self._append_blocks(keys, [groups[key] for key in keys])

    def _merge_block(self, block: Block, keys: list[int], groups: dict[int, Listed]) -> None:
        if not keys:
            self._blocks.append(block)
            self._bounds.append(block.keys[0])
            return
        merged: dict[int, Listed] = dict(zip(block.keys, block.listed, strict=True))
        for key in keys:
            if key in merged:
                for run in runs_of(groups[key]):
                    ids = (run,) if isinstance(run, int) else run
                    merged[key] = extended(merged[key], ids)
            else:
                merged[key] = groups[key]
        self.key_count -= len(block.keys)
        ordered = sorted(merged)
        self._append_blocks(ordered, [merged[key] for key in ordered])

    def _append_blocks(self, keys: list[int], listed: list[Listed]) -> None:
        self.key_count += len(keys)
        # Full blocks would be split by the next key; so many keys leave room.
        size = BLOCK_MAX if len(keys) <= BLOCK_MAX else BLOCK_MAX * 3 // 4
        for start in range(0, len(keys), size):
            self._blocks.append(
                Block(array("q", keys[start : start + size]), listed[start : start + size])
            )
            self._bounds.append(keys[start])


def _replace_first(column: list[Listed], listed: Listed, run: Run) -> None:
    if isinstance(listed, list):
        listed[0] = run
    else:
        column[0] = run
