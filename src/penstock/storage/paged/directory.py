"""Queues larger than memory: a directory of queue indexes, one message store, and a checkpoint.

The directory looks like a vhost's of RabbitMQ. A store is used in one of two ways:

* Alone, opened at the ``LATEST`` state. ``sync`` makes durable what was done, ``checkpoint`` lets journals begin anew; a
  start finds all that was synced, and perhaps a sync that was under way.
* Under a log that is the truth, opened at a mark: the index of the entry that a snapshot was taken at. Beside every
  snapshot there is a checkpoint of the same mark, made ahead of it; a start finds exactly the state of the mark, whatever
  was written since, and the log is replayed from there.

In both, nothing that a checkpoint on the disk names is overwritten, shortened or removed while a start
may still ask for it (docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, Literal

from penstock.errors import BadData, CorruptData, PathRefused
from penstock.formats.rabbitmq.checkpoint import (
    FILE_NAME,
    NEXT_FILE_NAME,
    NO_MARK,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from penstock.formats.rabbitmq.names import (
    StoredQueue,
    decode_config,
    encode_config,
    encode_queue_name,
    queue_directory,
)
from penstock.storage.files import TEMPORARY_SUFFIX, Files, read_whole
from penstock.storage.paged.limits import FILE_SIZE_LIMIT, IndexLimits
from penstock.storage.paged.message_store import MessageStore
from penstock.storage.paged.place_tables import TABLES_MAX, NewTables
from penstock.storage.paged.queue_index import QUEUE_NAME, PendingQueue, QueueIndex
from penstock.storage.paged.tree_files import TreeFiles, Unsynced


class Latest(Enum):
    """Asks for all that was made durable."""

    LATEST = "latest"


LATEST: Final = Latest.LATEST
AtMark = int | Literal[Latest.LATEST] | None

VHOST: Final = b"penstock"
LOCK: Final = "penstock.lock"
CHECKPOINT_SIZE_MAX: Final = 2**30
"""Bytes of a checkpoint: some ten million queues and segments."""

MERGE_BYTES: Final = 4 * 2**20
"""Bytes of the store that are merged in one step: requests wait meanwhile."""

MERGE_STEPS: Final = 8
"""Steps at a checkpoint, so that a directory that is never idle does not keep its garbage."""

_CONFIG_SIZE_MAX: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint on its way to the disk, and what may be removed once it is there."""

    path: Path
    checkpoint: Checkpoint
    unsynced: Unsynced
    queues: list[PendingQueue]
    store_tables: NewTables
    garbage: set[int]  # numbers of store files
    doomed: list[Path]  # directories of deleted queues

    def write(self) -> None:
        """Return when the checkpoint is on the disk. Raises ``StorageFailed``. May run in any thread."""
        self.store_tables.write(self.unsynced)
        for one in self.queues:
            one.tables.write(self.unsynced)
        # The name of the checkpoint before this one is part of it: two unsynced renames may come in any order.
        self.unsynced.sync()
        self.unsynced.replace(self.path, [encode_checkpoint(self.with_new_tables())])

    def with_new_tables(self) -> Checkpoint:
        """Return the checkpoint, which vouches for the tables that were made with it too."""
        return replace(
            self.checkpoint,
            store_tables=self.checkpoint.store_tables | self.store_tables.made,
            queues=tuple(
                replace(one.lengths, tables=one.lengths.tables | one.tables.made)
                for one in self.queues
            ),
        )


class PagedDirectory:
    """All paged queues of a directory. Raises ``StorageFailed`` after the first change that failed."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        at_mark: AtMark,
        limits: IndexLimits | None = None,
        store_file_limit: int = FILE_SIZE_LIMIT,
    ) -> None:
        """Open a directory, made if there is none. Raises ``BadData``, ``DirectoryLocked``, ``PathRefused``.

        ``at_mark``: the mark whose state is wanted; ``None`` if there is no snapshot yet. Where no checkpoint was ever
        finished, the state of every mark is an empty one.
        """
        self._files = files
        self._directory = directory
        self._is_alone = at_mark is LATEST
        self._queues: dict[int, QueueIndex] = {}
        self._doomed: list[
            Path
        ] = []  # directories of deleted queues; a checkpoint may still need them
        self._pending: PendingCheckpoint | None = None  # begun, not finished
        self._is_listed = True  # whether the checkpoint names the queues that there are
        if self._is_alone:
            self._refuse_foreign()
        files.make_directory(directory)
        self._lock = files.lock(directory / LOCK)
        self._tree = TreeFiles(files, directory)
        self.store = MessageStore(
            self._tree, directory / "msg_store_persistent", file_size_limit=store_file_limit
        )
        try:
            self._limits = self._configure(limits or IndexLimits())
            self.mark = NO_MARK  # of the last checkpoint that was finished
            self._recover(at_mark)
            if self._is_alone and not files.exists(self._path):
                self.checkpoint()  # from now on the directory is known as ours
        except BaseException:
            self._let_go()
            raise

    # Queues.

    @property
    def queues(self) -> Iterator[QueueIndex]:
        """All queues, in order of number."""
        return iter([self._queues[number] for number in sorted(self._queues)])

    def find_queue(self, number: int) -> QueueIndex | None:
        """Return the queue with this number, ``None`` if there is none."""
        return self._queues.get(number)

    def open_queue(self, number: int, name: bytes) -> QueueIndex:
        """Return the queue with this number, made if there is none; a number is never used again."""
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queue(number, name)
            if queue.directory in self._doomed_now():
                self.checkpoint()  # without a log, a queue has the directory of the deleted one of its name
            self._tree.make_directory(queue.directory)
            queue.create()
            stored = StoredQueue(vhost=VHOST, queue=name)
            self._tree.replace(queue.directory / QUEUE_NAME, [encode_queue_name(stored)])
            self._queues[number] = queue
            self._is_listed = False
        assert queue.name == name
        return queue

    def delete_queue(self, number: int) -> None:
        """Remove a queue and its messages; its files go after the next checkpoint."""
        self._tree.check()
        queue = self._queues.pop(number)
        queue.release()
        self._doomed.append(queue.directory)
        self._is_listed = False

    def _doomed_now(self) -> list[Path]:
        """Return the directories of deleted queues that are still to be emptied."""
        return self._doomed + ([] if self._pending is None else self._pending.doomed)

    def _queue(self, number: int, name: bytes) -> QueueIndex:
        directory = self._directory / "queues" / queue_directory(VHOST, name)
        if not self._is_alone:
            # The number makes the name unique: a queue may be deleted and made again before a checkpoint.
            directory = directory.with_name(f"{directory.name}-{number}")
        return QueueIndex(
            self._tree, directory, self.store,
            number=number, name=name, limits=self._limits, is_under_log=not self._is_alone,
        )  # fmt: skip

    @property
    def memory_size(self) -> int:
        """Bytes in memory for the states of all messages."""
        return self.store.memory_size + sum(queue.memory_size for queue in self._queues.values())

    @property
    def unread_tables(self) -> list[Path]:
        """Tables of places that the start could not use; it read their files instead."""
        found = [self.store.unread_tables, *(queue.unread_tables for queue in self.queues)]
        return [path for paths in found for path in paths]

    # Durability.

    def sync(self) -> None:
        """Return when everything done so far is on the disk; for a store that stands alone."""
        self._tree.check()
        assert self._is_alone, "under a log, only checkpoints are durable"
        assert self._pending is None, "finish the checkpoint first"
        if not self._is_listed:
            self.checkpoint()
            return
        # Messages first: a seal says that what the journal refers to is there.
        self.store.sync()
        unsealed = [queue for queue in self._queues.values() if not queue.is_sealed]
        for queue in unsealed:
            queue.seal()
        self._tree.sync([queue.journal_path for queue in unsealed])

    def merge(self, steps: int = MERGE_STEPS) -> bool:
        """Merge garbage of the store, in so many steps at most; return whether there may be more.

        The files that this frees are removed when the next checkpoint counts.
        """
        return all(self.store.collect(MERGE_BYTES) for _ in range(steps))

    def checkpoint(self, mark: int = NO_MARK) -> None:
        """Fix the state of this moment under ``mark``, and return when it is durable.

        Journals that were flushed begin anew, acked segments and garbage files of the store go away.
        """
        self.begin_checkpoint(mark)()
        self.finish_checkpoint()

    def begin_checkpoint(self, mark: int = NO_MARK) -> Callable[[], None]:
        """Fix the state of this moment under ``mark``, without waiting for the disk.

        What is returned waits: it must be called before ``finish_checkpoint``, and may be in another thread, while this
        one goes on (but a store that stands alone must not sync). Then both this checkpoint and the one
        before it can be asked for by a start, until ``finish_checkpoint`` says that this one is to count.
        """
        self._tree.check()
        assert (mark == NO_MARK) == self._is_alone, "a mark is for a store under a log"
        assert mark >= self.mark, "marks never go back"
        assert self._pending is None, "one checkpoint at a time"
        store_tables = self.store.new_tables(TABLES_MAX)
        left = TABLES_MAX - len(store_tables)
        queues = []
        for queue in self.queues:
            queues.append(queue.begin_checkpoint(left))
            left -= len(queues[-1].tables)
        checkpoint = Checkpoint(
            mark=mark,
            next_store_file=self.store.next_number,
            store_files=self.store.lengths(),
            store_tables=self.store.tables(),
            queues=tuple(queue.lengths for queue in queues),
        )
        doomed, self._doomed = self._doomed, []
        self._pending = PendingCheckpoint(
            path=self._path if self._is_alone else self._next_path,
            checkpoint=checkpoint,
            unsynced=self._tree.take_unsynced(),
            queues=queues,
            store_tables=store_tables,
            garbage=self.store.garbage(),
            doomed=doomed,
        )
        self._is_listed = True
        return self._pending.write

    def finish_checkpoint(self) -> None:
        """Let the checkpoint that was begun and written count, and remove what only the one before it needs."""
        self._tree.check()
        pending = self._pending
        assert pending is not None, "no checkpoint was begun"
        if not self._is_alone:
            # Not synced: a start finds it under either name, and the next checkpoint syncs the directory.
            self._tree.rename(self._next_path, self._path)
        self.mark = pending.checkpoint.mark
        for one in pending.queues:
            if self._queues.get(one.queue.number) is one.queue:
                one.queue.finish_checkpoint(one)
        self.store.note_tables(pending.store_tables)
        self.store.forget(pending.garbage)
        for directory in pending.doomed:
            self._empty(directory)
        self._pending = None

    def abandon_checkpoint(self) -> None:
        """Let the checkpoint that was begun never count: its snapshot did not come to be.

        What ``begin_checkpoint`` returned must not be running.
        """
        pending = self._pending
        assert pending is not None, "no checkpoint was begun"
        assert not self._is_alone, "without a log, a checkpoint counts when it is written"
        self._tree.take_back(pending.unsynced)
        self._doomed.extend(pending.doomed)
        self._is_listed = False
        self._pending = None

    def close(self) -> None:
        """Let the files go; what was not made durable may be lost."""
        self._let_go()

    def _let_go(self) -> None:
        self._tree.close()
        self._lock.release()

    # Starting.

    def _refuse_foreign(self) -> None:
        """Raise ``PathRefused`` for a directory with files of others: a start removes what no checkpoint names."""
        if not self._files.is_directory(self._directory) or self._files.exists(self._path):
            return
        # Only what an interrupted first start of ours leaves: a name, a setting, and empty directories.
        ours = {LOCK, ".vhost", ".config", "queues", "msg_store_persistent"}
        found = [
            name
            for name in self._files.names(self._directory)
            if not name.endswith(TEMPORARY_SUFFIX)
        ]
        inside = [
            name
            for part in ("queues", "msg_store_persistent")
            if part in found
            for name in self._files.names(self._directory / part)
        ]
        if inside or not ours.issuperset(found):
            raise PathRefused(
                f"{self._directory}: holds files that no PagedStore wrote; nothing was changed: use a new directory"
            )

    def _configure(self, limits: IndexLimits) -> IndexLimits:
        """Make the directory what it must be; the stored number of entries in a segment counts."""
        path = self._directory / ".config"
        stored = read_whole(self._files, path, size_max=_CONFIG_SIZE_MAX)
        for name in ("queues", "msg_store_persistent"):
            self._tree.make_directory(self._directory / name)
        if stored is None:
            self._tree.replace(self._directory / ".vhost", [VHOST])
            self._tree.replace(path, [encode_config(limits.entry_count)])
            return limits
        try:
            return replace(limits, entry_count=decode_config(stored))
        except BadData as error:
            raise error.located(str(path)) from None

    def _recover(self, at_mark: AtMark) -> None:
        """Bring back the state that the files hold, and cut off what cannot be believed."""
        checkpoint = self._chosen(at_mark)
        self.mark = checkpoint.mark
        exactly = not self._is_alone
        self.store.recover(
            checkpoint.store_files,
            checkpoint.next_store_file,
            tables=checkpoint.store_tables,
            exactly=exactly,
        )
        for lengths in checkpoint.queues:
            queue = self._queue(lengths.number, lengths.name)
            queue.recover(lengths, exactly=exactly)
            queue.settle()
            self._queues[lengths.number] = queue
        self.store.settle()
        self._remove_unknown()
        if not exactly:
            # A process that was killed may have left what only the cache of the system holds.
            self._tree.sync(self._tree.unsynced)

    def _chosen(self, at_mark: AtMark) -> Checkpoint:
        """Return the checkpoint that is asked for, and see to it that no other can be from now on."""
        last, following = self._read(self._path), self._read(self._next_path)
        found = last or Checkpoint()
        if at_mark is LATEST:
            if following is not None or found.mark != NO_MARK:
                raise PathRefused(
                    f"{self._directory}: belongs to a node; start that, or use a copy"
                )
        else:
            wanted = NO_MARK if at_mark is None else at_mark
            if last is not None and last.mark == NO_MARK:
                raise PathRefused(f"{self._directory}: belongs to no node; use another directory")
            if following is not None and following.mark == wanted:
                self._tree.rename(self._next_path, self._path)
                found = following
            elif last is not None and last.mark != wanted:
                raise CorruptData(
                    "the pages are not those of the snapshot; nothing was changed: restore both from one"
                    " backup, or salvage with 'penstock repair'",
                    path=str(self._path),
                    expected="no snapshot"
                    if at_mark is None
                    else f"the snapshot of entry {wanted}",
                    found=f"that of entry {last.mark}",
                )
            elif following is not None:
                self._tree.remove(self._next_path)
        # What another checkpoint needs must not go while that one can come back. A process that was killed
        # may have left a name that only the cache of the system holds.
        self._tree.sync_directory(self._directory)
        return found

    def _read(self, path: Path) -> Checkpoint | None:
        stored = read_whole(self._files, path, size_max=CHECKPOINT_SIZE_MAX)
        try:
            return None if stored is None else decode_checkpoint(stored)
        except BadData as error:
            raise error.located(str(path)) from None

    @property
    def _path(self) -> Path:
        return self._directory / FILE_NAME

    @property
    def _next_path(self) -> Path:
        return self._directory / NEXT_FILE_NAME

    def _remove_unknown(self) -> None:
        """Remove what is left of queues that the checkpoint does not name."""
        known = {queue.directory.name for queue in self._queues.values()}
        inside = self._directory / "queues"
        for name in self._tree.names(inside):
            if name not in known:
                self._empty(inside / name)

    def _empty(self, directory: Path) -> None:
        for name in self._tree.names(directory):
            self._tree.remove(directory / name)
