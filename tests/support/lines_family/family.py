"""Tasks in a text file, one a line: queue, key and payload with tabs between them, below the line ``lines 1``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import CannotConvert, InvalidValue
from penstock.families.arrow import batch, same
from penstock.families.damage import place_row
from penstock.families.family import (
    Outcome,
    Progress,
    Row,
    Sending,
    Split,
    encode_payload,
    no_progress,
    queue_of,
    refuse_queue,
)
from penstock.families.follow import Follower
from penstock.families.options import At, Kind, Operation, Option, Values
from penstock.families.sources import File, Source, SourceQueue
from penstock.families.tables import ReadOptions, Table, schema_of
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue, Producer

if TYPE_CHECKING:
    import pyarrow as pa

HEADER: Final = b"lines 1"
NAME: Final = "lines"


class Line(NamedTuple):
    offset: int
    size: int
    task: tuple[str, int, bytes] | None  # None: the line is damaged


class Lines:
    name: Final = NAME
    title: Final = "Lines"
    formats: Final = ("lines-1",)
    options: Final = (
        Option(
            name="queue",
            kind=Kind.TEXT,
            metavar="NAME",
            help="Only this queue.",
            operations=frozenset({Operation.TASKS}),
        ),
        Option(
            name="largest_key",
            kind=Kind.NUMBER,
            metavar="N",
            help="Only tasks up to this key.",
            operations=frozenset({Operation.TASKS, Operation.TABLES}),
        ),
    )

    def detect(self, path: Path) -> bool:
        return path.suffix == ".lines" and path.is_file()

    def open(self, path: Path, values: Values) -> LinesFile:
        del values
        return LinesFile(path)

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        largest = options.own.get("largest_key")
        tasks = [
            task
            for task in LinesFile(Path(split.plan)).in_order()
            if options.filters.wants_queue(task[0]) and (largest is None or task[1] <= largest)
        ]
        found = {
            "queue": pa.array([task[0] for task in tasks], pa.string()),
            "key": pa.array([task[1] for task in tasks], pa.int64()),
            "payload": pa.array([task[2] for task in tasks], pa.binary()),
        }
        constants = {"source": split.source, "family": NAME, "op": "add", "status": "ok"}
        rest = {
            field.name: same(constants.get(field.name), len(tasks), field.type)
            for field in schema_of(options.table)
            if field.name not in found
        }
        yield batch(found | rest, columns)


class LinesFile:
    notice: Final = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def root(self) -> Path:
        return self.path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def lines(self) -> Iterator[Line]:
        offset = len(HEADER) + 1
        for text in self.path.read_bytes().split(b"\n")[1:]:
            if text:
                queue, _, rest = text.partition(b"\t")
                key, _, payload = rest.partition(b"\t")
                is_whole = key.isdigit()
                task = (queue.decode(), int(key), payload) if is_whole else None
                yield Line(offset, len(text), task)
            offset += len(text) + 1

    def in_order(self) -> list[tuple[str, int, bytes]]:
        tasks = [line.task for line in self.lines() if line.task is not None]
        return sorted(tasks, key=lambda task: task[:2])

    def damage(self) -> list[Row]:
        return [
            place_row(NAME, self.path, "damage", line.offset, line.size, "bad-line")
            | {"reason": "the key is not a number", "severity": "lost"}
            for line in self.lines()
            if line.task is None
        ]

    def describe(self, *, uncommitted: bool) -> Source:
        del uncommitted
        names = sorted({task[0] for task in self.in_order()})
        return Source(
            name=str(self.path),
            family=NAME,
            words="a file of lines",
            files=(File(shown=self.path.name, first=None, size=self.size),),
            has_log=False,
            queues=tuple(SourceQueue(name, None) for name in names),
        )

    def index_at(self, at: At) -> int:
        raise InvalidValue(f"{self.path}: has no state at {at}; omit --at")

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        progress(self.size)
        damage = self.damage()
        outcome.is_damaged = bool(damage)
        return {"family": NAME, "path": str(self.path), "tasks": len(self.in_order()), "harmless": [], "damage": damage}  # fmt: skip

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        progress(self.size)
        yield from self.damage()
        outcome.is_damaged = bool(self.damage())
        for line in self.lines():
            if line.task is not None:
                yield place_row(NAME, self.path, "entry", line.offset, line.size, "ok")

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        progress(self.size)
        only = queue_of(values)
        if only is not None and only not in {task[0] for task in self.in_order()}:
            refuse_queue(only)
        for queue, key, payload in self.in_order():
            if only in (None, queue) and key <= values.get("largest_key", key):
                yield {"queue": queue, "key": key, "payload": encode_payload(payload)}
        outcome.is_damaged = bool(self.damage())

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        progress(self.size)
        yield from self.damage()
        outcome.is_damaged = bool(self.damage())
        outcome.words.append(f"{len(self.in_order())} tasks, {len(self.damage())} damaged places")

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        del values
        self._write(out)
        progress(self.size)
        outcome.is_damaged = bool(self.damage())
        yield from self.damage()

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        del values, outcome
        if to not in Lines.formats:
            raise CannotConvert(f"lines are not written as {to}; choose lines-1")
        self._write(out)
        progress(self.size)
        return {"family": NAME, "path": str(out), "tasks": len(self.in_order())}

    def _write(self, out: Path) -> None:
        out.mkdir()
        rows = [b"%b\t%d\t%b" % (q.encode(), key, payload) for q, key, payload in self.in_order()]
        (out / self.path.name).write_bytes(b"\n".join([HEADER, *rows, b""]))

    def count_parts(self, values: Values) -> int:
        del values
        return 1

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        from penstock.families.beats.ingest import Left

        del values, outcome, part
        progress(self.size)
        for queue in sorted({task[0] for task in self.in_order()}):
            tasks = [task for task in self.in_order() if task[0] == queue]
            request = Enqueue(
                queue=QueueName(queue),
                keys=[task[1] for task in tasks],
                payloads=[task[2] for task in tasks],
                producer=Producer(hashlib.sha256((producer or queue).encode()).digest()[:16], 1),
            )
            yield Sending(
                queue=QueueName(queue), requests=iter([request]), left=Left(), owner=f"queue {queue!r}"
            )  # fmt: skip

    def plan(self, options: ReadOptions) -> list[Split]:
        if options.table is Table.CHANGES:
            raise InvalidValue(f"{self.path}: lines have no changes")
        return [Split(family=NAME, source=str(self.path), size=self.size, plan=str(self.path))]

    def follow(self, options: ReadOptions) -> Follower:
        del options
        raise InvalidValue(f"{self.path}: does not grow; read it instead")


FAMILY: Final = Lines()
