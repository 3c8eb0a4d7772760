"""The family of TaskFlux's files, which are the node's own: a directory, or one file of it, of every generation.

What the operations need is imported when they run: every command loads every family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CannotConvert, InvalidOption, PathRefused
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
from penstock.families.follow import Follower, LogFollower
from penstock.families.options import FILES, At, Kind, Operation, Option, Values, entry_at
from penstock.families.payloads import payload_fields
from penstock.families.sources import Source
from penstock.families.tables import ReadOptions
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import VARIANTS, Variant

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.families.taskflux.location import Target

NAME: Final = "taskflux"
TITLE: Final = "TaskFlux"
GENERATION_MAX: Final = 3
RECORDS: Final = "penstock-4"  # what these files become besides their own formats

OPTIONS: Final = (
    Option(
        name="at",
        kind=Kind.AT,
        metavar="INDEX",
        help="The state after this entry; entries count from 0.",
        operations=frozenset({Operation.TASKS}),
    ),
    Option(
        name="uncommitted",
        kind=Kind.FLAG,
        help="Include entries behind the commit index; for repair also records behind the end of a"
        " generation 2 log that may be entries of it, or stale.",
        operations=frozenset({Operation.TASKS, Operation.REPAIR, Operation.CONVERT}),
    ),
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue; '' is the default queue.",
        operations=frozenset({Operation.TASKS}),
    ),
    Option(
        name="generation",
        kind=Kind.NUMBER,
        lowest=1,
        metavar="N",
        help="Which files to read, 1, 2 or 3, if PATH holds two sets of them.",
        operations=FILES | {Operation.PIPELINE},
    ),
)


class TaskFluxFiles:
    """A directory or a file of TaskFlux, or of ours."""

    def __init__(self, target: Target) -> None:
        self.path = target.path
        self._target = target

    @property
    def root(self) -> Path:
        from penstock.storage.directory import locate_all
        from penstock.storage.files import FILES as STORED

        home = self._target.home
        if home is None or len(locate_all(STORED, home)) < 2:
            return home or self.path
        # Both sets are in one directory. The directory of segments stands for generation 3; generation 2 has no such name.
        if self._target.generation is Generation.THREE and self._target.companions is not None:
            return self._target.companions
        raise PathRefused(
            f"{home}: tables do not read generation 2 beside segments of generation 3; convert it first:"
            f" penstock convert {self.path} --generation 2 --to taskflux-3 --out DIR"
        )

    @property
    def notice(self) -> str | None:
        return self._target.notice

    @property
    def size(self) -> int:
        return self._target.size

    def describe(self, *, uncommitted: bool) -> Source:
        from penstock.families.taskflux.tables.plan import describe

        return describe(str(self.path), self._target, uncommitted=uncommitted)

    def index_at(self, at: At) -> int:
        from penstock.families.taskflux.read import survey
        from penstock.families.taskflux.tables.plan import refuse_beyond

        index = entry_at(at, TITLE)
        refuse_beyond(survey(self._target), index)
        return index

    def inspect(self, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.taskflux.verify import inspect

        row = inspect(self._target, progress=progress)
        outcome.is_damaged = bool(row["damage"])
        return row

    def dump(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.taskflux.rows import dump

        for row in dump(self._target, progress=progress):
            outcome.is_damaged = outcome.is_damaged or is_damage(row)
            yield row

    def tasks(self, values: Values, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.taskflux.read import read_history
        from penstock.families.taskflux.replay import replay

        only = queue_of(values)
        at = None if "at" not in values else entry_at(values["at"], TITLE)
        history = read_history(self._target, progress=progress)
        state = replay(history, at=at, uncommitted="uncommitted" in values)
        if only is not None and only not in state.queues.by_name:
            refuse_queue(only)
        outcome.words += [words for words in (state.tail, state.damage, state.undecided) if words]
        outcome.is_damaged = state.tail is not None or state.damage is not None
        has_ids = self._target.generation is Generation.THREE
        for name in sorted(state.queues.by_name):
            if only is not None and name != only:
                continue
            for task_id, key, payload in state.queues.by_name[name].in_order():
                row: Row = {"queue": name, "key": key} | payload_fields(payload)
                if has_ids:
                    row["id"] = task_id
                yield row

    def verify(self, outcome: Outcome, progress: Progress) -> Iterator[Row]:
        from penstock.families.taskflux.verify import Summary, verify

        summary = Summary()
        yield from verify(self._target, progress=progress, summary=summary)
        held = f"{summary.entries} entries, {summary.queues} queues, {summary.tasks} tasks"
        outcome.words.append(f"{held}, {summary.damage.words}")
        outcome.is_damaged = summary.damage.damaged > 0

    def repair(
        self, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Iterator[Row]:
        from penstock.families.taskflux.repair import Repaired, repair

        result = Repaired()
        uncommitted = "uncommitted" in values
        yield from repair(self._target, out, result, uncommitted=uncommitted, progress=progress)
        outcome.is_damaged = result.left > 0
        held = (
            f"{result.entries} entries taken along, {result.tasks} tasks in {result.queues} queues"
        )
        outcome.words += dict.fromkeys(result.notes)
        outcome.words.append(f"{out}: {held}; {result.left} places left behind")

    def convert(
        self, to: str, out: Path, values: Values, outcome: Outcome, progress: Progress
    ) -> Row:
        from penstock.families.taskflux.convert import convert
        from penstock.families.taskflux.read import read_history

        if to == RECORDS:
            return self._upgrade(out, values, outcome, progress)
        variant = variant_of(to, TITLE)
        history = read_history(self._target, progress=progress)
        done = convert(history, variant, out, uncommitted="uncommitted" in values)
        if done.dropped_extensions or done.dropped_notes:
            outcome.words.append(
                f"{done.dropped_extensions} extensions and {done.dropped_notes} notes were dropped: delays, expiries,"
                " attempts, queue options and the memory of retries do not survive a conversion"
            )
        if done.left_uncommitted:
            outcome.words.append(
                f"{done.left_uncommitted} uncommitted entries were left out; --uncommitted takes them along"
            )
        outcome.words += [words for words in (done.tail, done.undecided) if words]
        outcome.is_damaged = done.tail is not None
        row = written(variant, out, done.entries, done.snapshot_index, done.queues, done.tasks)
        return row | {
            "left_uncommitted": done.left_uncommitted,
            "dropped_extensions": done.dropped_extensions,
            "dropped_notes": done.dropped_notes,
        }

    def _upgrade(self, out: Path, values: Values, outcome: Outcome, progress: Progress) -> Row:
        from penstock.families.penstock.new_directory import written_row
        from penstock.families.penstock.upgrade import upgrade
        from penstock.families.taskflux.read import read_history

        history = read_history(self._target, progress=progress)
        done = upgrade(history, out, uncommitted="uncommitted" in values)
        outcome.words += done.words
        outcome.is_damaged = done.is_damaged
        row = written_row(out, done.entries, done.snapshot_index, done.queues, done.tasks)
        return row | {"left_uncommitted": done.left_uncommitted}

    def count_parts(self, values: Values) -> int:
        del values
        return 0

    def ingest(
        self,
        values: Values,
        outcome: Outcome,
        *,
        producer: str | None = None,
        part: int | None = None,
        progress: Progress = no_progress,
    ) -> Iterator[Sending]:
        del values, outcome, producer, part, progress
        raise PathRefused(
            f"{self.path}: --from does not read files of TaskFlux; use 'penstock tasks PATH | penstock enqueue --json',"
            " or 'penstock pipeline migrate', which can be repeated"
        )

    def plan(self, options: ReadOptions) -> list[Split]:
        from penstock.families.taskflux.tables.plan import plan_source

        return plan_source(str(self.path), self._target, options)

    def follow(self, options: ReadOptions) -> Follower:
        from penstock.families.taskflux.tables.growth import GrowingLog

        return LogFollower(GrowingLog(self.path), options)


class TaskFlux:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = tuple(VARIANTS)

    def detect(self, path: Path) -> bool:
        del path
        return True  # the registry asks this family last, and ``open`` names what is wrong

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.taskflux.location import resolve

        number = values.get("generation")
        if number is not None and number > GENERATION_MAX:
            raise InvalidOption("generation", f"{number} is not 1, 2 or 3")
        return TaskFluxFiles(resolve(path, None if number is None else Generation(number)))

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.taskflux.tables.growth import RangePlan, read_range

        if isinstance(split.plan, RangePlan):
            return read_range(split.plan, options, columns)
        from penstock.families.taskflux.tables.scan import read_split

        return read_split(split, options, columns)


FAMILY: Final = TaskFlux()


def variant_of(to: str, source: str) -> Variant:
    """Return the variant of a format. Raises ``CannotConvert`` for a format that files of ``source`` do not become."""
    if to not in VARIANTS:
        raise CannotConvert(
            f"files of {source} are not written as {to}; choose one of {', '.join(VARIANTS)}"
        )
    return VARIANTS[to]


def written(
    variant: Variant,
    out: Path,
    entries: int,
    snapshot_index: int | None,
    queues: int,
    tasks: int,
) -> Row:
    """Return the row of a conversion into this family."""
    return {
        "family": NAME,
        "generation": int(variant.generation),
        "path": str(out),
        "entries": entries,
        "snapshot_index": snapshot_index,
        "queues": queues,
        "tasks": tasks,
    }
