"""The pages of a node's queues: tasks as messages in a ``PagedDirectory``, in step with the node's snapshots.

Beside every snapshot there is a checkpoint of the pages of the same entry, so that a start finds both as they were
at one moment, and the log goes on from there for both. A checkpoint is made ahead of the snapshot and
counts from the moment when the snapshot is in place: until then the one before it is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptData, DependencyMissing, StorageFailed, needing
from penstock.formats.rabbitmq.task_messages import TaskMessages
from penstock.model import QueueName, SnapshotPoint
from penstock.storage.files import Files
from penstock.storage.paged.flush_rules import FlushReason, FlushRules, steady_clock_ms
from penstock.storage.paged.limits import IndexLimits, PagedLimits

if TYPE_CHECKING:
    from penstock.storage.paged.directory import PagedDirectory
    from penstock.storage.paged.queue_index import QueueIndex

DIRECTORY: Final = "paged"
"""Beside log and snapshot, in the layout of RabbitMQ, whose files our tools read."""


class TaskPages:
    """The tasks of one queue. Their ids are the sequence numbers of its index."""

    def __init__(self, index: QueueIndex, name: QueueName, rules: FlushRules) -> None:
        self._index = index
        self._rules = rules
        self._messages = TaskMessages(name, index.number)

    def add(self, first: int, keys: Sequence[int], payloads: Sequence[bytes]) -> None:
        ids, messages = self._messages.encode(first, keys, payloads)
        self._index.publish_many(first, ids, messages, list(map(len, payloads)))
        self._rules.note_actions(self._index)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        try:
            return list(map(self._messages.payload, self._index.read_many(ids)))
        except CorruptData as error:
            place = error.located(str(self._index.directory))
            raise StorageFailed(f"{place}. Stop, restore the file, and start again") from error
        except OSError as error:
            raise StorageFailed(f"{self._index.directory}: {error}") from error

    def remove(self, ids: Sequence[int]) -> None:
        self._index.ack_many(ids)
        self._rules.note_actions(self._index)

    def stored(self) -> Iterator[tuple[int, array[int], array[int]]]:
        import numpy as np

        for found in self._index.unacked():
            # The first eight bytes of a message's id are the key, for this is asked for at every start.
            raw = found.message_id.view(np.uint8).reshape(-1, 16)[:, :8]
            keys = np.ascontiguousarray(raw).view(">i8").reshape(-1).astype(np.int64)
            sizes = found.body_size.astype(np.uint32)
            bounds = [0, *(np.flatnonzero(np.diff(found.sequence) != 1) + 1).tolist(), len(found)]
            for start, stop in pairwise(bounds):
                yield (
                    int(found.sequence[start]),
                    array("q", keys[start:stop].tobytes()),
                    array("I", sizes[start:stop].tobytes()),
                )


class TaskShelf:
    """The pages of all paged queues of a node. The directory is there once there was such a queue."""

    def __init__(
        self,
        files: Files,
        home: Path,
        point: SnapshotPoint | None,
        limits: PagedLimits | None = None,
        clock_ms: Callable[[], int] = steady_clock_ms,
    ) -> None:
        """Take over the pages as they were at the snapshot ``point``. Raises ``BadData``, ``DependencyMissing``.

        ``limits``: the defaults unless given. ``clock_ms``: a steady clock, for queues that are idle.
        """
        self._files = files
        self._directory = home / DIRECTORY
        self._mark = None if point is None else point.index
        self._limits = PagedLimits() if limits is None else limits
        self._rules = FlushRules(memory=self._limits.memory, clock_ms=clock_ms)
        self._store: PagedDirectory | None = None
        self._is_begun = False  # a checkpoint that is neither finished nor abandoned
        if files.is_directory(self._directory):
            self._store = self._open_store()

    def _open_store(self) -> PagedDirectory:
        with needing("paged", f"{self._directory}: a paged queue"):
            from penstock.storage.paged.directory import PagedDirectory
        return PagedDirectory(
            self._files,
            self._directory,
            at_mark=self._mark,
            limits=IndexLimits(journal_entries_max=self._limits.journal_entries_max),
            store_file_limit=self._limits.store_file_size,
        )

    def open(self, number: int, name: QueueName, *, is_new: bool) -> TaskPages:
        """Return the pages of a queue. Raises ``CorruptData`` if one that is not new has none."""
        if is_new:
            if self._store is None:
                self._store = self._open_store()
            index = self._store.open_queue(number, name.encode("latin-1"))
            return TaskPages(index, name, self._rules)
        found = None if self._store is None else self._store.find_queue(number)
        if found is None:
            raise CorruptData(
                f"the pages of queue {name!r} are missing; restore them from where the snapshot is from",
                path=str(self._directory),
            )
        return TaskPages(found, name, self._rules)

    def refusal(self) -> str | None:
        """Return why there can be no paged queue here, ``None`` if there can."""
        try:
            with needing("paged", "a paged queue"):
                import numba  # noqa: F401
        except DependencyMissing as error:
            return str(error)
        return None

    def drop(self, number: int) -> None:
        """Forget the pages of a queue that was deleted."""
        assert self._store is not None, "a paged queue has a store"
        queue = self._store.find_queue(number)
        assert queue is not None, "no such queue"
        self._rules.forget(queue)
        self._store.delete_queue(number)

    @property
    def is_in_use(self) -> bool:
        """Whether there is, or was, a paged queue."""
        return self._store is not None

    @property
    def flushes(self) -> dict[FlushReason, int]:
        """How many flushes there were for each reason."""
        return self._rules.counts

    @property
    def unread_tables(self) -> list[Path]:
        """Tables of places that the start could not use: it read the files that they belong to."""
        return [] if self._store is None else self._store.unread_tables

    @property
    def is_dirty(self) -> bool:
        """Whether some queue has actions that no segment file holds."""
        return self._rules.is_dirty

    def flush_idle(self) -> int | None:
        """Flush queues that are idle. Return in how many milliseconds to call again, ``None`` if none is dirty."""
        return self._rules.flush_idle()

    def merge(self) -> bool:
        """Merge some garbage of the store; return whether there may be more."""
        return self._store is not None and self._store.merge(steps=1)

    # Checkpoints.

    def begin_checkpoint(self, point: SnapshotPoint) -> Callable[[], None] | None:
        """Fix the pages of this moment; return what has to be done, by any thread, until that is on the disk."""
        if self._store is None:
            return None
        self._store.merge()
        self._is_begun = True
        write = self._store.begin_checkpoint(point.index)
        self._rules.note_checkpoint()
        return write

    def finish_checkpoint(self) -> None:
        """Let the checkpoint that was begun count, if one was: the snapshot that it belongs to is in place."""
        if self._store is not None and self._is_begun:
            self._store.finish_checkpoint()
            self._is_begun = False

    def abandon_checkpoint(self) -> None:
        """Forget the checkpoint that was begun, if one was: there will be no snapshot that it belongs to."""
        if self._store is not None and self._is_begun:
            self._store.abandon_checkpoint()
            self._is_begun = False

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
