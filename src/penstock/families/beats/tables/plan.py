"""How a spool is cut into splits, by names, sizes and headers alone.

The body of a plain segment is cut wherever a split ends; its reader walks the way to its part by the lengths of frames
(``formats.beats.frame_scan``). One that is compressed or encrypted can only be read from its beginning and is one split.
What ``state.dat`` says is held to the segment by whoever reads that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import InvalidValue
from penstock.families.beats.damage import (
    BAD_END,
    BAD_EVENT,
)
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.family import key_of
from penstock.families.beats.location import Location, Segment
from penstock.families.beats.read import is_transformed, read_segment, refuse_state
from penstock.families.damage import Damage
from penstock.families.family import Split
from penstock.families.plan import ROW_SIZE, edges, plan_damage
from penstock.families.sources import Source, file_at
from penstock.families.tables import OK, Mode, Op, ReadOptions, Table, shown_path
from penstock.formats.beats.segment import Header, Options
from penstock.formats.beats.state import State
from penstock.model import INT64_MAX
from penstock.storage.spool_keys import KEY_VARIABLE

INDEX_BITS: Final = 32
"""Bits of a frame's number that are its place in the segment: headers count no further."""


NUMBER_MAX: Final = INT64_MAX >> INDEX_BITS
"""The highest segment whose frames have numbers: further ones would be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """What begins in ``[first, stop)`` of a segment; all offsets are logical."""

    path: str
    shown: str  # the path as its rows have it
    queue: str  # the name of the directory, for events that name no queue
    number: int
    is_newest: bool
    version: int
    options: int
    count: int  # as the header has it
    # A true boundary at or before the first: its offset, and the frames before it.
    base: tuple[int, int]
    first: int
    stop: int | None  # None: up to the end
    size: (
        int | None
    )  # of the file when it was planned; what it gains later is not read. None: all there is
    acknowledged: State | None = None  # what to hold to the segment, to learn what of it waits
    is_acknowledged: bool = False  # all of it
    is_streamed: bool = False  # it must be there: a batch that is replayed is to be the same

    @property
    def header(self) -> Header:
        return Header(self.version, self.count, Options(self.options))


def plan_source(source: str, location: Location, options: ReadOptions) -> list[Split]:
    """Return the splits of a spool. Raises ``PenstockError`` for what no task could read."""
    refuse_state(location)
    if options.at is not None:
        raise InvalidValue(
            f"{source}: a spool holds what is in it now and no state before; omit option at"
        )
    found_damage = list(location.found_damage)
    splits: list[Split] = []
    for segment in location.segments:
        if not _is_wanted(source, location, segment, options):
            continue
        header = read_header(segment)
        if isinstance(header, Damage):
            found_damage.append(header)
            continue
        key_for(segment.path, header.options, options)
        whole = segment_plan(source, location.name, segment, header)
        state = None if options.table is Table.ENTRIES else location.state
        splits += cut_segment(source, _with_state(whole, state), options.split_size)
    return [*plan_damage(FAMILY, source, found_damage, options), *splits]


def read_header(segment: Segment) -> Header | Damage:
    """Return a segment's header, or what is wrong with it."""
    found = next(read_segment(segment, key=None))
    assert isinstance(found, Header | Damage), "a header comes first, or damage instead"
    return found


def segment_plan(source: str, queue: str, segment: Segment, header: Header) -> SegmentPlan:
    """Return the plan of a whole segment."""
    return SegmentPlan(
        path=str(segment.path),
        shown=shown_path(source, segment.path),
        queue=queue,
        number=segment.number,
        is_newest=segment.is_newest,
        version=header.version,
        options=int(header.options),
        count=header.count,
        base=(header.size, 0),
        first=header.size,
        stop=None,
        size=segment.size,
    )


def cut_segment(source: str, whole: SegmentPlan, split_size: int) -> list[Split]:
    """Return a segment as splits; one that is hardly too large stays whole."""
    end = whole.stop if whole.stop is not None else whole.size
    if is_transformed(whole.header) or end is None or end - whole.first <= split_size * 3 // 2:
        size = max(ROW_SIZE, (end or 0) - whole.first)
        return [_split(source, size, whole)]
    starts = list(edges(Path(whole.path), whole.first, end, split_size))
    return [
        _split(
            source, (end if stop is None else stop) - first, replace(whole, first=first, stop=stop)
        )
        for first, stop in zip(starts, [*starts[1:], whole.stop], strict=True)
    ]


def _with_state(plan: SegmentPlan, state: State | None) -> SegmentPlan:
    if state is None or plan.number > state.position.segment:
        return plan
    if plan.number < state.position.segment:
        return replace(plan, is_acknowledged=True)
    return replace(plan, acknowledged=state)


def _is_wanted(source: str, location: Location, segment: Segment, options: ReadOptions) -> bool:
    """Return whether a segment may hold rows that are wanted, as far as its name tells."""
    filters = options.filters
    if not filters.wants_path(shown_path(source, segment.path)):
        return False
    state = location.state
    is_done = state is not None and segment.number < state.position.segment
    if options.table is Table.TASKS and is_done:
        return False
    if filters.ops is not None and not filters.ops & _ops(options.table):
        return options.mode is Mode.FAILFAST
    first = number_of(segment.number, 0)
    return first is None or filters.wants_indexes(first, number_of(segment.number + 1, 0))


def _ops(table: Table) -> set[str]:
    return {Op.ADD, Op.REMOVE} if table is Table.CHANGES else {Op.ADD}


def number_of(segment: int, index: int) -> int | None:
    """Return the number that a frame has in tables; ``None`` where there is none."""
    return (segment << INDEX_BITS) + index if segment <= NUMBER_MAX else None


def _split(source: str, size: int, plan: object) -> Split:
    return Split(family=FAMILY, source=source, size=max(size, ROW_SIZE), plan=plan)


def key_for(path: Path, kind: Options, options: ReadOptions) -> bytes | None:
    """Return the key of a segment with these options of its own; ``None`` if it needs none.

    Raises ``InvalidValue`` and ``PathMissing`` if it needs one and there is none.
    """
    if not kind & Options.ENCRYPTED:
        return None
    key = key_of(options.own)
    if key is None:
        raise InvalidValue(
            f"{path}: is encrypted; name a file with its key, option keyFile or passwordFile, or set the variable"
            f" {KEY_VARIABLE}"
        )
    return key


def describe(name: str, location: Location) -> Source:
    """Return what a pipeline needs to know of a spool. Raises ``PathRefused``.

    Frames have an order, but what was acknowledged only ``state.dat`` tells, as of now: a spool has no log.
    """
    refuse_state(location)
    paths = [segment.path for segment in location.segments]
    if location.state_path is not None:
        paths.append(location.state_path)
    return Source(
        name=name,
        family=FAMILY,
        words=f"Beats' disk queue, {location.kind}",
        files=tuple(file_at(name, path) for path in paths),
        has_log=False,
        queues=None,
        removes_by_position=True,
        whole_statuses=(OK, BAD_END, BAD_EVENT),
        migration_refusal=f"{name}: tasks of a spool are brought to a node by 'penstock spool drain', or by 'penstock"
        " enqueue --from', which keep their delays; a pipeline reads them",
    )
