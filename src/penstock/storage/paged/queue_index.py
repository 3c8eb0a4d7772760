"""The index of one queue: a journal that is only appended to, and segments that it is flushed to.

What happens to a message is written to ``journal.jif`` first: publish, deliver, ack. A flush spreads it over the
segments' files; the journal begins anew at the next checkpoint, because the one on the disk still needs it.
Under a log nothing has to be durable before a checkpoint, so messages go to their segments at once, the rest goes
there by a flush, and the journal stays empty.

Nothing that is promised rests on a record alone, which has no checksum: the journal is believed up to its
last seal, segments up to the lengths of the checkpoint (docs/formats/paged.md).

A queue belongs to a ``PagedDirectory``, which decides when its files are synced and what a start believes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.binary import Bytes, checksum
from penstock.errors import CorruptData
from penstock.formats.rabbitmq.checkpoint import (
    SEAL_SIZE,
    SEQUENCE_END,
    QueueLengths,
    encode_seal,
    seal_checksum,
)
from penstock.formats.rabbitmq.journal import (
    PUBLISH_SIZE,
    TERM_MARKER,
    TERM_TAGS,
    Kind,
    PieceColumns,
    scan_journal_columns,
)
from penstock.formats.rabbitmq.places import parse_places_name
from penstock.formats.rabbitmq.segment import parse_segment_name
from penstock.formats.rabbitmq.writing import (
    encode_actions,
    encode_publishes,
    encode_segment_publishes,
    segment_record_sizes,
)
from penstock.storage.files import TEMPORARY_SUFFIX
from penstock.storage.paged.bulk_reads import WINDOW, read_runs, scan_windows
from penstock.storage.paged.limits import IndexLimits
from penstock.storage.paged.message_slots import NO_SLOT
from penstock.storage.paged.message_store import MessageStore
from penstock.storage.paged.place_tables import NewTables, WantedTable, table_path
from penstock.storage.paged.queue_segments import (
    ACKED,
    DELIVERED,
    PIECE_SIZE,
    PUBLISH_FLUSHED,
    STATE_SIZE,
    STORED,
    Segment,
    Unacked,
)
from penstock.storage.paged.segment_records import Publishes
from penstock.storage.paged.tree_files import TreeFiles

Numbers = NDArray[np.int64]
SequenceNumbers = Sequence[int] | Numbers

JOURNAL: Final = "journal.jif"
QUEUE_NAME: Final = ".queue_name"

_BEGINNINGS: Final = frozenset(bytes((TERM_MARKER, tag)) for tag in TERM_TAGS)
"""What a message begins with; a scan of the store finds no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQueue:
    """What a checkpoint that is on its way to the disk says of a queue."""

    queue: QueueIndex
    lengths: QueueLengths
    acked: list[int]  # the segments that it does not name because all in them is acked
    tables: NewTables  # of segments


class QueueIndex:
    """The messages of one queue, by sequence number."""

    def __init__(
        self,
        tree: TreeFiles,
        directory: Path,
        store: MessageStore,
        *,
        number: int,
        name: bytes,
        limits: IndexLimits,
        is_under_log: bool,
    ) -> None:
        self.number = number
        self.name = name
        self._tree = tree
        self.directory = directory
        self._store = store
        self._limits = limits
        self._is_under_log = is_under_log
        self._segments: dict[int, Segment] = {}
        self._next_sequence = 0
        self.journal_path = directory / JOURNAL
        self._journal_size = 0  # what was written
        self._buffer: list[Bytes] = []  # what waits to be written behind it
        self._buffer_size = 0
        self._waiting: set[int] = set()  # segments with records that wait to be written
        self._waiting_size = 0  # bytes that wait, for the journal or for segments
        self._waiting_count = 0  # the pieces that they are in
        self._dirty_count = 0  # actions since the last flush
        self._flushed_size = 0  # of the journal: what the segments' files say too
        # Checksum that the next seal goes on from, and where the bytes that it covers begin.
        self._generation = 0
        self._chain = 0
        self._sealed_size = 0
        self._is_apart = False  # the journal is a new file, until a checkpoint is on the disk
        self.unread_tables: list[Path] = []  # those that a start could not use

    def __len__(self) -> int:
        """Return how many messages are not acked."""
        return sum(segment.unacked for segment in self._segments.values())

    @property
    def next_sequence(self) -> int:
        """The lowest number that a new message may have."""
        return self._next_sequence

    @property
    def dirty_count(self) -> int:
        """Publishes, delivers and acks since the last flush."""
        return self._dirty_count

    @property
    def dirty_size(self) -> int:
        """Bytes in memory for publishes, delivers and acks since the last flush."""
        return (
            self._waiting_size + PIECE_SIZE * self._waiting_count + STATE_SIZE * self._dirty_count
        )

    @property
    def needs_flush(self) -> bool:
        """Whether the journal has more entries than it should."""
        return self._dirty_count > self._limits.journal_entries_max

    @property
    def memory_size(self) -> int:
        """Bytes in memory for the messages' states and for what waits to be written."""
        return self._waiting_size + sum(s.memory_size for s in self._segments.values())

    def publish_many(
        self,
        first_seq: int,
        ids: Sequence[bytes],
        messages: Sequence[bytes],
        sizes: Sequence[int] | Numbers,
        expiries: int | Sequence[int] | NDArray[np.uint64] = 0,
    ) -> None:
        """Add messages with consecutive numbers from ``first_seq`` on, which must be new.

        ``ids`` have 16 bytes, messages are terms, ``sizes`` are those of the bodies: where that is below the limit the message
        goes into the index, else into the store. ``expiries`` are microseconds since 1970, 0 for never.
        """
        count = len(ids)
        assert count == len(messages) == len(sizes)
        assert self._next_sequence <= first_seq <= SEQUENCE_END - count, "numbers only grow"
        if not count:
            return
        assert messages[0][:2] in _BEGINNINGS, "a message is a term"
        self._tree.check()
        body_sizes = np.asarray(sizes, dtype=np.int64)
        lengths = np.fromiter(map(len, messages), np.int64, count)
        is_embedded = body_sizes < self._limits.embed_below
        slots = np.full(count, NO_SLOT, dtype=np.int64)
        if not is_embedded.all():
            rows = np.flatnonzero(~is_embedded).tolist()
            slots[rows] = self._store.write_many(
                [ids[row] for row in rows], [messages[row] for row in rows]
            )
            lengths[rows] = 0
        due = np.asarray(expiries, dtype=np.uint64)
        if self._is_under_log:
            waiting = 0
            for number, relative, part in self._parts(first_seq, count):
                pieces = encode_segment_publishes(
                    relative, ids[part], messages[part],
                    lengths=lengths[part], sizes=body_sizes[part], expiries=due[part] if due.ndim else due,
                )  # fmt: skip
                self._segment(number).append(relative, pieces, lengths[part], slots[part])
                self._waiting.add(number)
                waiting += len(pieces)
            self._note(int(segment_record_sizes(lengths).sum()), waiting, count)
        else:
            record_sizes = lengths + PUBLISH_SIZE
            starts = self._journal_end + np.cumsum(record_sizes) - record_sizes
            pieces = encode_publishes(
                first_seq, ids, messages, lengths=lengths, sizes=body_sizes, expiries=due
            )
            for number, relative, part in self._parts(first_seq, count):
                self._segment(number).publish(relative, starts[part], lengths[part], slots[part])
            self._append(pieces, int(record_sizes.sum()), count)
        self._next_sequence = first_seq + count

    def _parts(self, first_seq: int, count: int) -> Iterator[tuple[int, int, slice]]:
        """Yield the segments of consecutive messages: number, relative number of the first, and which they are."""
        at, entry_count = 0, self._limits.entry_count
        while at < count:
            number, relative = divmod(first_seq + at, entry_count)
            stop = min(count, at + entry_count - relative)
            yield number, relative, slice(at, stop)
            at = stop

    def deliver_many(self, sequences: SequenceNumbers) -> None:
        """Note that messages were handed to a consumer; for those that were before, nothing is written."""
        self._tree.check()
        fresh = [
            segment.first + segment.deliver(relatives)
            for segment, relatives, _ in self._by_segment(sequences)
        ]
        if fresh and sum(map(len, fresh)):
            self._note_actions(Kind.DELIVER, np.concatenate(fresh))

    def ack_many(self, sequences: SequenceNumbers) -> None:
        """Remove messages. Each number may be given once, and only while its message is there."""
        numbers = np.asarray(sequences, dtype=np.int64)
        if not len(numbers):
            return
        self._tree.check()
        if not self._is_under_log:
            self.deliver_many(numbers)  # a broker does not start on a journal with an ack alone
        slots = [segment.ack(relatives) for segment, relatives, _ in self._by_segment(numbers)]
        self._note_actions(Kind.ACK, numbers)
        gone = np.concatenate(slots)
        if len(gone):
            self._store.remove_many(gone)

    def _note_actions(self, kind: Kind, numbers: Numbers) -> None:
        """Journal delivers or acks; under a log, the states of their messages are enough until the next flush."""
        if self._is_under_log:
            self._note(0, 0, len(numbers))
        else:
            data = encode_actions(kind, numbers)
            self._append([data], len(data), len(numbers))

    def read_many(self, sequences: SequenceNumbers) -> list[bytes]:
        """Return messages that are not acked, in the order of the numbers. Raises ``CorruptData``."""
        self._tree.check()
        messages: list[bytes] = [b""] * len(sequences)
        for segment, relatives, rows in self._by_segment(sequences):
            places, lengths = segment.read(relatives)
            state = segment.state[relatives]
            is_stored = state & STORED != 0
            is_flushed = state & PUBLISH_FLUSHED != 0
            if is_stored.any():
                found = self._store.read_many(places[is_stored])
                for row, message in zip(rows[is_stored].tolist(), found, strict=True):
                    messages[row] = message
            for chosen, path in (
                (~is_stored & is_flushed, segment.path),
                (~is_stored & ~is_flushed, self.journal_path),
            ):
                if chosen.any():
                    self._read(path, places[chosen], lengths[chosen], rows[chosen], messages)
        return messages

    def next_unacked(self, first: int, count: int) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return up to ``count`` numbers of messages that are not acked, from ``first`` on, and which were delivered."""
        numbers, delivered = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
        for number in sorted(n for n in self._segments if n >= first // self._limits.entry_count):
            segment = self._segments[number]
            live = segment.live()
            live = live[live >= first - segment.first][:count]
            numbers.append(segment.first + live)
            delivered.append(segment.state[live] & DELIVERED != 0)
            count -= len(live)
            if not count:
                break
        return np.concatenate(numbers), np.concatenate(delivered)

    def holds(self, sequences: Numbers) -> NDArray[np.bool_]:
        """Return for each number whether its message is there and not acked."""
        found = np.zeros(len(sequences), dtype=np.bool_)
        segments = sequences // self._limits.entry_count
        for number in self._segments.keys() & set(np.unique(segments).tolist()):
            rows, segment = segments == number, self._segments[number]
            found[rows] = np.isin(sequences[rows] - segment.first, segment.live())
        return found

    def _read(
        self, path: Path, places: Numbers, lengths: Numbers, rows: Numbers, messages: list[bytes]
    ) -> None:
        self._write_out()
        for run in read_runs(self._tree.get(path), path, places, lengths):
            ends = run.starts + lengths[run.rows]
            for row, start, end in zip(
                rows[run.rows].tolist(), run.starts.tolist(), ends.tolist(), strict=True
            ):
                messages[row] = run.data[start:end]

    def unacked(self) -> Iterator[Unacked]:
        """Yield all messages that are not acked, in order of number, a segment at a time.

        Nothing may be published, acked or flushed meanwhile.
        """
        self._write_out()
        journaled = self._journaled_publishes()
        for number in sorted(self._segments):
            segment = self._segments[number]
            if segment.unacked:
                yield segment.unacked_rows(journaled.get(number, ()))

    def _journaled_publishes(self) -> dict[int, list[Publishes]]:
        """Return the journal's publish records that no segment's file has, by segment."""
        by_segment: dict[int, list[Publishes]] = {}
        for base, data, pieces in self._scan_journal(self._flushed_size, self._journal_size):
            rows = np.flatnonzero(pieces.kind == Kind.PUBLISH_PERSISTENT)
            found = Publishes.of_pieces(base, data, pieces, rows)
            for number, part in self._split(found):
                by_segment.setdefault(number, []).append(part)
        return by_segment

    def _by_segment(self, sequences: SequenceNumbers) -> Iterator[tuple[Segment, Numbers, Numbers]]:
        """Yield each segment with the relative numbers that are its, and their positions."""
        wanted = np.asarray(sequences, dtype=np.int64)
        numbers = wanted // self._limits.entry_count
        for number in np.unique(numbers).tolist():
            assert number in self._segments, "no such message"
            segment = self._segments[number]
            rows = np.flatnonzero(numbers == number)
            yield segment, wanted[rows] - segment.first, rows

    def _split(self, found: Publishes) -> Iterator[tuple[int, Publishes]]:
        numbers = found.sequence // self._limits.entry_count
        for number in np.unique(numbers).tolist():
            yield number, found.chosen(numbers == number)

    def _segment(self, number: int) -> Segment:
        segment = self._segments.get(number)
        if segment is None:
            segment = Segment(
                self._tree, self.directory,
                queue=self.number, number=number, entry_count=self._limits.entry_count,
            )  # fmt: skip
            self._segments[number] = segment
        return segment

    @property
    def _journal_end(self) -> int:
        return self._journal_size + self._buffer_size

    def _append(self, pieces: Sequence[Bytes], size: int, actions: int) -> None:
        self._buffer.extend(pieces)
        self._buffer_size += size
        self._note(size, len(pieces), actions)

    def _note(self, size: int, pieces: int, actions: int) -> None:
        """Count what was done; write if more waits than should."""
        self._waiting_size += size
        self._waiting_count += pieces
        self._dirty_count += actions
        if self._waiting_size >= self._limits.buffer_size:
            self._write_out()

    def _write_out(self) -> None:
        """Write what waits, a file in one write."""
        for number in sorted(self._waiting):
            self._segments[number].write_out()
        self._waiting.clear()
        self._waiting_size = self._waiting_count = 0
        if self._buffer:
            if self._is_apart and not self._journal_size:
                self._tree.create(self.journal_path)
            self._tree.write(self.journal_path, self._journal_size, self._buffer)
            self._journal_size += self._buffer_size
            self._buffer = []
            self._buffer_size = 0

    def _scan_journal(self, start: int, end: int) -> Iterator[tuple[int, bytes, PieceColumns]]:
        if start < end:  # a journal apart has no file before its first record
            file = self._tree.get(self.journal_path)
            yield from scan_windows(
                file,
                start=start,
                end=end,
                scan=lambda data, size: scan_journal_columns(data, size=size),
            )

    @property
    def is_sealed(self) -> bool:
        """Whether all that was written is covered by a seal."""
        return self._journal_end == self._sealed_size

    def seal(self) -> None:
        """Write everything that waits, and a seal behind it; the caller syncs the journal.

        Messages of the store must be on the disk before: the seal says that what stands before it is true.
        """
        if self.is_sealed:
            return
        self._write_out()
        file = self._tree.get(self.journal_path)
        for offset in range(self._sealed_size, self._journal_size, WINDOW):
            size = min(WINDOW, self._journal_size - offset)
            self._chain = checksum(file.read(offset, size), self._chain)
        self._buffer = [encode_seal(self._chain)]
        self._buffer_size = SEAL_SIZE
        self._write_out()
        self._sealed_size = self._journal_size

    def flush(self) -> None:
        """Append to the segments' files what only the journal says; nothing is synced.

        The journal stays until the next checkpoint, which empties it if all of it was flushed.
        """
        self._write_out()
        if self._dirty_count:
            newest = self._next_sequence // self._limits.entry_count
            for number in sorted(self._segments):
                self._segments[number].flush(self.journal_path, may_grow=number >= newest)
        self._flushed_size = self._journal_size
        self._dirty_count = 0

    # Checkpoints.

    def begin_checkpoint(self, tables_max: int) -> PendingQueue:
        """Write everything that waits, and return what a checkpoint of this moment says of the queue.

        A journal is flushed if it needs to be, or was in part. Then what is written from now on goes to
        a new one beside it, which takes its name when the checkpoint counts. No checkpoint names a journal
        that is apart: where an earlier one was abandoned, it is flushed too, and begins anew.
        Under a log everything is flushed: what is in no file would not be part of the checkpoint.

        So many tables at most are made with the checkpoint.
        """
        self._write_out()
        is_unkept = self._is_under_log or self._is_apart
        if is_unkept or self.needs_flush or self._flushed_size or not self._dirty_count:
            self.flush()
            if self._is_apart and self._journal_size:
                self._tree.truncate(self.journal_path, 0)
            if self._is_apart or self._journal_size:
                self._generation = self._chain = (self._generation + 1) & 0xFFFFFFFF
                self._journal_size = self._flushed_size = 0
                self.journal_path = self.directory / (JOURNAL + TEMPORARY_SUFFIX)
                self._is_apart = True
        self._sealed_size = self._journal_size
        segments = sorted(self._segments.items())
        named = {n: s for n, s in segments if s.unacked and s.file_size}
        lengths = QueueLengths(
            number=self.number,
            name=self.name,
            next_sequence=self._next_sequence,
            journal_length=self._journal_size,
            chain=self._chain,
            generation=self._generation,
            segments={n: s.file_size for n, s in named.items()},
            tables={n: s.table for n, s in named.items() if s.table is not None},
        )
        return PendingQueue(
            queue=self,
            lengths=lengths,
            acked=[n for n, s in segments if not s.unacked],
            tables=NewTables(list(islice(self._wanted_tables(named), tables_max))),
        )

    def _wanted_tables(self, named: dict[int, Segment]) -> Iterator[WantedTable]:
        """Yield the tables that are missing; a segment that may still get messages has none."""
        for number, segment in named.items():
            is_over = (number + 1) * self._limits.entry_count <= self._next_sequence
            if segment.table is None and is_over and segment.is_complete:
                yield segment.wanted_table()

    def finish_checkpoint(self, pending: PendingQueue) -> None:
        """Let go what the checkpoint, now on the disk, does not name: flushed journals, acked segments."""
        for number, mark in pending.tables.made.items():
            self._segments[number].table = mark
        if self._is_apart:
            path = self.directory / JOURNAL
            if self._tree.exists(self.journal_path):
                self._tree.rename(self.journal_path, path)
            else:
                self._tree.truncate(path, 0)
            self.journal_path = path
            self._is_apart = False
        for number in pending.acked:
            # One that got messages meanwhile stays, with a file that the checkpoint does not name.
            if not self._segments[number].unacked:
                self._segments.pop(number).remove_files()
                self._waiting.discard(number)

    def release(self) -> None:
        """Refer to no message of the store any more: the queue is deleted. Its files are removed by the caller."""
        for segment in self._segments.values():
            self._store.remove_many(segment.stored_slots())

    # Starting.

    def create(self) -> None:
        """Begin with an empty journal; whatever a crash left under the queue's names goes away."""
        for name in self._tree.names(self.directory):
            if name != QUEUE_NAME:
                self._tree.remove(self.directory / name)
        self._tree.create(self.journal_path)

    def recover(self, lengths: QueueLengths, *, exactly: bool) -> None:
        """Take over the files as far as they can be believed; ``settle`` must follow. Raises ``CorruptData``.

        ``exactly``: as they were at the checkpoint; else with all that a seal behind it covers.
        """
        self._remove_unknown(lengths)
        for number, length in lengths.segments.items():
            segment, table = self._segment(number), lengths.tables.get(number)
            segment.recover(length, table, self._store.find)
            if segment.table != table:
                self.unread_tables.append(table_path(segment.path, number))
        if not self._tree.exists(self.journal_path) and not lengths.journal_length:
            self._tree.create(self.journal_path)
        end = self._believed_end(lengths, exactly=exactly)
        self._tree.truncate(self.journal_path, end)
        self._journal_size = self._sealed_size = end
        self._generation = lengths.generation
        self._next_sequence = lengths.next_sequence
        self._replay(end)

    def _remove_unknown(self, lengths: QueueLengths) -> None:
        for name in self._tree.names(self.directory):
            number, of_table = parse_segment_name(name), parse_places_name(name)
            is_unknown = number is not None and number not in lengths.segments
            is_unvouched = of_table is not None and of_table not in lengths.tables
            if is_unknown or is_unvouched or name.endswith(TEMPORARY_SUFFIX):
                self._tree.remove(self.directory / name)

    def _believed_end(self, lengths: QueueLengths, *, exactly: bool) -> int:
        """Return how far the journal counts, and take over the checksum that goes with it."""
        is_there = self._tree.exists(self.journal_path)
        size = self._tree.get(self.journal_path).size() if is_there else 0
        end = lengths.journal_length
        if size < end:
            raise CorruptData(
                "the journal is missing or shorter than the checkpoint says; restore it",
                path=str(self.journal_path),
                expected=f"{end} bytes",
                found=f"{size}",
            )
        self._chain = lengths.chain
        if exactly:
            return end
        running, position = self._chain, end
        for base, data, pieces in self._scan_journal(end, size):
            for row in np.flatnonzero(pieces.sequence >= SEQUENCE_END).tolist():
                offset = base + int(pieces.offset[row])
                running = checksum(memoryview(data)[position - base : offset - base], running)
                if pieces.kind[row] != Kind.ACK or running != seal_checksum(pieces.sequence[row]):
                    return end
                end = position = offset + SEAL_SIZE
                self._chain = running
            stop = base + int(pieces.offset[-1] + pieces.size[-1])
            running = checksum(memoryview(data)[position - base : stop - base], running)
            position = stop
        return end

    def _replay(self, end: int) -> None:
        """Take over what the journal says up to ``end``."""
        for base, data, pieces in self._scan_journal(0, end):
            is_seal = pieces.sequence >= SEQUENCE_END
            bad = np.flatnonzero(pieces.kind == Kind.NONE)
            if len(bad):
                raise CorruptData(
                    "no record of a journal, within what was synced; restore the file",
                    path=str(self.journal_path),
                    offset=base + int(pieces.offset[bad[0]]),
                )
            rows = np.flatnonzero((pieces.kind == Kind.PUBLISH_PERSISTENT) & ~is_seal)
            for number, found in self._split(Publishes.of_pieces(base, data, pieces, rows)):
                self._segment(number).replay_publishes(found, self._store.find)
                self._next_sequence = max(self._next_sequence, int(found.sequence.max()) + 1)
            for kind, fact in ((Kind.DELIVER, DELIVERED), (Kind.ACK, ACKED)):
                numbers = pieces.sequence[(pieces.kind == kind) & ~is_seal]
                self._replay_actions(numbers, fact)
            self._dirty_count += int(np.count_nonzero(~is_seal))

    def _replay_actions(self, sequences: Numbers, fact: int) -> None:
        numbers = sequences // self._limits.entry_count
        for number in np.unique(numbers).tolist():
            segment = self._segments.get(number)
            if segment is not None:  # else all of it was acked, and the checkpoint forgot it
                segment.replay_actions(sequences[numbers == number] - segment.first, fact)

    def settle(self) -> None:
        """Count what is not acked, and refer to what is in the store. Raises ``CorruptData``."""
        for segment in self._segments.values():
            segment.settle(self._store.refer)
