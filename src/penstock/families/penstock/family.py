"""The family of Penstock's own files, generation 4: a directory, its log or snapshots, or one file of them.

What the operations need is imported when they are used, so that commands start quickly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.families.damage import is_damage
from penstock.families.family import (
    Files,
    Outcome,
    Progress,
    Row,
    Sending,
    Split,
    no_progress,
    queue_of,
    refuse_queue,
)
from penstock.families.options import At, Kind, Operation, Option, Values

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.families.follow import Follower
    from penstock.families.penstock.location import Target
    from penstock.families.sources import Source
    from penstock.families.tables import ReadOptions

NAME: Final = "penstock"
TITLE: Final = "Penstock"
FORMAT: Final = "penstock-4"
GENERATION: Final = 4

OPTIONS: Final = (
    Option(
        name="at",
        kind=Kind.AT,
        metavar="INDEX|TIME|AGE",
        help="The state after this entry, or after the last one up to a time such as 2026-11-17T02:00:00Z or -2h.",
        operations=frozenset({Operation.TASKS}),
    ),
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue; '' is the default queue.",
        operations=frozenset({Operation.TASKS, Operation.INGEST}),
    ),
    Option(
        name="drop",
        kind=Kind.FLAG,
        help="Drop what the other format cannot hold, and list it, instead of refusing the conversion.",
        operations=frozenset({Operation.CONVERT}),
    ),
)


class Penstock:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = (FORMAT,)

    def detect(self, path: Path) -> bool:
        from penstock.families.penstock.location import detect

        return detect(path)

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.penstock.location import resolve

        del values
        return PenstockFiles(resolve(path))

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.penstock.tables.read import read_split

        return read_split(split, options, columns)


class PenstockFiles:
    """A directory of a node, its log or its snapshots, or one file of them."""

    notice: Final = None

    def __init__(self, target: Target) -> None:
        self.path = target.path
        self._target = target

    @property
    def root(self) -> Path:
        return self.path

    @property
    def size(self) -> int:
        return self._target.size

    def describe(self, *, uncommitted: bool) -> Source:
        from penstock.families.penstock.tables.description import describe

        return describe(str(self.path), self._target, uncommitted=uncommitted)

    def index_at(self, at: At) -> int:
        from penstock.families.penstock.read import survey
        from penstock.families.penstock.replay import check_reached, index_at

        history = survey(self._target)
        index = index_at(history, at)
        check_reached(history, index)
        return index

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.penstock.verify import inspect

        row = inspect(self._target, progress=progress)
        outcome.is_damaged = bool(row["damage"])
        return row

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.penstock.dump import dump

        for row in dump(self._target, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.penstock.read import survey
        from penstock.families.penstock.replay import replay
        from penstock.families.penstock.tasks import task_rows

        only = queue_of(values)
        found = replay(survey(self._target, progress=progress), at=values.get("at"))
        if only is not None and only.encode() not in found.state.by_name:
            refuse_queue(only)
        outcome.words += found.words
        outcome.is_damaged = found.is_damaged
        yield from task_rows(found.state, only)

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.penstock.verify import Summary, verify

        summary = Summary()
        yield from verify(self._target, progress=progress, summary=summary)
        held = f"{summary.entries} entries"
        if summary.state is not None:
            held += f", {summary.queues} queues, {summary.tasks} tasks"
        outcome.words.append(f"{held}, {summary.damage.words}")
        outcome.is_damaged = summary.damage.damaged > 0

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        from penstock.families.penstock.repair import Repaired, repair

        del values
        result = Repaired()
        yield from repair(self._target, out, result, progress=progress)
        outcome.is_damaged = result.left > 0
        outcome.words += result.notes
        held = (
            f"{result.entries} entries taken along, {result.tasks} tasks in {result.queues} queues"
        )
        outcome.words.append(f"{out}: {held}; {result.left} places left behind")

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        from penstock.families.penstock.convert import convert

        return convert(self._target, to, out, outcome, drop="drop" in values, progress=progress)

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
        from penstock.families.penstock.ingest import ingest

        del part
        return ingest(self._target, values, outcome, producer=producer, progress=progress)

    def plan(self, options: ReadOptions) -> list[Split]:
        from penstock.families.penstock.tables.plan import plan_source

        return plan_source(str(self.path), self._target, options)

    def follow(self, options: ReadOptions) -> Follower:
        from penstock.families.follow import LogFollower
        from penstock.families.penstock.tables.growth import GrowingLog

        return LogFollower(GrowingLog(self.path), options, origin=1)


FAMILY: Final = Penstock()
