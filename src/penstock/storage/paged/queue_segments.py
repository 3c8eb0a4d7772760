"""One segment of a queue's index: the state of its messages in memory, and its file ``N.idx``.

A message is a byte of state, a place and a length: 13 bytes, no object, no payload. A message gets into the file in one
of two ways: from the journal, by ``flush``, or at once, by ``append``, where a log is the truth. Delivers and acks always
wait for a flush. A file cannot tell a deliver from an ack but by order, so what it says already is kept in the
state too, and never written twice (docs/formats/paged.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.binary import Bytes
from penstock.errors import CorruptData
from penstock.formats.rabbitmq.journal import PUBLISH_SIZE as JOURNAL_PUBLISH_SIZE
from penstock.formats.rabbitmq.places import Covers, TableMark
from penstock.formats.rabbitmq.segment import PUBLISH_SIZE, segment_name
from penstock.formats.rabbitmq.writing import (
    encode_segment_actions,
    fill_segment_records,
    segment_record_sizes,
)
from penstock.storage.paged.bulk_reads import read_runs
from penstock.storage.paged.message_slots import NO_SLOT
from penstock.storage.paged.place_tables import WantedTable, read_table, remove_table
from penstock.storage.paged.segment_records import (
    Publishes,
    SegmentFile,
    records_of_table,
    scan_segment,
    segment_table,
)
from penstock.storage.paged.tree_files import TreeFiles

Numbers = NDArray[np.int64]

# The state of a message. Facts, and which of them the segment's file says.
PUBLISHED: Final = 1
DELIVERED: Final = 2
ACKED: Final = 4
PUBLISH_FLUSHED: Final = 8
DELIVER_FLUSHED: Final = 16
ACK_FLUSHED: Final = 32
STORED: Final = 64  # the message is in the message store; its place is a slot

STATE_SIZE: Final = 13
"""Bytes of a message's state in memory: a byte, a place and a length."""

PIECE_SIZE: Final = sys.getsizeof(b"") + 8
"""Bytes of memory that a piece of a waiting record takes besides its own: the object, and its place in a list."""

_ROOM_FIRST: Final = 64
FLUSH_SIZE: Final = 4 * 2**20
"""Bytes of records that a flush makes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unacked:
    """Messages that are not acked, in order of number: one array a field."""

    sequence: Numbers
    message_id: NDArray[np.void]  # 16 bytes each
    expiry_us: NDArray[np.uint64]  # microseconds since 1970; 0 is never
    body_size: Numbers
    is_delivered: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.sequence)


FindSlots = Callable[[Numbers], Numbers]
"""Returns the slots of message ids, -1 where the store has none."""


class Segment:
    """A segment: as many consecutive sequence numbers as the directory's configuration says."""

    def __init__(
        self, tree: TreeFiles, directory: Path, *, queue: int, number: int, entry_count: int
    ) -> None:
        self._tree = tree
        self._entry_count = entry_count
        self.first = number * entry_count
        self.path = directory / segment_name(number)
        self._file = SegmentFile(
            path=self.path, queue=queue, number=number, entry_count=entry_count
        )
        self.file_size = 0  # of N.idx; 0 also if there is none
        self._waiting: list[Bytes] = []  # records that are to be appended to it
        self._waiting_size = 0
        self.table: TableMark | None = None  # the table beside it that counts
        self.unacked = 0
        self.is_dirty = False  # some state is not in the file
        self.state = np.zeros(0, dtype=np.uint8)
        self.place = np.zeros(0, dtype=np.int64)  # in the file, in the journal, or a slot
        self.length = np.zeros(0, dtype=np.uint32)  # of an embedded message
        # Where the journal's records of messages in the store begin, until they are flushed.
        self._journaled: list[tuple[Numbers, Numbers]] = []

    @property
    def memory_size(self) -> int:
        return self.state.nbytes + self.place.nbytes + self.length.nbytes

    def publish(self, relative: int, starts: Numbers, lengths: Numbers, slots: Numbers) -> None:
        """Note messages of consecutive numbers whose records begin in the journal at ``starts``.

        ``slots`` are those of messages in the store, -1 for embedded ones.
        """
        end = relative + len(starts)
        self._make_room(end)
        is_stored = slots != NO_SLOT
        self.state[relative:end] = np.where(is_stored, PUBLISHED | STORED, PUBLISHED)
        self.place[relative:end] = np.where(is_stored, slots, starts + JOURNAL_PUBLISH_SIZE)
        self.length[relative:end] = lengths
        if is_stored.any():
            self._journaled.append((relative + np.flatnonzero(is_stored), starts[is_stored]))
        self.unacked += len(starts)
        self.is_dirty = True

    def append(
        self, relative: int, pieces: Sequence[Bytes], lengths: Numbers, slots: Numbers
    ) -> None:
        """Note messages of consecutive numbers, and let their records, in pieces, wait to be written to the file."""
        end = relative + len(lengths)
        self._make_room(end)
        is_stored = slots != NO_SLOT
        facts = PUBLISHED | PUBLISH_FLUSHED
        ends = self.file_size + self._waiting_size + np.cumsum(segment_record_sizes(lengths))
        self.state[relative:end] = np.where(is_stored, facts | STORED, facts)
        self.place[relative:end] = np.where(is_stored, slots, ends - lengths)
        self.length[relative:end] = lengths
        self.unacked += len(lengths)
        self._waiting.extend(pieces)
        self._waiting_size = int(ends[-1]) - self.file_size

    def write_out(self) -> None:
        """Write the records that wait, as one write."""
        if self._waiting:
            self._append(self._waiting, self._waiting_size)
            self._waiting = []
            self._waiting_size = 0

    def deliver(self, relatives: Numbers) -> Numbers:
        """Note delivers; return those that are the first of their message."""
        self._refuse_unknown(relatives)
        fresh: Numbers = relatives[self.state[relatives] & DELIVERED == 0]
        self.state[fresh] |= DELIVERED
        self.is_dirty = True
        return fresh

    def ack(self, relatives: Numbers) -> Numbers:
        """Note acks; return the slots of those messages that are in the store."""
        self._refuse_unknown(relatives)
        assert len(np.unique(relatives)) == len(relatives), "a message is acked once"
        stored = relatives[self.state[relatives] & STORED != 0]
        self.state[relatives] |= ACKED
        self.unacked -= len(relatives)
        self.is_dirty = True
        slots: Numbers = self.place[stored]
        return slots

    def _refuse_unknown(self, relatives: Numbers) -> None:
        assert not len(relatives) or int(relatives.max()) < len(self.state), "no such message"
        facts = self.state[relatives] & (PUBLISHED | ACKED)
        assert (facts == PUBLISHED).all(), "no such message, or it is acked"

    def live(self) -> Numbers:
        """Return the relative numbers of the messages that are not acked, in order."""
        return np.flatnonzero(self.state & (PUBLISHED | ACKED) == PUBLISHED)

    def stored_slots(self) -> Numbers:
        """Return the slots of the messages that are in the store and not acked."""
        live = self.live()
        slots: Numbers = self.place[live[self.state[live] & STORED != 0]]
        return slots

    def _make_room(self, end: int) -> None:
        assert end <= self._entry_count
        if end > len(self.state):
            room = min(self._entry_count, max(end, 2 * len(self.state), _ROOM_FIRST))
            more = room - len(self.state)
            self.state = np.concatenate([self.state, np.zeros(more, dtype=np.uint8)])
            self.place = np.concatenate([self.place, np.zeros(more, dtype=np.int64)])
            self.length = np.concatenate([self.length, np.zeros(more, dtype=np.uint32)])

    # Flushing.

    @property
    def is_complete(self) -> bool:
        """Whether the file has all messages but those that it never will."""
        facts = self.state & (PUBLISHED | ACKED | PUBLISH_FLUSHED)
        return not self._waiting and not (facts == PUBLISHED).any()

    def flush(self, journal_path: Path, *, may_grow: bool) -> None:
        """Append to the file what it does not say yet; it is not synced.

        A segment without a message that is not acked is left as it is: the next checkpoint forgets it. Not so one that
        may get messages before that: its file would then stay, and what the journal said of it would be gone.
        """
        self.write_out()
        if not self.is_dirty or not (self.unacked or may_grow):
            return
        state = self.state
        facts = state & (PUBLISHED | ACKED | PUBLISH_FLUSHED)
        self._flush_publishes(np.flatnonzero(facts == PUBLISHED), journal_path)
        in_file = state & PUBLISH_FLUSHED != 0
        delivers = in_file & (state & DELIVER_FLUSHED == 0) & (state & (DELIVERED | ACKED) != 0)
        acks = in_file & (state & (ACKED | ACK_FLUSHED) == ACKED)
        # All delivers before all acks: the second record of a message is its ack.
        actions = np.concatenate([np.flatnonzero(delivers), np.flatnonzero(acks)])
        if len(actions):
            data = encode_segment_actions(actions)
            self._append([data], len(data))
            state[delivers] |= DELIVER_FLUSHED
            state[acks] |= ACK_FLUSHED
        self._journaled.clear()
        self.is_dirty = False

    def _flush_publishes(self, relatives: Numbers, journal_path: Path) -> None:
        sizes = segment_record_sizes(self.length[relatives].astype(np.int64))
        ends = np.cumsum(sizes)
        at = 0
        while at < len(relatives):
            done = int(ends[at] - sizes[at])
            stop = max(at + 1, int(np.searchsorted(ends, done + FLUSH_SIZE, side="right")))
            places = ends[at:stop] - sizes[at:stop] - done
            self._flush_part(relatives[at:stop], places, journal_path)
            at = stop

    def _flush_part(self, relatives: Numbers, places: Numbers, journal_path: Path) -> None:
        """Make segment records of the journal's, and append them in one write."""
        lengths = self.length[relatives].astype(np.int64)
        target = np.empty(int(places[-1] + segment_record_sizes(lengths[-1:])[0]), dtype=np.uint8)
        starts = self._journal_starts(relatives)
        journal = self._tree.get(journal_path)
        for run in read_runs(journal, journal_path, starts, lengths + JOURNAL_PUBLISH_SIZE):
            source = np.frombuffer(run.data, dtype=np.uint8)
            rows = run.rows
            fill_segment_records(
                source, run.starts, lengths[rows], relatives[rows], target, places[rows]
            )
        base = self.file_size
        self._append([target.data], len(target))
        embedded = self.state[relatives] & STORED == 0
        self.place[relatives[embedded]] = base + places[embedded] + PUBLISH_SIZE
        self.state[relatives] |= PUBLISH_FLUSHED

    def _journal_starts(self, relatives: Numbers) -> Numbers:
        """Return where the journal's publish records of these messages begin."""
        starts = self.place - JOURNAL_PUBLISH_SIZE
        for numbers, places in self._journaled:
            starts[numbers] = places
        return starts[relatives]

    def _append(self, pieces: Sequence[Bytes], size: int) -> None:
        if not self.file_size:
            self._tree.create(self.path)
        self._tree.write(self.path, self.file_size, pieces)
        self.file_size += size

    # Reading.

    def read(self, relatives: Numbers) -> tuple[Numbers, Numbers]:
        """Return places and lengths of messages that are not acked."""
        self._refuse_unknown(relatives)
        return self.place[relatives], self.length[relatives].astype(np.int64)

    def unacked_rows(self, journaled: Sequence[Publishes]) -> Unacked:
        """Return the messages that are not acked, in order; ``journaled`` are those that only the journal has."""
        found = Publishes.joined([*(part for part, _ in self._scan()), *journaled])
        facts = self.state[found.sequence - self.first]
        # A journal may still have a message that was acked and forgotten with all others of its segment.
        is_there = facts & (PUBLISHED | ACKED) == PUBLISHED
        if not (is_there.all() and (np.diff(found.sequence) > 0).all()):
            rows = np.flatnonzero(is_there)
            rows = rows[np.argsort(found.sequence[rows], kind="stable")]
            found, facts = found.chosen(rows), facts[rows]
        return Unacked(
            sequence=found.sequence,
            message_id=np.ascontiguousarray(found.message_id).view("V16").reshape(-1),
            expiry_us=found.expiry_us,
            body_size=found.body_size,
            is_delivered=facts & DELIVERED != 0,
        )

    def _scan(self) -> Iterator[tuple[Publishes, Numbers]]:
        """Yield publish records, and the relative numbers of delivers and acks, of the whole file."""
        if not self.file_size:
            return
        start = 0
        table = self._read_table()
        if table is not None:
            start, records = table
            yield records
        if start < self.file_size:
            file = self._tree.get(self.path)
            yield from scan_segment(file, self._file, start=start, end=self.file_size)

    def _read_table(self) -> tuple[int, tuple[Publishes, Numbers]] | None:
        """Return how much of the file the table covers, and what it says; forget one that cannot be used."""
        if self.table is None:
            return None
        table = read_table(
            self._tree, self.path, self.table, covers=Covers.SEGMENT,
            queue=self._file.queue, number=self._file.number, length=self.file_size,
        )  # fmt: skip
        records = None if table is None else records_of_table(table, self._file)
        if table is None or records is None:
            self.table = None
            return None
        return table.length, records

    # Tables and removal.

    def wanted_table(self) -> WantedTable:
        """Return what it takes to make the table of the file as it is now."""
        length = self.file_size
        return WantedTable(
            path=self.path,
            number=self._file.number,
            make=lambda file: segment_table(file, self._file, length),
        )

    def remove_files(self) -> None:
        if self.file_size:
            self._tree.remove(self.path)
            remove_table(self._tree, self.path, self._file.number)

    # Starting.

    def recover(self, length: int, table: TableMark | None, find_slots: FindSlots) -> None:
        """Take over the first ``length`` bytes of the file. Raises ``CorruptData``.

        A table that cannot be used is forgotten: then the file is read instead.
        """
        size = self._tree.get(self.path).size() if self._tree.exists(self.path) else 0
        if size < length:
            raise CorruptData(
                "a segment is missing or shorter than the checkpoint says; restore it",
                path=str(self.path),
                expected=f"{length} bytes",
                found=f"{size}",
            )
        if size > length:
            self._tree.truncate(self.path, length)
        self.file_size = length
        self.table = table
        actions = np.zeros(self._entry_count, dtype=np.int64)
        for found, relatives in self._scan():
            self._take(found, find_slots, PUBLISHED | PUBLISH_FLUSHED)
            actions += np.bincount(relatives, minlength=self._entry_count)
        if actions.any():
            self._make_room(int(np.flatnonzero(actions)[-1]) + 1)
        actions = actions[: len(self.state)]
        self.state[actions >= 1] |= DELIVERED | DELIVER_FLUSHED
        self.state[actions >= 2] |= ACKED | ACK_FLUSHED

    def _take(self, found: Publishes, find_slots: FindSlots, state: int) -> None:
        relatives = found.sequence - self.first
        if not len(relatives):
            return
        self._make_room(int(relatives.max()) + 1)
        self.state[relatives] |= state
        self.place[relatives] = found.place
        self.length[relatives] = found.length
        stored = relatives[found.length == 0]
        if len(stored):
            self.state[stored] |= STORED
            self.place[stored] = find_slots(found.message_id[found.length == 0])

    def replay_publishes(self, found: Publishes, find_slots: FindSlots) -> None:
        """Take over publish records of the journal."""
        self._take(found, find_slots, PUBLISHED)
        is_stored = found.length == 0
        if is_stored.any():
            starts = found.place[is_stored] - JOURNAL_PUBLISH_SIZE
            self._journaled.append((found.sequence[is_stored] - self.first, starts))
        self.is_dirty = True

    def replay_actions(self, relatives: Numbers, fact: int) -> None:
        """Take over delivers or acks of the journal; those of messages that are gone mean nothing."""
        relatives = relatives[relatives < len(self.state)]
        known = relatives[self.state[relatives] & PUBLISHED != 0]
        self.state[known] |= fact
        self.is_dirty = True

    def settle(self, refer: Callable[[Numbers], None]) -> None:
        """Count what is not acked, once all files were read, and refer to what is in the store."""
        self.unacked = len(self.live())
        slots = self.stored_slots()
        if (slots == NO_SLOT).any():
            raise CorruptData(
                "a message is in no store file; restore the message store", path=str(self.path)
            )
        refer(slots)
