"""The tasks of paged queues at rest: those that a snapshot names and its pages hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import CorruptData, PathRefused, StorageFailed
from penstock.model import QueueName, SnapshotPoint
from penstock.queues.replay import Queues
from penstock.storage.files import FILES
from penstock.storage.paged.task_pages import DIRECTORY, TaskShelf
from penstock.storage.read_only import ReadOnlyFiles

_READ_MAX: Final = 4096  # tasks read together


class PagedTasks(NamedTuple):
    """Consecutive tasks of a queue."""

    queue: QueueName
    first_id: int
    keys: array[int]
    payloads: list[bytes]


def read_pages(
    snapshot: Path, point: SnapshotPoint, paged: Mapping[int, QueueName]
) -> Iterator[PagedTasks]:
    """Yield the tasks of paged queues, given by number, as they were at a snapshot.

    Raises ``BadData`` if the pages are damaged, missing, or of another moment than the snapshot.
    """
    shelf: TaskShelf | None = None
    try:
        shelf = TaskShelf(ReadOnlyFiles(FILES), snapshot.parent, point)
        for number, name in paged.items():
            pages = shelf.open(number, name, is_new=False)
            for first, keys, _ in pages.stored():
                for start in range(0, len(keys), _READ_MAX):
                    some = keys[start : start + _READ_MAX]
                    ids = range(first + start, first + start + len(some))
                    yield PagedTasks(name, ids[0], some, pages.read(ids))
    except (StorageFailed, PathRefused, OSError) as error:
        raise CorruptData(str(error), path=str(snapshot.parent / DIRECTORY)) from None
    finally:
        if shelf is not None:
            shelf.close()


def restore_pages(
    snapshot: Path, point: SnapshotPoint, queues: Queues, numbers: Mapping[int, QueueName]
) -> None:
    """Put the tasks of paged queues in their place; here they are all in memory. Raises ``BadData``."""
    paged = {
        number: name
        for number, name in numbers.items()
        if name in queues.by_name and queues.by_name[name].is_paged
    }
    for name, first, keys, payloads in read_pages(snapshot, point, paged):
        queue = queues.by_name[name]
        for task_id, (key, payload) in enumerate(zip(keys, payloads, strict=True), first):
            queue.restore(task_id, key, payload)
        if first + len(keys) - 1 > queue.last_id:
            raise CorruptData(f"the pages hold tasks that queue {name!r} never had")
