"""A producer's local buffer on disk, in Beats' format (docs/formats/beats.md): what is published survives anything.

Any number of threads publish; those that come while a write is under way are written together by the next, with one
write and one sync (group commit), and each returns when its own is durable. One consumer at a time reads; batches are
acknowledged in any order. A segment goes when all of it was acknowledged and a newer one is there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.errors import (
    InvalidValue,
    PayloadTooLarge,
    SpoolFull,
    StorageError,
    StorageFailed,
)
from penstock.formats.beats.frame import FRAMING
from penstock.formats.beats.segment import STATE_NAME
from penstock.formats.beats.state import Position, State
from penstock.storage.directory import LOCK_NAME
from penstock.storage.files import Files, OsFiles, Poison, opening_directory
from penstock.storage.spool_opening import (
    DAMAGED_SUFFIX,
    SpoolSegment,
    find_spool,
    open_cursor,
    write_state,
)
from penstock.storage.spool_segments import SegmentCursor
from penstock.storage.spool_values import PLAIN, SpoolBatch, SpoolSettings, SpoolStat, WhenFull
from penstock.storage.spool_writing import SpoolWriter, Written

__all__ = ["PLAIN", "Spool", "SpoolBatch", "SpoolSettings", "SpoolStat", "WhenFull"]


@dataclass(eq=False, slots=True)
class _Publication:
    """What one caller wants written."""

    payloads: Sequence[bytes]
    size: int
    is_done: bool = False
    error: Exception | None = None


@dataclass(slots=True)
class _HandedOut:
    """A batch that is not acknowledged, or waits for an older one to be."""

    segment: SpoolSegment
    end: Position
    count: int
    is_acknowledged: bool = False


@dataclass(slots=True)
class _Counts:
    published: int = 0
    acknowledged: int = 0
    dropped: int = 0
    damaged: int = 0
    unsaved: int = 0  # acknowledged since the state was saved


@dataclass(slots=True)
class _Reading:
    """Where the reader is."""

    segment: SpoolSegment
    cursor: SegmentCursor
    # What of the segment the cursor was shown the last time.
    size: int = -1
    is_sealed: bool = False


def _say_nothing(words: str) -> None:
    del words


class Spool:
    """An open spool. Threads share it; another process cannot open it."""

    def __init__(
        self,
        path: Path,
        settings: SpoolSettings | None = None,
        *,
        files: Files | None = None,
        tell: Callable[[str], None] = _say_nothing,
    ) -> None:
        """Open the directory, made if missing. ``tell`` is called with what was cut, removed or passed over.

        Raises ``DirectoryLocked``, ``PathRefused``, ``BadData`` for a segment that cannot be read at all,
        ``InvalidValue`` for a missing key, and ``StorageFailed``.
        """
        self.path = path
        self.settings = settings or SpoolSettings()
        self._files = files or OsFiles()
        self._tell = tell
        self._poison = Poison(str(path))
        with opening_directory(path):
            self._files.make_directory(path)
            self._lock_file = self._files.lock(path / LOCK_NAME)
        try:
            with self._poison.writing():
                found = find_spool(self._files, path, key=self.settings.key)
        except BaseException:
            self._lock_file.release()
            raise
        for note in found.notes:
            tell(note)
        self._segments = deque(found.segments)
        self._position = found.position
        # How far the batch reached that was being sent, for its sender.
        self.sending = found.sending
        self._writer = SpoolWriter(self._files, path, self.settings, next_number=found.next_number)
        self._counts = _Counts()
        # Guards all that is in memory. Held for moments, but for the removal of a segment that is dropped.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reader = threading.Lock()  # held by the one that reads; taken before ``_lock``
        self._acker = threading.RLock()  # by the one that saves the state; taken before ``_lock``
        self._is_writing = False
        self._pending: list[_Publication] = []
        self._waiting: deque[_Publication] = deque()  # for room, first come first served
        self._unshown = 0  # bytes, at most, of what is pending or being written
        self._reading: _Reading | None = None
        self._next_batch = 0
        self._out: dict[int, _HandedOut] = {}  # by number of the batch, oldest first
        self._is_closed = False

    # --- publishing ---

    def publish(self, payloads: Sequence[bytes], *, timeout: float | None = None) -> None:
        """Return when all payloads are durable. Either all are kept, or none.

        ``timeout``: seconds to wait for room. Raises ``SpoolFull``, ``PayloadTooLarge``, ``InvalidValue`` for an
        empty payload or a closed spool, and ``StorageFailed`` when a write or sync has failed, now and ever after.
        """
        if not payloads:
            return
        size = sum(map(len, payloads)) + FRAMING * len(payloads)
        self._check(payloads, size)
        mine = _Publication(payloads, self.settings.cost(size))
        batch: list[_Publication] = []
        with self._changed:
            self._wait_for_room(mine, timeout)
            self._pending.append(mine)
            self._unshown += mine.size
            while self._is_writing and not mine.is_done:
                self._changed.wait()
            if not mine.is_done:
                self._is_writing = True
                batch, self._pending = self._pending, []
                if self._waiting:
                    self._changed.notify_all()
        if batch:
            self._write_together(batch)
        if mine.error is not None:
            raise mine.error

    def _check(self, payloads: Sequence[bytes], size: int) -> None:
        if not all(payloads):
            raise InvalidValue("a payload in a spool has at least one byte")
        largest, most = max(map(len, payloads)), self.settings.payload_max
        if largest > most:
            raise PayloadTooLarge(
                f"a payload of {largest} bytes; {most} fit in a segment of this spool"
            )
        if size > self.settings.publication_max:
            raise SpoolFull(
                f"{size} bytes at once; a spool of this size takes {self.settings.publication_max}"
            )

    def _wait_for_room(self, mine: _Publication, timeout: float | None) -> None:
        """Return when it is this caller's turn and there is room for what it brings."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._waiting.append(mine)
        try:
            while True:
                self._check_open()
                if self._waiting[0] is mine and self._has_turn(mine):
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise self._full(mine.size)
                self._changed.wait(left)
        finally:
            self._waiting.remove(mine)
            if self._waiting:
                self._changed.notify_all()

    def _has_turn(self, mine: _Publication) -> bool:
        """Return whether the first of those that wait may go on. Raises ``SpoolFull`` if it must not wait."""
        while not self._has_room(mine.size):
            is_dropped = self.settings.when_full is WhenFull.DROP_OLDEST and self._drop_oldest()
            if not is_dropped:
                # What is being written may be dropped in a moment; otherwise only the reader makes room.
                may_wait = self.settings.when_full is WhenFull.BLOCK or (
                    self.settings.when_full is WhenFull.DROP_OLDEST and self._unshown > 0
                )
                if not may_wait:
                    raise self._full(mine.size)
                return False
        ahead = sum(len(one.payloads) for one in self._pending)
        return ahead == 0 or ahead + len(mine.payloads) <= self.settings.write_ahead

    def _has_room(self, size: int) -> bool:
        # The newest segment goes as soon as this is written, if there is nothing left to do with it.
        kept = sum(one.size for one in self._segments if not self._is_finished(one))
        return kept + self._unshown + size <= self.settings.max_size

    @property
    def _size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def _full(self, size: int) -> SpoolFull:
        return SpoolFull(
            f"{self.path}: holds {self._size} of {self.settings.max_size} bytes and has no room for {size} more;"
            " drain it, or raise its maximum size"
        )

    def _write_together(self, batch: list[_Publication]) -> None:
        """Write what has gathered, as the only one that writes, and say how it ended."""
        payloads = (
            batch[0].payloads if len(batch) == 1 else [p for one in batch for p in one.payloads]
        )
        # Unless all went well, nobody may be told that it did.
        error: StorageError | None = SpoolFull(f"{self.path}: the write was interrupted")
        try:
            with self._changing_the_disk():
                self._show(self._write(payloads))
            error = None
            self._remove_finished()
        except StorageError as problem:
            # What is durable is durable, whatever becomes of a segment that nobody needs.
            error = error and problem
        finally:
            with self._changed:
                self._is_writing = False
                for one in batch:
                    self._unshown -= one.size
                    one.is_done, one.error = True, error
                if error is None:
                    self._counts.published += len(payloads)
                self._changed.notify_all()

    def _write(self, payloads: Sequence[bytes]) -> list[Written]:
        try:
            return self._writer.write(payloads)
        except OSError:
            raise
        except BaseException:
            # All of it was taken back, and the segment that had to be cut for it is ended.
            ended = self._writer.seal()
            if ended is not None:
                self._show([ended])
            raise

    def _show(self, written: list[Written]) -> None:
        """Let the reader see what is durable now. The first may be the newest that there was."""
        with self._changed:
            for one in written:
                if not self._segments or self._segments[-1].number != one.number:
                    self._segments.append(SpoolSegment(one.number, one.path, 0, 0))
                segment = self._segments[-1]
                segment.size, segment.count = one.size, one.count
                segment.is_sealed = one.is_sealed
            self._changed.notify_all()

    # --- reading ---

    def read(
        self, count_max: int, *, timeout: float | None = None, until: Position | None = None
    ) -> SpoolBatch | None:
        """Return the next payloads, at most ``count_max``, waiting for the first; ``None`` when the time is over.

        ``timeout``: seconds to wait, 0 for not at all. ``until``: where the batch must end at the latest, in the
        segment that is being read; ``None`` is returned if that is where the reader is. All of a batch stands in one
        segment. Raises ``StorageFailed``, and ``InvalidValue`` once the spool is closed.
        """
        assert count_max > 0
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._reader.acquire(timeout=-1 if timeout is None else timeout):
            return None
        try:
            while True:
                with self._lock:
                    self._check_open()
                batch = self._take(count_max, until)
                if batch is not None:
                    return batch
                with self._changed:
                    self._check_open()
                    if self._has_reached(until):
                        return None
                    if self._has_more():
                        continue
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return None
                    self._changed.wait(left)
        finally:
            self._reader.release()

    def _has_reached(self, until: Position | None) -> bool:
        reading = self._reading
        return (
            until is not None
            and reading is not None
            and reading.segment.number == until.segment
            and reading.cursor.index >= until.index
        )

    def _has_more(self) -> bool:
        """Return whether there is something that the reader has not looked at."""
        reading = self._reading
        if reading is None:
            return self._next_to_read() is not None
        segment = reading.segment
        seen = (reading.size, reading.is_sealed)
        return segment.is_dropped or seen != (segment.size, segment.is_sealed)

    def _next_to_read(self) -> SpoolSegment | None:
        return next((one for one in self._segments if not one.is_read), None)

    def _take(self, count_max: int, until: Position | None) -> SpoolBatch | None:
        reading = self._reading or self._begin_reading()
        if reading is None:
            return None
        segment, cursor = reading.segment, reading.cursor
        with self._lock:
            reading.size, reading.is_sealed = segment.size, segment.is_sealed
        offset, index = cursor.offset, cursor.index
        index_max = until.index if until is not None and until.segment == segment.number else None
        try:
            payloads = cursor.take(
                count_max, size=reading.size, is_sealed=reading.is_sealed, index_max=index_max
            )
        except OSError as error:
            raise StorageFailed(f"{segment.path}: cannot be read: {error.strerror}") from error
        self._report(reading)
        with self._changed:
            if cursor.is_finished or segment.is_dropped:
                segment.is_read, segment.count = True, cursor.index
                self._reading = None
                cursor.close()
            if not payloads or segment.is_dropped:
                batch = None
            else:
                start = Position(segment.number, offset, index)
                end = Position(segment.number, cursor.offset, cursor.index)
                batch = SpoolBatch(self._next_batch, start, end, cursor.payload_format, payloads)
                self._out[batch.number] = _HandedOut(segment, end, len(payloads))
                segment.batches += 1
                self._next_batch += 1
        if batch is None and segment.is_read:
            self._remove_finished()
        return batch

    def _begin_reading(self) -> _Reading | None:
        with self._lock:
            segment, position = self._next_to_read(), self._position
        if segment is None:
            return None
        try:
            cursor = open_cursor(self._files, segment.path, key=self.settings.key)
            if segment.number == position.segment and position.offset:
                cursor.skip_to(position.offset, position.index, size=segment.size)
        except OSError as error:
            if segment.is_dropped:  # since we looked
                return None
            raise StorageFailed(f"{segment.path}: cannot be read: {error.strerror}") from error
        self._reading = _Reading(segment, cursor)
        return self._reading

    def rewind(self) -> None:
        """Take back all batches from the oldest on that is not acknowledged: they are read again.

        Waits for a reader that waits for something to read.
        """
        with self._reader, self._lock:
            self._out.clear()
            for segment in self._segments:
                segment.batches = 0
                segment.is_read = segment.number < self._position.segment
            if self._reading is not None:
                self._reading.cursor.close()
                self._reading = None

    def _report(self, reading: _Reading) -> None:
        """Say what the reader had to pass over; the segment is kept for somebody to look at."""
        segment = reading.segment
        for damage in reading.cursor.damage[segment.damage_told :]:
            segment.damage_told += 1
            segment.is_damaged = True
            self._counts.damaged += 1
            self._tell(
                f"{segment.path}: passed over {damage.size} bytes at {damage.offset}: {damage.reason}"
            )

    # --- acknowledging ---

    def acknowledge(self, batch: SpoolBatch) -> None:
        """Say that a batch has arrived where it belongs. Batches may be acknowledged in any order, each once.

        A crash forgets at most ``ack_window`` of the frames that were acknowledged without a gap. Raises
        ``StorageFailed``, and ``InvalidValue`` once the spool is closed.
        """
        with self._acker:
            with self._lock:
                self._check_open()
                out = self._out.get(batch.number)
                if out is None:  # dropped in the meantime, taken back, or acknowledged before
                    return
                out.is_acknowledged = True
                self._advance()
            self._remove_finished()
            if self._counts.unsaved > self.settings.ack_window:
                # A disk that is full to the last byte takes it later: the segments just removed make room.
                with contextlib.suppress(SpoolFull):
                    self._save(self.sending)

    def _advance(self) -> None:
        """Move the position over all batches from the oldest on that are acknowledged."""
        done = []
        for number, out in self._out.items():
            if not out.is_acknowledged:
                break
            done.append(number)
            out.segment.batches -= 1
            self._position = out.end
            self._counts.acknowledged += out.count
            self._counts.unsaved += out.count
        for number in done:
            del self._out[number]

    def save(self, *, sending: Position | None = None) -> None:
        """Make the position durable. ``sending``: how far a batch reaches that is being sent, for its sender.

        Raises ``SpoolFull`` if the disk has no room even for this, ``StorageFailed``, and ``InvalidValue`` once
        the spool is closed.
        """
        with self._acker:
            with self._lock:
                self._check_open()
            self._save(sending)

    def _save(self, sending: Position | None) -> None:
        with self._lock:
            state, saved = State(self._position, sending=sending), self._counts.unsaved
        with self._changing_the_disk():
            write_state(self._files, self.path / STATE_NAME, state)
        self.sending = sending
        with self._lock:
            self._counts.unsaved -= saved

    def _remove_finished(self) -> None:
        """Remove what was acknowledged whole. The newest stays: a directory without any would begin to count anew."""
        with self._lock:
            finished = []
            while len(self._segments) > 1 and self._is_finished(self._segments[0]):
                finished.append(self._segments.popleft())
            if finished and self._position.segment <= finished[-1].number:
                self._position = Position(self._segments[0].number)
        if finished:
            self._remove(finished)
            with self._changed:
                self._changed.notify_all()

    def _is_finished(self, segment: SpoolSegment) -> bool:
        return segment.is_sealed and segment.is_read and segment.batches == 0

    def _remove(self, segments: list[SpoolSegment]) -> None:
        with self._changing_the_disk():
            for segment in segments:
                # Somebody may have been quicker.
                with contextlib.suppress(FileNotFoundError):
                    if segment.is_damaged:
                        kept = segment.path.with_name(segment.path.name + DAMAGED_SUFFIX)
                        self._files.rename(segment.path, kept)
                    else:
                        self._files.remove(segment.path)
            self._files.sync_directory(self.path)

    def _drop_oldest(self) -> bool:
        """Give the oldest segment up. Return whether there was one that nobody writes to."""
        if len(self._segments) < 2:
            return False
        oldest = self._segments.popleft()
        unsent = (oldest.count or 0) - (
            self._position.index if self._position.segment == oldest.number else 0
        )
        self._out = {n: out for n, out in self._out.items() if out.segment is not oldest}
        oldest.is_dropped = True  # its reader, if it has one, lets it go
        if self._position.segment <= oldest.number:
            self._counts.dropped += unsent
            self._position = Position(self._segments[0].number)
            self._tell(f"{oldest.path}: dropped with about {unsent} tasks in it to make room")
        self._remove([oldest])
        return True

    # --- all the rest ---

    def stat(self) -> SpoolStat:
        with self._lock:
            counts = self._counts
            return SpoolStat(
                segments=len(self._segments),
                size=self._size,
                size_max=self.settings.max_size,
                published=counts.published,
                acknowledged=counts.acknowledged,
                dropped=counts.dropped,
                damaged=counts.damaged,
                position=self._position,
            )

    def _check_open(self) -> None:
        self._poison.check()
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> InvalidValue:
        return InvalidValue(f"{self.path}: the spool is closed")

    @contextlib.contextmanager
    def _changing_the_disk(self) -> Iterator[None]:
        """Wrap all that writes. After a failure nobody waits any longer."""
        try:
            with self._poison.writing():
                yield
        except StorageFailed:
            with self._changed:
                self._changed.notify_all()
            raise

    def close(self) -> None:
        """Write the state and the count of the last segment, and let the directory go.

        Those who wait are told. Raises ``StorageFailed``, and ``SpoolFull`` if the state cannot be saved.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            for one in self._pending:
                one.is_done, one.error = True, self._closed()
            self._pending.clear()
            self._changed.notify_all()
            while self._is_writing:
                self._changed.wait()
        # Whoever acknowledges or reads right now comes to an end before the directory is let go.
        with self._acker, self._reader:
            try:
                if not self._poison.has_struck:
                    with self._changing_the_disk():
                        self._writer.seal()
                    if self._counts.unsaved:
                        self._save(self.sending)
            finally:
                self._writer.close()
                if self._reading is not None:
                    self._reading.cursor.close()
                    self._reading = None
                self._lock_file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(StorageError) if error is not None else contextlib.nullcontext():
            self.close()
