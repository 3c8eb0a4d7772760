"""Queues larger than memory in a directory of one process, without a node: ``PagedStore``.

The files are those of RabbitMQ's classic queues: a journal and segments for each queue, and one message store
(docs/formats/paged.md). Needs the extra ``paged``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple, Self

from penstock.errors import (
    InvalidQueueName,
    InvalidValue,
    PayloadTooLarge,
    QueueMissing,
    StorageError,
    needing,
)
from penstock.formats.rabbitmq.checkpoint import SEQUENCE_END
from penstock.model import INT32_MAX, QueueName
from penstock.storage.files import OsFiles, checked_directory, opening_directory
from penstock.storage.paged.flush_rules import FlushReason, FlushRules, steady_clock_ms
from penstock.storage.paged.limits import (
    FILE_SIZE_LIMIT,
    JOURNAL_ENTRIES_MAX,
    IndexLimits,
    PagedLimits,
    default_memory,
)
from penstock.storage.paged.task_pages import TaskPages

if TYPE_CHECKING:
    from penstock.storage.paged.queue_index import QueueIndex

__all__ = ["PagedMessage", "PagedStore"]


class PagedMessage(NamedTuple):
    """A message of a ``PagedStore``."""

    number: int  # of the message in its queue; messages are delivered in this order
    body: bytes
    is_redelivered: bool  # whether an earlier store on the directory delivered it


class PagedStore:
    """Durable first-in, first-out queues in a directory, whose messages stay on the disk.

    Opening a directory recovers it: after a crash it holds every message that was made durable and not acked. A message
    is delivered once by a store, and again by the next store that opens the directory, until it is acked. One process
    has a directory open at a time. Threads may share a store.

    Messages, delivers and acks go to the journal of their queue. A flush moves them to the queue's segments and
    begins a new journal. A queue is flushed after a second without an action (when the store is next called), above
    ``queue_index_max_journal_entries`` actions (65,536), and when the unflushed actions of all queues need more than
    ``memory`` bytes (a tenth of the machine's or the cgroup's memory); then the queues with the most actions are
    flushed first. ``msg_store_file_size_limit``: the size at which a file of messages of 4 KiB and more is complete
    (16 MiB). Raises ``InvalidValue``, ``PathRefused``, ``DirectoryLocked``, ``BadData`` if files are damaged, and
    ``DependencyMissing``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        queue_index_max_journal_entries: int = JOURNAL_ENTRIES_MAX,
        msg_store_file_size_limit: int = FILE_SIZE_LIMIT,
        memory: int | None = None,
    ) -> None:
        limits = PagedLimits(
            journal_entries_max=queue_index_max_journal_entries,
            store_file_size=msg_store_file_size_limit,
            memory=default_memory() if memory is None else memory,
        )
        home = checked_directory(path, "path")
        with needing("paged", f"{home}: a paged store"):
            from penstock.storage.paged.directory import LATEST, PagedDirectory
        with opening_directory(home):
            self._directory = PagedDirectory(
                OsFiles(),
                home,
                at_mark=LATEST,
                limits=IndexLimits(journal_entries_max=limits.journal_entries_max),
                store_file_limit=limits.store_file_size,
            )
        self._lock = RLock()
        self._is_closed = False
        self._rules = FlushRules(memory=limits.memory, clock_ms=steady_clock_ms)
        self._queues: dict[str, _Queue] = {}
        self._flushed = 0  # flushes that a checkpoint followed
        try:
            for index in self._directory.queues:
                self._queues[index.name.decode("ascii")] = _Queue(index, self._rules)
                self._rules.note_actions(index)
            self._settle(sync=False)
        except BaseException:
            self._directory.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def queues(self) -> dict[str, int]:
        """The names of the queues, each with the number of messages that are not acked."""
        with self._lock:
            return {name: len(queue.index) for name, queue in self._queues.items()}

    @property
    def flushes(self) -> dict[str, int]:
        """How many queues were flushed since the store was opened, by reason: idle, count, memory, checkpoint.

        The last counts calls of ``flush``.
        """
        with self._lock:
            return {reason.value: count for reason, count in self._rules.counts.items()}

    def publish(self, queue: str, bodies: Sequence[bytes], *, sync: bool = True) -> range:
        """Add messages at the end of a queue, which is created if needed, and return their numbers.

        With ``sync`` the call returns when they are durable, together with everything done before. Without, they
        are durable after the next call that syncs. Raises ``InvalidQueueName``, ``PayloadTooLarge``,
        ``StorageFailed``.
        """
        longest = max(map(len, bodies), default=0)
        if longest > INT32_MAX:
            raise PayloadTooLarge(f"a body of {longest} bytes; at most {INT32_MAX} are allowed")
        with self._lock:
            self._refuse_closed()
            found = self._queues.get(queue)
            if found is None:
                found = self._create(QueueName(queue))
            first = found.index.next_sequence
            if bodies:
                found.pages.add(first, [0] * len(bodies), bodies)
            self._settle(sync=sync)
        return range(first, first + len(bodies))

    def deliver(self, queue: str, count: int = 1) -> list[PagedMessage]:
        """Return the next messages of a queue, ``count`` at most, that this store has not delivered yet.

        The deliver is noted in the journal and durable after the next call that syncs. Raises ``QueueMissing``,
        ``InvalidValue``, and ``StorageFailed`` if a message cannot be read.
        """
        if count < 0:
            raise InvalidValue(f"{count} messages cannot be delivered; count is 0 or more")
        with self._lock:
            self._refuse_closed()
            found = self._find(queue)
            numbers, were_delivered = found.index.next_unacked(found.following, count)
            if not len(numbers):
                return []
            bodies = found.pages.read(numbers.tolist())
            found.index.deliver_many(numbers)
            found.following = int(numbers[-1]) + 1
            self._rules.note_actions(found.index)
            self._settle(sync=False)
        return list(map(PagedMessage, numbers.tolist(), bodies, were_delivered.tolist()))

    def ack(self, queue: str, numbers: Iterable[int], *, sync: bool = True) -> None:
        """Remove messages by number. ``sync``: as for ``publish``.

        Raises ``QueueMissing``, ``InvalidValue`` if a number is given twice or the queue has no such message (then
        none is removed), and ``StorageFailed``.
        """
        import numpy as np

        listed = list(numbers)
        with self._lock:
            self._refuse_closed()
            found = self._find(queue)
            known = [number for number in listed if 0 <= number < SEQUENCE_END]
            is_there = found.index.holds(np.array(known, dtype=np.int64))
            if len(known) < len(listed) or not is_there.all() or len(set(listed)) < len(listed):
                raise InvalidValue(
                    f"queue {queue!r}: a number is given twice, or is not that of a message that waits for its ack"
                )
            found.pages.remove(listed)
            self._settle(sync=sync)

    def sync(self) -> None:
        """Return when everything done so far is durable. Raises ``StorageFailed``."""
        with self._lock:
            self._refuse_closed()
            self._settle(sync=True)

    def flush(self) -> None:
        """Flush every queue, begin new journals, and remove files that are not needed any more.

        Everything done before is durable then. Raises ``StorageFailed``.
        """
        with self._lock:
            self._refuse_closed()
            self._rules.flush_all(FlushReason.CHECKPOINT)
            self._checkpoint()

    def close(self) -> None:
        """Make everything durable and release the directory. Harmless when repeated."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._directory.sync()
            finally:
                self._directory.close()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StorageError("the store is closed; open its directory again")

    def _find(self, name: str) -> _Queue:
        found = self._queues.get(name)
        if found is None:
            raise QueueMissing(f"there is no queue {name!r}; publish to it first")
        return found

    def _create(self, name: QueueName) -> _Queue:
        if not name:
            raise InvalidQueueName("a queue of a paged store has a name of 1 to 255 characters")
        number = 1 + max((queue.index.number for queue in self._queues.values()), default=0)
        index = self._directory.open_queue(number, name.encode("ascii"))
        found = self._queues[name] = _Queue(index, self._rules)
        return found

    def _settle(self, *, sync: bool) -> None:
        """Flush queues that are idle; begin new journals where queues were flushed, else sync if asked for."""
        self._rules.flush_idle()
        if self._rules.total > self._flushed:
            self._checkpoint()
        elif sync:
            self._directory.sync()

    def _checkpoint(self) -> None:
        self._directory.merge()
        self._directory.checkpoint()
        self._rules.note_checkpoint()
        self._flushed = self._rules.total


class _Queue:
    """An open queue, and how far it was delivered."""

    __slots__ = ("following", "index", "pages")

    def __init__(self, index: QueueIndex, rules: FlushRules) -> None:
        self.index = index
        self.pages = TaskPages(index, QueueName(index.name.decode("ascii")), rules)
        self.following = 0  # the number that the next deliver begins at
