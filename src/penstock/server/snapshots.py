"""Snapshots beside the loop: the state is walked in slices, the disk writes in a thread.

A slice takes about half a millisecond and the loop gets as much time between two of them, so that a snapshot of
millions of tasks costs the requests that meet it little.

One that finds no room on the disk is given up and tried again later; the log, on which everything rests, goes on
(docs/decisions/0021-snapshots-without-room.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import CannotConvert, NoRoom, PenstockError
from penstock.formats.taskflux.snapshot import Patch
from penstock.model import INT32_MAX, Implementation, SnapshotPoint
from penstock.server.disk import Disk
from penstock.server.node import Node
from penstock.server.rebuild import SnapshotWalk
from penstock.server.shortage import REST_SECONDS, Shortage
from penstock.storage.snapshot import SnapshotWriter

SLICE_SECONDS: Final = 0.0005
PAUSE_SECONDS: Final = 0.001

SYNC_BYTES: Final = 4 * 2**20
"""A snapshot is synced as it grows: one sync of all of it would hold up those of the log."""

TASK_OVERHEAD: Final = 20  # bytes of a task in a snapshot beyond its payload


class Snapshots:
    """Takes a snapshot whenever enough log has gathered behind the last one."""

    def __init__(
        self,
        node: Node,
        disk: Disk,
        call_later: Callable[[float, Callable[[], None]], object],
        say: Callable[[str], None],
        now: Callable[[], float] = time.perf_counter,
        room: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """``disk`` is for the snapshot's own file; the log's disk is the node's. ``room``: how many bytes are free."""
        self._node = node
        self._disk = disk
        self._call_later = call_later
        self._say = say
        self._now = now
        self._shortage = Shortage(now, room, say)
        self._is_waiting = False  # whether a look for room is on its way
        self._walk: SnapshotWalk | None = None
        # Whether a finished one waits for its place: until it has that, the log is as long as before, and the
        # next would write into the same file.
        self._is_installing = False
        self._started = 0.0
        # Bytes of the log that need no snapshot any more: those that the last one covers and that are still
        # there, for a segment goes only as a whole; or all there were when the state proved too large for one.
        self._covered = 0
        self._begun_size = 0  # the log's size when the one under way began
        self.when_ended: Callable[[], None] = lambda: (
            None
        )  # called when one is in place or given up
        node.replica.after_apply.append(self.consider)
        if node.group is not None:
            node.group.replica.when_ticked.append(self.consider)
            node.group.replica.receipt.shortage = self._shortage
        for path in [] if node.shelf is None else node.shelf.unread_tables:
            say(
                f"{path}: not the table of its snapshot; the file itself was read, the next snapshot makes it anew"
            )

    @property
    def is_under_way(self) -> bool:
        return self._walk is not None or self._is_installing

    def state_size(self) -> int:
        """Return about how many bytes a snapshot would have."""
        queues = self._node.replica.state.by_name.values()
        return sum(
            queue.tasks.size + TASK_OVERHEAD * len(queue)
            for queue in queues
            if queue.policy.implementation is not Implementation.PAGED
        )

    @property
    def behind(self) -> int:
        """How many bytes of log have gathered behind the last snapshot."""
        return self._node.directory.log.size - self._covered

    def consider(self) -> None:
        """Begin a snapshot if it is due: the log behind the last is large, and larger than the state.

        The second condition keeps the work of snapshots in proportion to the work that is logged.
        """
        replica = self._node.replica
        if self.is_under_way or replica.failure is not None or not replica.can_snapshot:
            return
        if self._shortage.is_resting:
            return
        behind = self.behind
        # The second is asked last: it looks at every queue.
        is_due = behind >= self._node.settings.snapshot_bytes and behind >= self.state_size()
        if (is_due or replica.wants_snapshot) and self._shortage.allows(self.state_size()):
            self.begin()

    def begin(self) -> None:
        """Begin a snapshot of the state as it is now."""
        replica = self._node.replica
        self._begun_size = self._node.directory.log.size
        if self.state_size() > INT32_MAX:
            self._covered = self._begun_size
            self._say(
                "the state is larger than the 2 GiB that a snapshot can hold; the log stays as it is"
            )
            return
        point = replica.snapshot_point()
        self._started = self._now()
        self._walk = SnapshotWalk(replica.state, point, self._node.directory.snapshot_layout)
        shelf = self._node.shelf
        sync_pages = None if shelf is None else shelf.begin_checkpoint(point)
        self._disk.run(
            lambda: self._open(sync_pages),
            lambda error: self._slice(point, error),
            is_small=False,
        )

    def _open(self, sync_pages: Callable[[], None] | None) -> None:
        if sync_pages is not None:
            sync_pages()  # ahead of the snapshot, which rests on them
        self._writer: SnapshotWriter = self._node.directory.snapshot.writer()

    def _slice(self, point: SnapshotPoint, error: BaseException | None) -> None:
        """Take as many pieces as fit a slice, hand them to the disk, and come again."""
        if self._gave_up(error):
            return
        walk = self._walk
        assert walk is not None
        pieces: list[bytes] = []
        until = self._now() + SLICE_SECONDS
        try:
            while self._now() < until:
                pieces.append(next(walk.pieces))
        except StopIteration as done:
            patch: Patch | None = done.value
            self._disk.run(
                lambda: self._complete(pieces, patch),
                lambda failed: self._install(point, failed),
                is_small=False,
            )
            return
        except CannotConvert as refused:
            self._give_up(refused)
            return
        self._disk.run(
            lambda: self._write(pieces),
            lambda failed: self._pause(point, failed),
            is_small=False,
        )

    def _pause(self, point: SnapshotPoint, error: BaseException | None) -> None:
        if not self._gave_up(error):
            self._call_later(PAUSE_SECONDS, lambda: self._slice(point, None))

    def _write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._writer.write(piece)
        self._writer.sync_beyond(SYNC_BYTES)

    def _complete(self, pieces: list[bytes], patch: Patch | None) -> None:
        self._write(pieces)
        self._writer.finish(patch)

    def _install(self, point: SnapshotPoint, error: BaseException | None) -> None:
        if self._gave_up(error):
            return
        self._end()
        self._shortage.end()
        self._is_installing = True
        self._node.replica.run_chore(lambda: self._put(point), lambda: self._note(point))

    def _put(self, point: SnapshotPoint) -> None:
        directory, size = self._node.directory, self._node.directory.log.size
        placed = directory.snapshot.point
        if placed is not None and placed.index >= point.index:
            self._writer.abandon()  # a leader has sent a newer one meanwhile
            return
        directory.install_snapshot(point, self._writer)
        self._covered = self._begun_size - (size - directory.log.size)

    def _note(self, point: SnapshotPoint) -> None:
        self._is_installing = False
        self._node.replica.note_snapshot(point)
        if self._node.shelf is not None:
            self._node.shelf.finish_checkpoint()
        seconds = self._now() - self._started
        self._node.meter.snapshots += 1
        self._node.meter.snapshot_seconds += seconds
        self._say(f"snapshot at entry {point.index} in {seconds:.1f} s")
        self.when_ended()

    def _end(self) -> None:
        if self._walk is not None:
            self._walk.end()
            self._walk = None

    def _gave_up(self, error: BaseException | None) -> bool:
        if self._node.replica.failure is not None or error is not None:
            self._give_up(error)
            return True
        return False

    def _give_up(self, error: BaseException | None) -> None:
        self._end()
        if self._node.shelf is not None:
            self._node.shelf.abandon_checkpoint()
        if isinstance(error, CannotConvert):
            self._covered = self._node.directory.log.size
            self._say(f"no snapshot: {error}")
        elif isinstance(error, NoRoom):
            self._shortage.begin(error)
            self._wait_for_room()
        elif isinstance(error, PenstockError | OSError):
            self._node.replica.fail(error)
        elif error is not None:
            raise error
        self.when_ended()

    def _wait_for_room(self) -> None:
        """Look again later, also if nothing is applied meanwhile."""
        if not self._is_waiting:
            self._is_waiting = True
            self._call_later(REST_SECONDS, self._look_for_room)

    def _look_for_room(self) -> None:
        self._is_waiting = False
        self.consider()
        if self._shortage.is_on and not self.is_under_way and self._node.replica.failure is None:
            self._wait_for_room()


class Spares:
    """Makes the log's next file ahead of time, so that no batch has to wait for it.

    One that finds no room is given up, as a snapshot is; the batch that needs it does not forgive that.
    """

    def __init__(
        self,
        node: Node,
        disk: Disk,
        say: Callable[[str], None],
        now: Callable[[], float] = time.perf_counter,
        room: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._node = node
        self._disk = disk
        self._shortage = Shortage(now, room, say, thing="spare file")
        self._is_under_way = False
        node.replica.after_apply.append(self.consider)

    def consider(self) -> None:
        """Begin if the log wants one."""
        log = self._node.directory.log
        if not log.wants_spare or self._is_under_way or self._node.replica.failure is not None:
            return
        if self._shortage.allows(log.spare_size):
            self._is_under_way = True
            self._disk.run(log.make_spare, self._finish, is_small=False)

    def _finish(self, error: BaseException | None) -> None:
        self._is_under_way = False
        if error is None:
            self._shortage.end()
        elif isinstance(error, NoRoom):
            self._shortage.begin(error)
        else:
            self._node.replica.fail(error)
