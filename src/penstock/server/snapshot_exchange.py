"""A snapshot on its way from one node to another: what is sent, and what arrives until it is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import BadData, NoRoom, StorageFailed
from penstock.model import Index, SnapshotPoint, Term
from penstock.raft.messages import Snapshot
from penstock.server.disk import Disk
from penstock.server.shortage import Shortage
from penstock.storage.directory import NodeDirectory
from penstock.storage.snapshot import SnapshotStore, SnapshotWriter

CHECKSUM_SIZE: Final = 4

RECEIVED: Final = ".received"
"""The name of a snapshot that is still arriving; a start removes it."""


class SentSnapshot:
    """The snapshot in place, open: it stays readable when a newer one takes its place.

    One that cannot be read ends the node, as every failure of its disk does: it raises ``StorageFailed``.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        with store.reading():
            self._file = store.open()
            self.size = self._file.size()
        # The file's own, over all that it holds; who receives it compares both with the bytes.
        self.checksum = int.from_bytes(self.read(self.size - CHECKSUM_SIZE, CHECKSUM_SIZE), "big")

    def read(self, offset: int, size: int) -> bytes:
        with self._store.reading():
            return self._file.read(offset, min(size, self.size - offset))

    def close(self) -> None:
        self._file.close()


class SnapshotOffers:
    """Opens the snapshot in place for sending."""

    def __init__(self, directory: NodeDirectory) -> None:
        self._directory = directory

    def open(self, snapshot: Snapshot) -> SentSnapshot | None:
        """Return the file of a snapshot, ``None`` if another is in place by now."""
        point = self._directory.snapshot.point
        if point is None or (point.index + 1, point.term) != (snapshot.index, snapshot.term):
            return None
        return SentSnapshot(self._directory.snapshot)


class SnapshotReceipt:
    """A snapshot that arrives in order, and goes on where it broke off; whole, it waits to be installed."""

    def __init__(
        self, directory: NodeDirectory, disk: Disk, fail: Callable[[BaseException], None]
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._fail = fail
        self.shortage = Shortage()
        self._wanted: tuple[int, int, int, int] | None = None  # index, term, size, checksum
        self._count = 0  # transfers that have begun
        self._writer: SnapshotWriter | None = None
        self._tail = b""  # the last bytes that arrived
        # One that is whole: another offer must not take it away before it is installed.
        self._whole: SnapshotWriter | None = None

    def offset(self, snapshot: Snapshot, size: int, checksum: int) -> int | None:
        """Return how many bytes of this very transfer are here; another one that had begun is given up.

        ``None``: there is no room for it now.
        """
        wanted = (snapshot.index, snapshot.term, size, checksum)
        if wanted != self._wanted or self._writer is None:
            if not self.shortage.allows(size):
                return None
            try:
                self.abandon()
                self._wanted = wanted
                self._count += 1  # a name of its own: the one before may wait to be installed
                self._writer = self._directory.snapshot.writer(f"{RECEIVED}{self._count % 2}")
            except NoRoom as error:
                self.shortage.begin(error)
                return None
            except StorageFailed as error:
                self._fail(error)
                return None
        return self._writer.size

    def write(self, offset: int, data: bytes) -> bool:
        """Take the next bytes; return whether they are kept.

        If there is no room, all that had arrived is gone; if the disk has failed, the node with it.
        """
        writer = self._writer
        if writer is None:
            return False
        assert offset == writer.size, "a transfer keeps its order"
        try:
            writer.write(data)
        except NoRoom as error:
            self._writer = None
            self.shortage.begin(error)
            return False
        except StorageFailed as error:
            self._writer = None
            self._fail(error)
            return False
        self._tail = (self._tail + data[-CHECKSUM_SIZE:])[-CHECKSUM_SIZE:]
        return True

    def finish(self, then: Callable[[bool], None]) -> None:
        """Check and sync the whole; ``then`` hears whether it is what was offered."""
        writer, wanted = self._writer, self._wanted
        if writer is None or wanted is None:
            then(False)
            return
        if (writer.size, int.from_bytes(self._tail, "big")) != wanted[2:]:
            self.abandon()
            then(False)
            return

        def job() -> None:
            writer.finish(None)
            writer.verify(SnapshotPoint(index=Index(wanted[0] - 1), term=Term(wanted[1])))

        def done(error: BaseException | None) -> None:
            if self._writer is not writer:
                return  # given up meanwhile
            if error is not None and not isinstance(error, BadData | NoRoom):
                self._fail(error)
                return
            if isinstance(error, NoRoom):
                self.shortage.begin(error)
            if error is not None:
                self.abandon()
            else:
                self.shortage.end()
                self._whole, self._writer, self._wanted = writer, None, None
            then(error is None)

        self._disk.run(job, done, is_small=False)

    def abandon(self) -> None:
        """Throw away what has arrived."""
        writer, self._writer, self._wanted = self._writer, None, None
        self._tail = b""
        if writer is not None:
            writer.abandon()

    def install(self, point: SnapshotPoint) -> None:
        """Put the snapshot that was whole last in place. Runs where the disk wants."""
        writer, self._whole = self._whole, None
        assert writer is not None, "it is whole"
        self._directory.install_received(point, writer)
