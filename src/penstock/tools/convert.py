"""Conversion between generations, into a new directory (docs/formats/conversion.md).

Generations 2 and 3 are converted entry by entry and keep their indexes. From and to generation 1, whose
log holds requests instead of results, the state is written as a snapshot. What the target has
no bytes for is refused; damage is refused too, for repair comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadData, CannotConvert, CorruptData, ReplayConflict
from penstock.formats.taskflux.deltas import decode_delta, encode_delta
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import Status
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.model import (
    INT32_MAX,
    NOTHING,
    HardState,
    Index,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.queues.replay import Queues
from penstock.tools.history import Found, History, restore_snapshot
from penstock.tools.new_directory import NewDirectory, new_directory
from penstock.tools.replay import Replayed, replay

FORMATS: Final = {f"taskflux-{int(generation)}": generation for generation in Generation}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a conversion wrote."""

    entries: int  # entries in the new log
    snapshot_index: int | None
    queues: int
    tasks: int
    left_uncommitted: int  # entries that were not committed and so not taken along


def convert(history: History, to: Generation, out: Path, *, uncommitted: bool = False) -> Converted:
    """Write ``history`` as generation ``to`` into ``out``. Raises ``CannotConvert`` or ``BadData``."""
    is_by_entry = Generation.ONE not in (history.target.generation, to)
    with new_directory(out, to) as new:
        _write_metadata(history, new, to)
        if history.target.kind == "metadata":
            return Converted(entries=0, snapshot_index=None, queues=0, tasks=0, left_uncommitted=0)
        if is_by_entry:
            return _Entries(history, new).convert(uncommitted=uncommitted)
        return _fold(history, new, uncommitted=uncommitted)


def _write_metadata(history: History, new: NewDirectory, to: Generation) -> None:
    if history.metadata is not None:
        encode_metadata(history.metadata.state, to)  # refuses early, before the log is read
        new.write_metadata(history.metadata.state)


def _fold(history: History, new: NewDirectory, *, uncommitted: bool) -> Converted:
    """Write the state as a snapshot, with an empty log behind it."""
    replayed = replay(history, uncommitted=uncommitted)
    whole = replayed if uncommitted or history.commit is None else replay(history, uncommitted=True)
    _write_state(new, replayed)
    _write_seen_term(history, new, replayed.term)
    return Converted(
        entries=0,
        snapshot_index=replayed.index if replayed.index >= 0 else None,
        queues=len(replayed.queues.by_name),
        tasks=sum(map(len, replayed.queues.by_name.values())),
        left_uncommitted=whole.index - replayed.index,
    )


def _write_state(new: NewDirectory, replayed: Replayed) -> None:
    if replayed.index >= 0:
        point = SnapshotPoint(index=Index(replayed.index), term=Term(replayed.term))
        new.write_snapshot(point, replayed.queues)


def _write_seen_term(history: History, new: NewDirectory, term: int) -> None:
    """A node without metadata would begin at term 1; its log may be further."""
    if history.metadata is None:
        new.write_metadata(HardState(term=Term(max(1, term))))


class _Entries:
    """Converts entry by entry, replaying as it goes: removals by value need ids, and the reverse."""

    def __init__(self, history: History, new: NewDirectory) -> None:
        self.history = history
        self.new = new
        self.queues = Queues()
        self.term = 0

    def convert(self, *, uncommitted: bool) -> Converted:
        history = self.history
        if history.first > history.covered + 1:
            raise CorruptData(
                f"entries {history.covered + 1} to {history.first - 1} are missing between the snapshot and"
                " the log",
                path=str(history.target.logs[0].path),
            )
        restore_snapshot(history, self.queues)
        if history.point is not None:
            self.new.write_snapshot(history.point, self.queues)
            self.term = history.point.term
        entries, left, expected = 0, 0, history.first
        for found in history.scan():
            if self._is_tail(found):
                break
            if found.index != expected:
                raise CorruptData(
                    "entries are missing", path=str(found.log.path), offset=found.offset,
                    expected=f"entry {expected}", found=f"entry {found.index}",
                )  # fmt: skip
            expected += 1
            if found.index <= history.covered:
                continue
            if not uncommitted and history.is_committed(found.index) is False:
                left += 1
                continue
            self._convert(found)
            entries += 1
        self.new.commit()
        _write_seen_term(history, self.new, self.term)
        return Converted(
            entries=entries,
            snapshot_index=None if history.point is None else history.point.index,
            queues=len(self.queues.by_name),
            tasks=sum(map(len, self.queues.by_name.values())),
            left_uncommitted=left,
        )

    def _is_tail(self, found: Found) -> bool:
        """Return whether the log ends here; a torn tail was promised to nobody, all else is damage."""
        if found.status is Status.OK:
            return False
        sure = max(self.history.synced, self.history.commit or -1)
        is_last = found.log is self.history.target.logs[-1]
        at_end = found.offset + found.size >= found.log.size
        if is_last and at_end and found.index is not None and found.index > sure:
            return True
        raise CorruptData(
            f"the log is damaged here ({found.status.word}); salvage it first with 'penstock repair'",
            path=str(found.log.path),
            offset=found.offset,
        )

    def _convert(self, found: Found) -> None:
        if self.new.generation is Generation.TWO and (found.index or 0) >= INT32_MAX:
            raise CannotConvert(
                f"entry {found.index} has an index beyond generation 2's {INT32_MAX}"
            )
        try:
            payload = self._payload(found.payload, found.log.layout.contents)
        except BadData as error:
            raise error.located(str(found.log.path), base=found.offset) from None
        except ReplayConflict as error:
            raise CorruptData(
                f"entry {found.index} cannot be applied: {error}; salvage with 'penstock repair'",
                path=str(found.log.path),
                offset=found.offset,
            ) from None
        self.new.append(found.term, payload)
        self.term = found.term

    def _payload(self, payload: bytes, contents: Contents) -> bytes:
        """Apply a delta and return it as the target stores it; only removals differ."""
        if not payload:
            return payload
        delta = decode_delta(payload, contents)
        by_id = self.new.generation is Generation.THREE
        if isinstance(delta, RemoveEqualTask) and by_id:
            task_id = self.queues.remove_equal(delta.queue, delta.key, delta.payload)
            if task_id is None:
                return encode_delta(NOTHING)  # generation 2 ignores it, generation 3 would not
            return encode_delta(RemoveTask(queue=delta.queue, id=TaskId(task_id)))
        if isinstance(delta, RemoveTask) and not by_id:
            key, removed = self.queues.remove(delta.queue, delta.id)
            return encode_delta(RemoveEqualTask(queue=delta.queue, key=key, payload=removed))
        self.queues.apply(delta)
        return payload
