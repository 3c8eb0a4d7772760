"""Conversion between generations, into a new directory (docs/formats/conversion.md).

Generations 2 and 3 are converted entry by entry and keep their indexes. From and to generation 1, whose
log holds requests instead of results, the state is written as a snapshot, but for variant 1a as requests. What the
target has no bytes for is refused; damage is refused too, for repair comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadData, CannotConvert, CorruptData, ReplayConflict
from penstock.families.taskflux.new_directory import NewDirectory, new_directory
from penstock.families.taskflux.read import Found, History, Misfit, restore_snapshot
from penstock.families.taskflux.replay import replay
from penstock.formats.taskflux.deltas import CREATE, REMOVE, encode_delta
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import Status
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    NOTHING,
    Enqueue,
    HardState,
    Implementation,
    Index,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.queues.replay import Queues, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What a conversion wrote."""

    entries: int  # entries in the new log
    snapshot_index: int | None
    queues: int
    tasks: int
    left_uncommitted: int  # entries that were not committed and so not taken along
    tail: str | None = None  # words about bytes at the end that were not taken along
    undecided: str | None = (
        None  # words about records behind an end marker that were not taken along
    )
    dropped_extensions: int = 0  # entries of ours that say nothing any more
    dropped_notes: int = 0  # what the snapshot held of ours


def convert(history: History, to: Variant, out: Path, *, uncommitted: bool = False) -> Converted:
    """Write ``history`` as variant ``to`` into ``out``. Raises ``CannotConvert`` or ``BadData``."""
    is_by_entry = Generation.ONE not in (history.target.generation, to.generation)
    with new_directory(out, to, source=history.target.path) as new:
        _write_metadata(history, new, to)
        if history.target.kind == "metadata":
            return Converted(entries=0, snapshot_index=None, queues=0, tasks=0, left_uncommitted=0)
        if is_by_entry:
            return _Entries(history, new).convert(uncommitted=uncommitted)
        return _fold(history, new, uncommitted=uncommitted)


def _write_metadata(history: History, new: NewDirectory, to: Variant) -> None:
    if history.metadata is not None:
        encode_metadata(
            history.metadata.state, to.metadata
        )  # refuses early, before the log is read
        new.write_metadata(history.metadata.state)


def _fold(history: History, new: NewDirectory, *, uncommitted: bool) -> Converted:
    """Write the state as a snapshot with an empty log behind it, or for variant 1a as a log."""
    replayed = replay(history, uncommitted=uncommitted)
    if replayed.damage is not None:
        raise CorruptData(replayed.damage)
    whole = replayed if uncommitted or history.commit is None else replay(history, uncommitted=True)
    is_log = new.variant is Variant.ONE_A
    write_state(new, replayed.queues, index=replayed.index, term=replayed.term)
    _write_seen_term(history, new, replayed.term)
    return Converted(
        entries=len(replayed.queues.by_name[DEFAULT_QUEUE]) if is_log else 0,
        snapshot_index=None if is_log or replayed.index < 0 else replayed.index,
        queues=len(replayed.queues.by_name),
        tasks=sum(map(len, replayed.queues.by_name.values())),
        left_uncommitted=whole.index - replayed.index,
        tail=replayed.tail,
        undecided=replayed.undecided,
        dropped_extensions=replayed.queues.extensions,
        dropped_notes=replayed.notes,
    )


def write_state(new: NewDirectory, queues: Queues, *, index: int, term: int) -> None:
    """Write a state as a snapshot, or for variant 1a as a log. Raises ``CannotConvert``."""
    if new.variant is Variant.ONE_A:
        _write_requests(new, queues, term)
    elif index >= 0:
        new.write_snapshot(SnapshotPoint(index=Index(index), term=Term(term)), queues)


def _write_requests(new: NewDirectory, queues: Queues, seen: int) -> None:
    """Write the tasks as the log of variant 1a, whose program ignores a snapshot when it starts.

    That program never logs the creation of a queue, so it can hold the default queue alone. Raises ``CannotConvert``.
    """
    for name, contents in queues.by_name.items():
        if name != DEFAULT_QUEUE or contents.head.policy != NO_LIMITS:
            raise CannotConvert(
                f"queue {name!r} cannot be written as variant 1a, whose program has only the default queue, without"
                " limits, when it starts again; choose taskflux-1b or taskflux-1c"
            )
    tasks = queues.by_name[DEFAULT_QUEUE].in_order()
    term = Term(max(1, seen))
    requests = (Enqueue(queue=DEFAULT_QUEUE, key=key, payload=data) for _, key, data in tasks)
    new.write_commands(term, requests)


def _write_seen_term(history: History, new: NewDirectory, term: int) -> None:
    """A node without metadata would begin at term 1; its log may be further."""
    if history.metadata is None:
        new.write_metadata(HardState(term=Term(max(1, term))))
    elif term > history.metadata.state.term:
        raise CorruptData(
            f"the log is of term {term}, but the metadata only knows of {history.metadata.state.term};"
            " salvage with 'penstock repair'",
            path=str(history.target.metadata),
        )


def _left_out(found: Found) -> str:
    return f"{found.log.path}, offset {found.offset}: left out: {found.status.word}"


class Taken:
    """The entries of a log that a conversion takes along, and what it leaves; complete when they are used up."""

    def __init__(self, history: History, *, uncommitted: bool) -> None:
        self.history = history
        self._uncommitted = uncommitted
        self.count = 0
        self.left = 0  # entries that are not committed
        self.tail: str | None = None
        self.undecided: str | None = None

    def entries(self) -> Iterator[Found]:
        """Yield the entries behind the snapshot. Raises ``CorruptData``."""
        history = self.history
        if history.first > history.covered + 1:
            raise self.damage(f"entries {history.covered + 1} to {history.first - 1} are missing")
        last = history.covered
        for found in history.scan():
            if isinstance(found, Misfit):
                raise CorruptData(found.reason, path=str(found.log.path), offset=0)
            if found.status is Status.UNDECIDED:
                self.undecided = _left_out(found)
                break
            if found.status is not Status.OK:
                self.tail = None if found.status is Status.STALE else self._tail(found)
                if found.log is history.target.logs[-1]:
                    break
                continue
            assert found.index is not None, (
                "only damage hides an index, and that has been met before"
            )
            last = max(last, found.index)
            if found.index <= history.covered:
                self._refuse_disagreement(found)
            elif not self._uncommitted and history.is_committed(found.index) is False:
                self.left += 1
            else:
                self.count += 1
                yield found
        if history.sure > last:
            raise self.damage(
                f"entries up to {history.sure} were there, but the log ends at {last}"
            )

    def _tail(self, found: Found) -> str:
        """Return words about a torn tail, which was promised to nobody; all else is damage."""
        is_whole = found.status in (Status.FALLING_TERM, Status.BAD_TERM)
        is_last = found.log is self.history.target.logs[-1]
        at_end = found.offset + found.size >= found.log.size
        if is_whole or not is_last or not at_end or (found.index or 0) <= self.history.sure:
            raise self.damage(f"the log is damaged here ({found.status.word})", found)
        return _left_out(found)

    def _refuse_disagreement(self, found: Found) -> None:
        point = self.history.point
        if point is not None and found.index == point.index and found.term != point.term:
            raise self.damage(f"the snapshot says that this entry is of term {point.term}", found)

    def damage(self, reason: str, found: Found | None = None) -> CorruptData:
        """Return the refusal of a damaged log."""
        path = self.history.target.path if found is None else found.log.path
        return CorruptData(
            f"{reason}; salvage it first with 'penstock repair'",
            path=str(path),
            offset=None if found is None else found.offset,
        )

    @contextmanager
    def applying(self, found: Found) -> Iterator[None]:
        """Raise ``BadData`` with the place of an entry that cannot be decoded or applied."""
        try:
            yield
        except BadData as error:
            raise error.located(str(found.log.path), base=found.offset) from None
        except ReplayConflict as error:
            raise self.damage(f"entry {found.index} cannot be applied: {error}", found) from None


class _Entries:
    """Converts entry by entry, replaying as it goes: removals by value need ids, and the reverse."""

    def __init__(self, history: History, new: NewDirectory) -> None:
        self.history = history
        self.new = new
        self.queues = Queues()
        self.term = 0

    def convert(self, *, uncommitted: bool) -> Converted:
        history, point = self.history, self.history.point
        found_notes = restore_snapshot(history, self.queues)
        if point is not None:
            self.new.write_snapshot(point, self.queues)
            self.term = point.term
        taken = Taken(history, uncommitted=uncommitted)
        for found in taken.entries():
            with taken.applying(found):
                payload = self._payload(found.payload, found.log.layout.contents)
            self.new.append(found.term, payload)
            self.term = found.term
        # An entry does not become committed by being written in another place of generation 2.
        is_two = self.new.variant.generation is Generation.TWO
        self.new.commit(history.commit if is_two else None)
        _write_seen_term(history, self.new, self.term)
        return Converted(
            entries=taken.count,
            snapshot_index=None if point is None else point.index,
            queues=len(self.queues.by_name),
            tasks=sum(map(len, self.queues.by_name.values())),
            left_uncommitted=taken.left,
            tail=taken.tail,
            undecided=taken.undecided,
            dropped_extensions=self.queues.extensions,
            dropped_notes=len(found_notes),
        )

    def _payload(self, payload: bytes, contents: Contents) -> bytes:
        """Apply a delta and return it as the target stores it; only removals and our extensions differ."""
        if not payload:
            return payload
        was_by_id = contents is Contents.DELTAS_BY_ID
        decoded = decode(payload, 0, len(payload), by_id=was_by_id)
        if decoded.extension is not None:
            # It names queues by number and tasks by id, and both are given out anew.
            self.queues.apply(decoded, by_id=was_by_id)
            return encode_delta(NOTHING)
        by_id = self.new.variant is Variant.THREE
        kind, queue, middle, removed = decoded.change
        if kind == CREATE and not by_id and middle.implementation is Implementation.PAGED:
            raise CannotConvert(f"queue {queue!r} is paged, which only generation 3 can be")
        if kind == REMOVE and by_id and not was_by_id:
            task_id = self.queues.remove_equal(queue, middle, removed)
            if task_id is None:
                return encode_delta(NOTHING)  # generation 2 ignores it, generation 3 would not
            return encode_delta(RemoveTask(queue=queue, id=TaskId(task_id)))
        if kind == REMOVE and was_by_id and not by_id:
            key, removed = self.queues.remove(queue, middle)
            return encode_delta(RemoveEqualTask(queue=queue, key=key, payload=removed))
        self.queues.apply_change(decoded.change, by_id=was_by_id)
        return payload
