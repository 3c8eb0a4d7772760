"""A member's log: what its disk holds, and behind that what is on its way there.

Entries are stable when their very write was reported durable. A write that is completed after its entries were replaced
proves nothing: whatever cuts the log also shortens the writes that are under way, so that an old completion cannot speak
for new entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.raft.messages import Entry, EntryKind, Snapshot
from penstock.raft.refusals import InvariantBroken

_SCAN_SIZE: Final = 2**20


class Compacted(Exception):
    """The entry was there and is part of a snapshot now."""


class Unavailable(Exception):
    """The entry is not there yet."""


class Storage(Protocol):
    """What the disk holds for sure. ``first - 1`` is what the snapshot, if any, stands for."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    def term(self, index: int) -> int:
        """Return the term of an entry, or of the one before the first. Raises ``Compacted``, ``Unavailable``."""
        ...

    def entries(self, first: int, end: int, *, size_max: int) -> Sequence[Entry]:
        """Return entries from ``first`` up to before ``end``, at least one, more while they fit the size."""
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, or ``None`` if it is not at hand right now."""
        ...


@dataclass(slots=True)
class Write:
    """A write that is under way."""

    token: int
    last: int = 0  # the last entry of it that still counts; 0 if none does
    term: int = 0  # of that entry
    snapshot: int = 0  # the index of a snapshot in it


class Log:
    """The log of one member."""

    __slots__ = (
        "_changes",
        "_storage",
        "_unstable",
        "_writes",
        "_written",
        "applied",
        "committed",
        "handed_out",
        "is_snapshot_handed_out",
        "offset",
        "pending_snapshot",
    )

    def __init__(self, storage: Storage, *, committed: int, applied: int) -> None:
        if not storage.first - 1 <= applied <= committed <= storage.last:
            raise InvariantBroken(
                f"stored commit {committed} and applied {applied} are not in the log from {storage.first} to"
                f" {storage.last}"
            )
        self._storage = storage
        self._unstable: list[Entry] = []
        self.offset = storage.last + 1  # the index of the first unstable entry
        self._written = storage.last  # handed out to be written, up to here
        self._writes: list[Write] = []
        self.pending_snapshot: Snapshot | None = None
        self.is_snapshot_handed_out = False  # to be written
        self.committed = committed
        self.handed_out = applied  # handed out to be applied, up to here
        self.applied = applied
        # Where changes of members are that were not applied yet, in order.
        self._changes: deque[int] = deque()
        self._find_changes(applied + 1)
        if self.has_two_changes_behind(committed):
            # A leader takes a change when the one before is in force: all but the last are committed, whatever a crash
            # made of the note of that. Members of two changes ago may be a majority that never heard of the last.
            self.committed = self._changes[-2]

    def _find_changes(self, first: int) -> None:
        while first <= self._storage.last:
            entries = self._storage.entries(first, self._storage.last + 1, size_max=_SCAN_SIZE)
            self._note_changes(entries)
            first += len(entries)

    def _note_changes(self, entries: Sequence[Entry]) -> None:
        kind = EntryKind.CONFIGURATION
        self._changes.extend([entry.index for entry in entries if entry.kind is kind])

    def has_change_up_to(self, index: int) -> bool:
        """Return whether a change of members that is not applied yet stands at or before ``index``."""
        return bool(self._changes) and self._changes[0] <= index

    def has_two_changes_behind(self, index: int) -> bool:
        """Return whether two changes of members stand behind ``index``; behind what is committed there never are."""
        return len(self._changes) > 1 and self._changes[-2] > index

    def take_change(self, index: int) -> Entry | None:
        """Take the next change of members at or before ``index``, ``None`` if there is none."""
        if not self.has_change_up_to(index):
            return None
        place = self._changes.popleft()
        return self.entries(place, place + 1, size_max=1)[0]

    # --- looking ---

    @property
    def first(self) -> int:
        pending = self.pending_snapshot
        return self._storage.first if pending is None else pending.index + 1

    @property
    def last(self) -> int:
        return self.offset + len(self._unstable) - 1

    @property
    def stable(self) -> int:
        """The last entry that is durable here; what a pending snapshot stands for is not."""
        return self.offset - 1 if self.pending_snapshot is None else 0

    @property
    def last_term(self) -> int:
        return self.term(self.last)

    def term(self, index: int) -> int:
        """Return the term of an entry. Raises ``Compacted`` and ``Unavailable``."""
        if index >= self.offset:
            if index > self.last:
                raise Unavailable(index)
            return self._unstable[index - self.offset].term
        pending = self.pending_snapshot
        if pending is None:
            return self._storage.term(index)
        if index == pending.index:
            return pending.term
        raise Compacted(index)

    def has(self, index: int, term: int) -> bool:
        """Return whether this very entry is in the log."""
        try:
            return self.term(index) == term
        except (Compacted, Unavailable):
            return False

    def is_older_than(self, index: int, term: int) -> bool:
        """Return whether a log that ends with this entry is at least as new as ours."""
        return (term, index) >= (self.last_term, self.last)

    def entries(self, first: int, end: int, *, size_max: int) -> list[Entry]:
        """Return entries from ``first`` on, before ``end``; at least one, then what fits. Raises ``Compacted``."""
        if first < self.first:
            raise Compacted(first)
        found: list[Entry] = []
        if first < min(end, self.offset):
            stop = min(end, self.offset)
            found += self._storage.entries(first, stop, size_max=size_max)
            if len(found) < stop - first:
                return found
            first = stop
        size = sum(entry.size for entry in found)
        # By place and not as a slice: most of a long tail does not fit one message.
        stop = min(end, self.last + 1) - self.offset
        for place in range(max(0, first - self.offset), stop):
            entry = self._unstable[place]
            size += entry.size
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def place_of_agreement(self, index: int, term: int) -> tuple[int, int]:
        """Return the last (index, term) at or before ``index`` whose term is not above ``term``.

        Terms do not fall along a log, so logs cannot agree between there and ``index``. Where the log does not
        reach, its end is where to look.
        """
        index = min(index, self.last)
        while index > 0:
            try:
                found = self.term(index)
            except Compacted:
                return index, 0
            if found <= term:
                return index, found
            index -= 1
        return 0, 0

    def snapshot(self) -> Snapshot | None:
        return self.pending_snapshot or self._storage.snapshot()

    # --- growing ---

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries behind those before the first of them; what stood there is gone."""
        if not entries:
            return
        first = entries[0].index
        if first <= self.committed:
            raise InvariantBroken(f"entry {first} would replace one that is committed")
        if first > self.last + 1:
            raise InvariantBroken(f"entry {first} would leave a gap behind {self.last}")
        if first <= self.last:
            self._cut(first)
        self._unstable += entries
        self._note_changes(entries)

    def _cut(self, first: int) -> None:
        """Take away everything from ``first`` on, and what writes under way say of it."""
        if first >= self.offset:
            del self._unstable[first - self.offset :]
        else:
            self._unstable.clear()
            self.offset = first
        while self._changes and self._changes[-1] >= first:
            self._changes.pop()
        self._written = min(self._written, first - 1)
        for write in self._writes:
            if write.last >= first:
                write.last = first - 1
                write.term = self.term(first - 1) if first - 1 >= self.first - 1 else 0

    def check_agreed(self, previous: int, previous_term: int, entries: Sequence[Entry]) -> None:
        """Raise ``InvariantBroken`` if what a leader sends differs from what is committed here."""
        agreed = [(entry.index, entry.term) for entry in entries if entry.index <= self.committed]
        if self.first - 1 <= previous <= self.committed:
            agreed.append((previous, previous_term))
        for index, term in agreed:
            if index >= self.first - 1 and not self.has(index, term):
                raise InvariantBroken(f"entry {index} is committed, but not of term {term}")

    def take(self, previous: int, previous_term: int, entries: Sequence[Entry]) -> int | None:
        """Add a leader's entries if the one before them is here; return the last index that now agrees.

        Nothing is cut unless an entry really differs: an old message must not undo a newer one.
        """
        if not self.has(previous, previous_term):
            return None
        for place, entry in enumerate(entries):
            if not self.has(entry.index, entry.term):
                self.append(entries[place:])
                break
        return previous + len(entries)

    def commit(self, index: int) -> bool:
        """Note that everything up to ``index`` is agreed on. Return whether that was news."""
        if index <= self.committed:
            return False
        if index > self.last:
            raise InvariantBroken(f"commit {index} is behind the end of the log, {self.last}")
        self.committed = index
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew behind a snapshot."""
        self.pending_snapshot = snapshot
        self.is_snapshot_handed_out = False
        self._changes.clear()  # they are in the snapshot's configuration
        self._unstable.clear()
        self.offset = snapshot.index + 1
        self._written = snapshot.index
        self.committed = snapshot.index
        for write in self._writes:
            write.last = 0

    # --- writing ---

    def unwritten(self) -> list[Entry]:
        """Return the entries that were not handed out to be written."""
        return self._unstable[self._written + 1 - self.offset :]

    @property
    def has_unwritten(self) -> bool:
        return self._written - self.offset + 1 < len(self._unstable)

    def begin_write(self, token: int, *, with_snapshot: bool) -> None:
        """Note that all of ``unwritten`` was handed out under this token."""
        snapshot = self.pending_snapshot
        write = Write(token, snapshot=snapshot.index if with_snapshot and snapshot else 0)
        self.is_snapshot_handed_out = self.is_snapshot_handed_out or with_snapshot
        if self.has_unwritten:
            write.last, write.term = self.last, self.last_term
            self._written = write.last
        self._writes.append(write)

    def end_write(self, token: int) -> None:
        """Note that the oldest write is durable."""
        write = self._writes.pop(0)
        if write.token != token:
            raise InvariantBroken(f"write {token} was reported durable before {write.token}")
        pending = self.pending_snapshot
        if pending is not None and write.snapshot == pending.index:
            self.pending_snapshot = None
            self.applied = self.handed_out = max(self.applied, write.snapshot)
        if write.last >= self.offset and self.has(write.last, write.term):
            del self._unstable[: write.last + 1 - self.offset]
            self.offset = write.last + 1

    # --- applying ---

    def committed_unapplied(self, *, size_max: int) -> list[Entry]:
        """Return the next entries to apply: agreed on, and durable here."""
        end = min(self.committed, self.stable) + 1
        first = self.handed_out + 1
        if self.pending_snapshot is not None or first >= end:
            return []
        return self.entries(first, end, size_max=size_max)

    def note_applied(self, index: int) -> None:
        if not self.applied <= index <= self.committed:
            raise InvariantBroken(
                f"applied {index} is not between {self.applied} and {self.committed}"
            )
        self.applied = index
        self.handed_out = max(self.handed_out, index)
