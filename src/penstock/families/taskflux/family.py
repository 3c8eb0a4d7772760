"""The family of TaskFlux's files, which are the node's own: a directory, or one file of it, of every generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidOption
from penstock.families.family import Files, Split
from penstock.families.options import FILES, Kind, Operation, Option, Values
from penstock.families.tables import ReadOptions
from penstock.formats.taskflux.variant import VARIANTS

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "taskflux"
TITLE: Final = "TaskFlux"
GENERATION_MAX: Final = 3

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
        from penstock.families.taskflux.files import TaskFluxFiles
        from penstock.families.taskflux.location import resolve
        from penstock.formats.taskflux.generation import Generation

        number = values.get("generation")
        if number is not None and number > GENERATION_MAX:
            raise InvalidOption("generation", f"{number} is not 1, 2 or 3")
        return TaskFluxFiles(resolve(path, None if number is None else Generation(number)))

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.taskflux.tables.growth import RangePlan

        if isinstance(split.plan, RangePlan):
            from penstock.families.taskflux.tables.ranges import read_range

            return read_range(split.plan, options, columns)
        from penstock.families.taskflux.tables.scan import read_split

        return read_split(split, options, columns)


FAMILY: Final = TaskFlux()
