"""The snapshot on the disk: written beside the old one as a stream, then renamed over it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.binary import Bytes
from penstock.errors import BadData, CorruptData, NoRoom, StorageFailed
from penstock.formats.taskflux.snapshot import Patch, SnapshotLayout
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader, decode_header
from penstock.formats.taskflux.snapshot_frame import check_frame, detect_layout
from penstock.model import SnapshotPoint
from penstock.storage.files import TEMPORARY_SUFFIX, File, Files, Poison, needing_room

WRITE_SIZE: Final = 2**20
"""Small pieces are gathered up to this before they are written."""


class SnapshotWriter:
    """A snapshot on its way to the disk; ``install`` puts it in place, ``abandon`` throws it away.

    Until it is finished nothing rests on it, so a disk without room costs this file and nothing else: what would write
    to it raises ``NoRoom``, and the file is gone. Everything else that fails strikes the store, a sync for want of
    room too: what it covers is unknown.
    """

    def __init__(self, files: Files, path: Path, poison: Poison, kind: str = "") -> None:
        """``kind`` tells one from another that is written at the same time. Raises ``NoRoom``."""
        self._files = files
        self._path = path
        self._poison = poison
        self._sibling = path.with_name(path.name + kind + TEMPORARY_SUFFIX)
        self._held: list[Bytes] = []
        self._held_size = 0
        self._offset = 0
        self._synced = 0  # bytes that are on the disk already
        self._is_open = self._is_there = False
        with poison.writing():
            with self._needing_room():
                self._file = files.open(self._sibling, write=True, create=True)
            self._is_open = self._is_there = True
            self._file.truncate(0)

    @property
    def size(self) -> int:
        """Bytes that were taken so far."""
        return self._offset + self._held_size

    def write(self, piece: Bytes) -> None:
        """Take the next bytes of the file. Raises ``NoRoom``."""
        self._held.append(piece)
        self._held_size += len(piece)
        if self._held_size >= WRITE_SIZE:
            self._flush()

    def sync_beyond(self, size: int) -> None:
        """Sync what was written so far, if it is at least this much more than at the last time."""
        if self._offset - self._synced >= size:
            with self._poison.writing():
                self._file.sync()
            self._synced = self._offset

    def finish(self, patch: Patch | None) -> None:
        """Complete the file and return when it is on the disk, still under its temporary name. Raises ``NoRoom``."""
        self._flush()
        with self._poison.writing():
            if patch is not None:
                with self._needing_room():
                    self._file.write(patch.offset, [patch.data])
            self._file.sync()
        self._close()

    def verify(self, point: SnapshotPoint) -> None:
        """Raise ``BadData`` unless the finished file, which another wrote, is a whole snapshot of this point."""
        file = self._files.open(self._sibling, write=False)
        try:
            size = file.size()
            layout = detect_layout(file.read, size)
            check_frame(file.read, size, layout)
            found = decode_header(file.read, layout).point
        finally:
            file.close()
        if found != point:
            raise CorruptData(
                "the snapshot is of another point than was offered",
                path=str(self._path),
                offset=4,
                expected=f"{point.index}, {point.term}",
                found=f"{found.index}, {found.term}",
            )

    def install(self) -> None:
        """Put the finished file in place of the old one, durably."""
        with self._poison.writing():
            self._files.rename(self._sibling, self._path)
            self._files.sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Throw the file away, finished or not; one that is gone already stays so."""
        self._close()
        with self._poison.writing():
            if self._is_there:
                self._files.remove(self._sibling)
                self._is_there = False

    @contextmanager
    def _needing_room(self) -> Iterator[None]:
        """Throw the file away and raise ``NoRoom`` if the disk is full."""
        try:
            with needing_room(self._sibling):
                yield
        except NoRoom:
            self.abandon()
            raise

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.close()

    def _flush(self) -> None:
        with self._poison.writing(), self._needing_room():
            if self._held:
                self._file.write(self._offset, [b"".join(self._held)])
        self._offset += self._held_size
        self._held.clear()
        self._held_size = 0


class SnapshotStore:
    """Keeps the newest snapshot of a node."""

    def __init__(self, files: Files, path: Path) -> None:
        """Read the header, if there is a snapshot. Raises ``BadData``, also if the checksum is wrong (R10).

        Recovery removes what a snapshot covers, so the snapshot must be whole before anything happens.
        What its queues say is checked when they are read.
        """
        self._files = files
        self._path = path
        self._poison = Poison(str(path))
        self._header: SnapshotHeader | None = None
        self.reload()
        if self._header is not None:
            self._verify(self._header.layout)

    @property
    def header(self) -> SnapshotHeader | None:
        return self._header

    @property
    def point(self) -> SnapshotPoint | None:
        return None if self._header is None else self._header.point

    def reload(self) -> None:
        """Read the header of what is in place now."""
        if not self._files.exists(self._path):
            self._header = None
            return
        file = self.open()
        try:
            size = file.size()
            if size:
                self._header = decode_header(file.read, detect_layout(file.read, size))
        except BadData as error:
            raise error.located(str(self._path)) from None
        finally:
            file.close()

    def _verify(self, layout: SnapshotLayout) -> None:
        file = self.open()
        try:
            check_frame(file.read, file.size(), layout)
        except BadData as error:
            raise error.located(str(self._path)) from None
        finally:
            file.close()

    def open(self) -> File:
        """Open the snapshot for reading as a stream; close it afterwards."""
        return self._files.open(self._path, write=False)

    def reading(self) -> Poison:
        """Wrap what a running node reads of it. Raises ``StorageFailed`` now and ever after."""
        return self._poison.reading()

    def writer(self, kind: str = "") -> SnapshotWriter:
        """Begin a new snapshot beside the one in place."""
        return SnapshotWriter(self._files, self._path, self._poison, kind)

    def write(self, pieces: Generator[bytes, None, Patch | None]) -> SnapshotWriter:
        """Write a whole snapshot from its encoder; it is on the disk, not yet in place."""
        writer = self.writer()
        try:
            while True:
                try:
                    writer.write(next(pieces))
                except StopIteration as done:
                    writer.finish(done.value)
                    return writer
        except StorageFailed:
            raise
        except BaseException:
            writer.abandon()
            raise
