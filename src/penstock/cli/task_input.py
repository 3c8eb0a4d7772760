"""Where ``penstock enqueue`` gets its tasks: arguments, files, lines, JSON lines; in bounded memory.

What cannot be read ends the input in place of an exception: the tasks before it are sent all the same, and
the caller says ``problem`` at the end.
"""

from __future__ import annotations

import json
import os
import select
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.errors import InvalidValue, PathMissing, PenstockError
from penstock.families.family import LEFT_OUT
from penstock.model import INT64_MAX, INT64_MIN, RESERVED_PREFIX, QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX

KeyOption = Annotated[
    int | None, typer.Option("--key", metavar="N", help="Smaller comes out first; 0 if none.")
]
DelayOption = Annotated[
    float | None, typer.Option("--delay", metavar="SECONDS", help="Not delivered before.")
]
TtlOption = Annotated[float | None, typer.Option("--ttl", metavar="SECONDS", help="Expires after.")]

STDIN: Final = Path("-")

CHUNK_COUNT: Final = 100_000
"""Tasks handed to the client at once: it keeps their ids, a few megabytes, and nothing else."""

BLOCK_SIZE: Final = 2**18

ROW_SIZE_MAX: Final = 6 * PAYLOAD_SIZE_MAX
"""A JSON line: the largest payload takes four thirds of its size in base64, and up to twice its size as text and as JSON."""


class Shape(Enum):
    """What a file is to ``enqueue``."""

    WHOLE = "one task"
    LINES = "a task a line"
    ROWS = "a task a JSON line"


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be."""

    queue: str
    key: int
    payload: bytes


class BadInput(PenstockError):
    """Input that is no task."""


class Feed:
    """Tasks in chunks that the client is given one after the other.

    A chunk ends where the queue changes, and where the next task is not there yet: those that were read must
    not wait for it, as in ``tail --follow log | penstock enqueue --lines``.
    """

    def __init__(self, tasks: Iterable[NewTask], is_waiting: Callable[[], bool]) -> None:
        self._tasks = iter(tasks)
        self._is_waiting = is_waiting
        self._head: NewTask | None = None
        self.count = 0  # handed out
        self.problem: str | None = None  # why the input ended before its end

    def next_queue(self) -> str | None:
        """Return the queue of the next chunk, ``None`` at the end."""
        if self._head is None:
            self._head = self._read()
        return None if self._head is None else self._head.queue

    def chunk(self) -> Iterator[NewTask]:
        """Yield the tasks of the next chunk."""
        queue = self.next_queue()
        end = self.count + CHUNK_COUNT
        while self._head is not None and self._head.queue == queue and self.count < end:
            task, self._head = self._head, None
            self.count += 1
            yield task
            if self._is_waiting():
                return
            self._head = self._read()

    def _read(self) -> NewTask | None:
        try:
            return next(self._tasks, None)
        except BadInput as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"{error.filename or 'the input'}: {error.strerror or error}"
        return None


class Reading:
    """Reads files one after the other into tasks."""

    def __init__(
        self, paths: Sequence[Path], shape: Shape, *, queue: str | None, key: int | None
    ) -> None:
        self._paths = paths
        self._shape = shape
        self._queue = queue  # for all tasks; None: as their rows say
        self._key = key
        self._lines: Lines | None = None
        self.left_out = 0  # rows about a node's own books
        self.queues_left_out = 0  # rows about queues that 'penstock tasks' could not read

    def is_waiting(self) -> bool:
        return self._lines is not None and self._lines.is_waiting()

    def __iter__(self) -> Iterator[NewTask]:
        for path in self._paths:
            with _opened(path) as stream:
                if self._shape is Shape.WHOLE:
                    yield self._task(_whole(stream, path))
                else:
                    yield from self._of_lines(stream, path)

    def _of_lines(self, stream: BufferedReader, path: Path) -> Iterator[NewTask]:
        is_rows = self._shape is Shape.ROWS
        self._lines = Lines(stream, path, ROW_SIZE_MAX if is_rows else PAYLOAD_SIZE_MAX)
        for number, line in enumerate(self._lines, 1):
            if not is_rows:
                yield self._task(line)
                continue
            try:
                task = self._of_row(line)
            except (ValueError, InvalidValue) as error:
                raise BadInput(f"{_shown(path)}, line {number}: {error}") from None
            if task is not None:
                yield task
        self._lines = None

    def _task(self, payload: bytes) -> NewTask:
        return NewTask(self._queue or "", self._key or 0, payload)

    def _of_row(self, line: bytes) -> NewTask | None:
        """Return the task of a row, ``None`` for what a node keeps for itself. Raises ``InvalidValue`` and ``ValueError``."""
        try:
            row: Any = json.loads(line)
        except RecursionError:
            raise InvalidValue("JSON that is nested too deep") from None
        if isinstance(row, dict) and row.get("status") == LEFT_OUT and "payload" not in row:
            self.queues_left_out += 1
            return None
        if not isinstance(row, dict) or not isinstance(row.get("payload"), str):
            raise InvalidValue('a task is a JSON object with its bytes as base64 in "payload"')
        queue, key = row.get("queue", ""), row.get("key", 0)
        if not isinstance(queue, str) or type(key) is not int:
            raise InvalidValue('"queue" is a string and "key" a whole number')
        if queue.startswith(RESERVED_PREFIX):
            self.left_out += 1
            return None
        if not INT64_MIN <= key <= INT64_MAX:
            raise InvalidValue(f"key {key} is beyond 64 bits")
        try:
            payload = b64decode(row["payload"], validate=True)
        except ValueError as error:
            raise InvalidValue(f"the payload is not base64: {error}") from None
        if len(payload) > PAYLOAD_SIZE_MAX:
            raise InvalidValue(_too_large("payload"))
        queue = QueueName(queue) if self._queue is None else self._queue
        return NewTask(queue, key if self._key is None else self._key, payload)


class Lines:
    """The lines of a stream without their newlines; holds one block and one line."""

    def __init__(self, stream: BufferedReader, path: Path, size_max: int) -> None:
        self._stream = stream
        self._path = path
        self._size_max = size_max
        self._ready: deque[bytes] = deque()
        try:
            self._descriptor: int | None = stream.fileno()
        except OSError:  # memory in place of a file
            self._descriptor = None

    def is_waiting(self) -> bool:
        """Return whether the next line would have to be waited for."""
        if self._ready or self._descriptor is None:
            return False
        readable, _, _ = select.select([self._descriptor], [], [], 0)
        return not readable

    def __iter__(self) -> Iterator[bytes]:
        begun: list[bytes] = []  # the parts of a line that has not ended
        size = 0
        while block := self._stream.read1(BLOCK_SIZE):
            first, *others = block.split(b"\n")
            begun.append(first)
            size += len(first)
            if size > self._size_max:
                raise BadInput(f"{_shown(self._path)}: {_too_large('line', self._size_max)}")
            if not others:
                continue
            self._ready.append(b"".join(begun))
            self._ready.extend(others)
            begun = [self._ready.pop()]
            size = len(begun[0])
            while self._ready:
                yield self._ready.popleft()
        if size:
            yield b"".join(begun)


def refuse_missing(paths: Sequence[Path]) -> None:
    """Raise ``PathMissing`` for a path that is not there, before anything was sent."""
    for path in paths:
        if path != STDIN and not path.exists():
            raise PathMissing(f"{path}: no such file")


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    if path == STDIN:
        stream: BufferedReader = sys.stdin.buffer  # type: ignore[assignment]
        yield stream
    else:
        with path.open("rb") as file:
            yield file


def _whole(stream: BufferedReader, path: Path) -> bytes:
    payload = stream.read(PAYLOAD_SIZE_MAX + 1)
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise BadInput(f"{_shown(path)}: {_too_large('payload')}")
    return payload


def _too_large(what: str, size_max: int = PAYLOAD_SIZE_MAX) -> str:
    return f"a {what} is above {size_max} bytes, more than a node takes"


def _shown(path: Path) -> str:
    return "stdin" if path == STDIN else str(path)


def of_arguments(payloads: Sequence[str], *, queue: str | None, key: int | None) -> list[NewTask]:
    """Return the tasks that stand on the command line, byte for byte as they were typed."""
    return [NewTask(queue or "", key or 0, os.fsencode(payload)) for payload in payloads]
