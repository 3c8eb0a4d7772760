"""Pages in memory, which check what a queue asks of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from penstock.model import QueueName


class MemoryPages:
    """The tasks of one queue."""

    def __init__(self) -> None:
        self.tasks: dict[int, tuple[int, bytes]] = {}
        self.last = 0

    def add(self, first: int, keys: Sequence[int], payloads: Sequence[bytes]) -> None:
        assert first > self.last
        self.last = first + len(keys) - 1
        self.tasks.update(enumerate(zip(keys, payloads, strict=True), first))

    def read(self, ids: Sequence[int]) -> list[bytes]:
        return [self.tasks[task_id][1] for task_id in ids]

    def remove(self, ids: Sequence[int]) -> None:
        for task_id in ids:
            del self.tasks[task_id]

    def stored(self) -> Iterator[tuple[int, array[int], array[int]]]:
        run: list[int] = []
        for task_id in [*sorted(self.tasks), None]:
            if run and task_id != run[-1] + 1:
                tasks = [self.tasks[one] for one in run]
                keys, sizes = [key for key, _ in tasks], [len(data) for _, data in tasks]
                yield run[0], array("q", keys), array("I", sizes)
                run = []
            if task_id is not None:
                run.append(task_id)


class MemoryShelf:
    """The pages of all queues."""

    def __init__(self) -> None:
        self.pages: dict[int, MemoryPages] = {}

    def open(self, number: int, name: QueueName, *, is_new: bool) -> MemoryPages:
        assert name
        assert is_new == (number not in self.pages)
        return self.pages.setdefault(number, MemoryPages())

    def drop(self, number: int) -> None:
        del self.pages[number]

    def refusal(self) -> str | None:
        return None
