"""Reading a range of a growing log's entries into rows, on executors: all of them, or an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import Compacted, CorruptData
from penstock.families.tables import ReadOptions
from penstock.families.taskflux.tables.growth import GrowingLog, RangePlan
from penstock.families.taskflux.tables.plan import LogPlan, layout_of
from penstock.families.taskflux.tables.scan import Builder, Place, Walk, is_record_of
from penstock.formats.taskflux.log import LogLayout
from penstock.storage.files import FILES, File
from penstock.storage.reading import NO_RULE

if TYPE_CHECKING:
    import pyarrow as pa

_LOOKS_MAX: Final = 10
"""How often a file is looked for that compactions replace; each is minutes apart from the next."""


def read_range(
    plan: RangePlan, options: ReadOptions, columns: Sequence[str], *, looks: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of entries. Raises ``Compacted``, and ``CorruptData`` if one of them is missing.

    A file that another took the place of since the plan was made is looked for anew, as often as ``looks`` allows.
    """
    path = Path(plan.path)
    try:
        file: File | None = FILES.open(path, write=False)
        is_same = path.stat().st_ino == plan.inode
    except FileNotFoundError:
        file, is_same = None, False
    try:
        if file is not None and is_same:
            yield from _read_file(file, plan, options, columns)
            return
    finally:
        if file is not None:
            file.close()
    for moved in _find_again(plan, looks):
        yield from read_range(moved, options, columns, looks=looks + 1)


def _find_again(plan: RangePlan, looks: int) -> list[RangePlan]:
    """Return where the entries of a plan stand now. Raises ``Compacted`` if they do not any more."""
    log = GrowingLog(Path(plan.source))
    try:
        first, _ = log.look()
        if plan.first < first or looks >= _LOOKS_MAX:
            raise Compacted(
                f"{plan.path}: entries {plan.first} to {max(first, plan.first + 1) - 1} were compacted away"
                " before they were read"
            )
        return log.ranges(plan.first, plan.last)
    finally:
        log.close()


def _read_file(
    file: File, plan: RangePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    layout = layout_of(plan.layout)
    size = file.size() if plan.end is None else plan.end
    builder = _builder(plan, layout, size, options, columns)
    place = Place(plan.start.position, plan.start.term, plan.start.entry)
    walk = Walk(layout, place, plan.start.entry, NO_RULE)
    end = plan.start.entry  # behind the last entry that was met
    for batch in walk.over(file, size, size):
        numbers, is_known = walk.indexes
        numbers = numbers[is_known & is_record_of(batch, layout)]
        end = int(numbers[-1]) + 1 if len(numbers) else end
        built = builder.build(batch, walk.indexes)
        if built is not None:
            yield built
    if options.fail_on_data_loss and end <= plan.last:
        raise CorruptData(
            f"entries {plan.first} to {plan.last} are not all there, damage hides some; see 'penstock"
            " verify', or read without them: failOnDataLoss=false",
            path=plan.path,
        )


def _builder(
    plan: RangePlan, layout: LogLayout, size: int, options: ReadOptions, columns: Sequence[str]
) -> Builder:
    filters = replace(options.filters, first=plan.first, last=plan.last)
    log = LogPlan(
        path=plan.path,
        shown=plan.shown,
        layout=plan.layout,
        first=plan.start.entry,
        start=plan.start.position,
        stop=size,
        size=size,
        commit=None,  # a stream goes no further than what is committed
    )
    return Builder(plan.source, log, layout, replace(options, filters=filters), columns)
