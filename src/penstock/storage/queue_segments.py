"""One segment of a queue's index: the state of its messages in memory, and its file ``N.idx``.

A message is a byte of state, a place and a length: 13 bytes, no object, no payload. What is not in the file yet is in
the journal; ``flush`` appends it. A file cannot tell a deliver from an ack but by order, so what it says
already is kept in the state too, and never written twice (docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.binary import Bytes
from penstock.errors import CorruptData
from penstock.formats.rabbitmq.journal import PUBLISH_FIELDS, Kind, PieceColumns, Status
from penstock.formats.rabbitmq.journal import PUBLISH_SIZE as JOURNAL_PUBLISH_SIZE
from penstock.formats.rabbitmq.segment import PUBLISH_SIZE, scan_segment_columns, segment_name
from penstock.formats.rabbitmq.writing import (
    encode_segment_actions,
    fill_segment_records,
    segment_record_sizes,
)
from penstock.storage.bulk_reads import read_runs, scan_windows
from penstock.storage.files import File
from penstock.storage.message_slots import NO_SLOT
from penstock.storage.open_files import OpenFiles

Numbers = NDArray[np.int64]

# The state of a message. Facts, and which of them the segment's file says.
PUBLISHED: Final = 1
DELIVERED: Final = 2
ACKED: Final = 4
PUBLISH_FLUSHED: Final = 8
DELIVER_FLUSHED: Final = 16
ACK_FLUSHED: Final = 32
STORED: Final = 64  # the message is in the message store; its place is a slot

_ROOM_FIRST: Final = 64
FLUSH_SIZE: Final = 4 * 2**20
"""Bytes of records that a flush makes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Publishes:
    """Publish records that a scan found: one array a field."""

    sequence: Numbers
    place: Numbers  # of the embedded message in its file
    length: Numbers  # of the embedded message; 0 if it is in the store
    expiry_us: NDArray[np.uint64]
    body_size: Numbers
    message_id: Numbers  # two integers each, as ``message_slots.id_columns`` makes them

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of_pieces(cls, base: int, data: bytes, pieces: PieceColumns, rows: Numbers) -> Publishes:
        """Return those rows of what a scan found in ``data``, which begins at ``base`` of its file."""
        length = pieces.length[rows]
        ends = pieces.offset[rows] + pieces.size[rows]
        raw = np.frombuffer(data, dtype=np.uint8)
        ids = raw[(ends - length - PUBLISH_FIELDS.size)[:, None] + np.arange(16)]
        return cls(
            sequence=pieces.sequence[rows],
            place=base + ends - length,
            length=length,
            expiry_us=pieces.expiry_us[rows],
            body_size=pieces.body_size[rows],
            message_id=ids.view(np.int64).reshape(-1, 2),
        )

    def chosen(self, rows: NDArray[np.bool_] | Numbers) -> Publishes:
        return Publishes(
            sequence=self.sequence[rows],
            place=self.place[rows],
            length=self.length[rows],
            expiry_us=self.expiry_us[rows],
            body_size=self.body_size[rows],
            message_id=self.message_id[rows],
        )


FindSlots = Callable[[Numbers], Numbers]
"""Returns the slots of message ids, -1 where the store has none."""


class Segment:
    """A segment: as many consecutive sequence numbers as the directory's configuration says."""

    def __init__(
        self, open_files: OpenFiles, directory: Path, number: int, entry_count: int
    ) -> None:
        self._open_files = open_files
        self._entry_count = entry_count
        self.number = number
        self.first = number * entry_count
        self.path = directory / segment_name(number)
        self.file_size = 0  # of N.idx; 0 also if there is none
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

    def flush(self, journal: File, journal_path: Path) -> None:
        """Append to the file what it does not say yet; it is not synced.

        A segment without a message that is not acked is left as it is: the next checkpoint forgets it.
        """
        if not self.is_dirty or not self.unacked:
            return
        state = self.state
        if not self.file_size:
            self._open_files.create(self.path)
        facts = state & (PUBLISHED | ACKED | PUBLISH_FLUSHED)
        self._flush_publishes(np.flatnonzero(facts == PUBLISHED), journal, journal_path)
        in_file = state & PUBLISH_FLUSHED != 0
        delivers = in_file & (state & DELIVER_FLUSHED == 0) & (state & (DELIVERED | ACKED) != 0)
        acks = in_file & (state & (ACKED | ACK_FLUSHED) == ACKED)
        # All delivers before all acks: the second record of a message is its ack.
        actions = np.concatenate([np.flatnonzero(delivers), np.flatnonzero(acks)])
        if len(actions):
            self._append(encode_segment_actions(actions))
            state[delivers] |= DELIVER_FLUSHED
            state[acks] |= ACK_FLUSHED
        self._journaled.clear()
        self.is_dirty = False

    def _flush_publishes(self, relatives: Numbers, journal: File, journal_path: Path) -> None:
        sizes = segment_record_sizes(self.length[relatives].astype(np.int64))
        ends = np.cumsum(sizes)
        at = 0
        while at < len(relatives):
            done = int(ends[at] - sizes[at])
            stop = max(at + 1, int(np.searchsorted(ends, done + FLUSH_SIZE, side="right")))
            self._flush_part(
                relatives[at:stop], ends[at:stop] - sizes[at:stop] - done, journal, journal_path
            )
            at = stop

    def _flush_part(
        self, relatives: Numbers, places: Numbers, journal: File, journal_path: Path
    ) -> None:
        """Make segment records of the journal's, and append them in one write."""
        lengths = self.length[relatives].astype(np.int64)
        target = np.empty(int(places[-1] + segment_record_sizes(lengths[-1:])[0]), dtype=np.uint8)
        starts = self._journal_starts(relatives)
        for run in read_runs(journal, journal_path, starts, lengths + JOURNAL_PUBLISH_SIZE):
            source = np.frombuffer(run.data, dtype=np.uint8)
            rows = run.rows
            fill_segment_records(
                source, run.starts, lengths[rows], relatives[rows], target, places[rows]
            )
        base = self.file_size
        self._append(target.data)
        embedded = self.state[relatives] & STORED == 0
        self.place[relatives[embedded]] = base + places[embedded] + PUBLISH_SIZE
        self.state[relatives] |= PUBLISH_FLUSHED

    def _journal_starts(self, relatives: Numbers) -> Numbers:
        """Return where the journal's publish records of these messages begin."""
        starts = self.place - JOURNAL_PUBLISH_SIZE
        for numbers, places in self._journaled:
            starts[numbers] = places
        return starts[relatives]

    def _append(self, data: Bytes) -> None:
        self._open_files.write(self.path, self.file_size, [data])
        self.file_size += len(data)

    # Reading.

    def read(self, relatives: Numbers) -> tuple[Numbers, Numbers]:
        """Return places and lengths of messages that are not acked."""
        self._refuse_unknown(relatives)
        return self.place[relatives], self.length[relatives].astype(np.int64)

    def publishes(self) -> Iterator[Publishes]:
        """Yield the publish records in the file, as they stand there."""
        for found, _ in self._scan():
            yield found

    def _scan(self) -> Iterator[tuple[Publishes, Numbers]]:
        """Yield publish records, and the relative numbers of delivers and acks, of the whole file."""
        file = self._open_files.get(self.path) if self.file_size else None
        if file is None:
            return

        def scan(data: bytes, size: int) -> Generator[PieceColumns, None, int]:
            return scan_segment_columns(
                data, segment=self.number, entry_count=self._entry_count, size=size
            )

        for base, data, pieces in scan_windows(file, start=0, end=self.file_size, scan=scan):
            bad = np.flatnonzero((pieces.status != Status.OK) | (pieces.kind == Kind.NONE))
            if len(bad):
                raise CorruptData(
                    "no record of a segment, within what was synced; restore the file",
                    path=str(self.path),
                    offset=base + int(pieces.offset[bad[0]]),
                )
            is_publish = pieces.kind != Kind.DELIVER_OR_ACK
            found = Publishes.of_pieces(base, data, pieces, np.flatnonzero(is_publish))
            yield found, pieces.sequence[~is_publish] - self.first

    # Starting.

    def recover(self, length: int, find_slots: FindSlots) -> None:
        """Take over the first ``length`` bytes of the file. Raises ``CorruptData``."""
        size = self._open_files.get(self.path).size() if self._open_files.exists(self.path) else 0
        if size < length:
            raise CorruptData(
                "a segment is missing or shorter than the checkpoint says; restore it",
                path=str(self.path),
                expected=f"{length} bytes",
                found=f"{size}",
            )
        if size > length:
            self._open_files.truncate(self.path, length)
        self.file_size = length
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
