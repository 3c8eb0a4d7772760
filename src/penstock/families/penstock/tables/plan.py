"""How a source of generation 4 is cut into splits: by the names of files and the footers of sealed segments.

A footer has marks about every mebibyte, each with what the record there must continue, so a split begins and ends at a record and
checks its chain without a look at its neighbours. It also has the queues of the segment, their names and times, by which a
segment is left out. An unsealed segment is one split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadData, PathRefused
from penstock.families.family import Split
from penstock.families.options import LogTime
from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.location import StoredFile, Target
from penstock.families.penstock.read import History, survey
from penstock.families.penstock.replay import check_reached, index_at
from penstock.families.penstock.tables.footers import FoundFooter, find_footer
from penstock.families.plan import ROW_SIZE, plan_damage
from penstock.families.tables import Filters, Op, ReadOptions, Table, shown_path
from penstock.formats.records.footer import Footer, Mark
from penstock.formats.records.read import Chain
from penstock.formats.records.segment import FILE_HEADER_SIZE
from penstock.storage.files import opened

Names = tuple[tuple[int, str], ...]
"""Queues by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPlan:
    """Records that begin in ``[start, stop)`` of a segment or a snapshot."""

    path: str
    shown: str  # the path as its rows have it
    start: int
    stop: int | None  # None: as far as the file has records
    checksum: int | None  # of the record before the first one; None: unknown
    index: int | None  # of the record before the first one, of a snapshot its own
    names: Names
    cluster_id: bytes | None = None  # of the directory, if it is known
    is_snapshot: bool = False
    first: int | None = None  # the entries wanted of it, where a stream asks for a range
    last: int | None = None

    @property
    def chain(self) -> Chain | None:
        return None if self.index is None else Chain(self.checksum, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """What the queues of a whole source hold."""

    path: str
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPlan:
    """The small files of a directory."""

    path: str


def plan_source(source: str, target: Target, options: ReadOptions) -> list[Split]:
    """Return the splits of a directory or a file. Raises ``PenstockError`` for what no task could read."""
    history = survey(target)
    if options.table is Table.TASKS:
        return [_split(source, target.size, _state_plan(history, options))]
    splits = plan_damage(FAMILY, source, history.damage, options)
    if options.table is Table.ENTRIES and options.filters.is_open and target.home is not None:
        splits.append(_split(source, ROW_SIZE, MetadataPlan(path=str(target.path))))
    splits += _snapshot_splits(source, history, options)
    for segment in survey_segments(history, options.filters, source):
        splits += _segment_splits(source, segment, options)
    return splits


def _split(source: str, size: int, plan: object) -> Split:
    return Split(family=FAMILY, source=source, size=size, plan=plan)


def _state_plan(history: History, options: ReadOptions) -> StatePlan:
    at: int | None = None
    if options.at is not None:
        at = index_at(history, options.at)
        if not isinstance(options.at, LogTime):
            check_reached(history, at)
    return StatePlan(path=str(history.target.path), at=at)


# --- snapshots -----------------------------------------------------------------------------------

IN_SNAPSHOTS: Final = frozenset({Op.QUEUE, Op.TASK, Op.DELIVER})


def _snapshot_splits(source: str, history: History, options: ReadOptions) -> list[Split]:
    filters = options.filters
    if options.table is Table.CHANGES or (
        filters.ops is not None and not filters.ops & IN_SNAPSHOTS
    ):
        return []
    return [
        _split(
            source,
            head.file.size,
            RecordsPlan(
                path=str(head.file.path),
                shown=shown_path(source, head.file.path),
                start=FILE_HEADER_SIZE,
                stop=None,
                checksum=0,
                index=head.start.last_index,
                names=(),
                is_snapshot=True,
            ),
        )
        for head in history.snapshots
        if filters.wants_indexes(head.start.last_index, head.start.last_index + 1)
        and filters.wants_path(shown_path(source, head.file.path))
    ]


# --- segments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as its footer describes it, or without one."""

    file: StoredFile
    footer: Footer | None
    end: int  # of its records, if it is sealed; of the file otherwise
    chain: Chain | None  # what its first entry must continue; None if nothing tells
    names: Names
    cluster_id: bytes | None


def survey_segments(history: History, filters: Filters, source: str) -> Iterator[Segment]:
    """Yield the segments that may hold what is wanted, with their footers. The others are not even opened."""
    segments = history.target.segments
    known: dict[int, str] = {}
    chain: Chain | None = None
    for place, file in enumerate(segments):
        following = segments[place + 1].number if place + 1 < len(segments) else None
        before = chain or (None if file.number is None else history.chain_before(file.number))
        chain = None
        is_wanted = filters.wants_path(shown_path(source, file.path))
        is_wanted = is_wanted and (
            file.number is None or filters.wants_indexes(file.number, following)
        )
        if not is_wanted and following is not None:
            continue
        found = _footer_of(file, is_last=place + 1 == len(segments))
        names = {} if found is None else _names(found.footer)
        known |= names
        if found is not None:
            chain = found.chain
        if not is_wanted or (found is not None and not _wants_queues(found.footer, filters)):
            continue
        yield Segment(
            file=file,
            footer=None if found is None else found.footer,
            end=file.size if found is None else found.offset,
            chain=before,
            names=tuple((known if found is None else names).items()),
            cluster_id=None if history.identity is None else history.identity.cluster_id,
        )


def _footer_of(file: StoredFile, *, is_last: bool) -> FoundFooter | None:
    """Return the footer of a segment; a file that cannot be read has none, and its split says why."""
    try:
        with opened(file.path) as opened_file:
            return find_footer(opened_file, file.number, is_last=is_last)
    except (BadData, OSError, PathRefused):
        return None


def _names(footer: Footer) -> dict[int, str]:
    return {
        queue.queue_id: queue.name.decode() for queue in footer.queues if queue.name is not None
    }


def _wants_queues(footer: Footer, filters: Filters) -> bool:
    """Return whether a segment may have rows of a queue that is wanted; one without a name may be any."""
    if filters.queues is None:
        return True
    return any(
        queue.name is None or queue.name.decode() in filters.queues for queue in footer.queues
    )


def _segment_splits(source: str, segment: Segment, options: ReadOptions) -> Iterator[Split]:
    filters, file = options.filters, segment.file
    edges = _edges(segment, options.split_size)
    ends: list[Mark | None] = [*edges[1:], None]
    for edge, end in zip(edges, ends, strict=True):
        stop = segment.end if end is None else end.offset
        if end is not None and not filters.wants_indexes(edge.index, end.index):
            continue
        if segment.footer is not None and filters.last is not None and edge.index > filters.last:
            continue
        is_first = edge is edges[0]
        chain = segment.chain if is_first else Chain(edge.previous, edge.index - 1)
        if chain is None and edge.index > 0:
            chain = Chain(None, edge.index - 1)
        plan = RecordsPlan(
            path=str(file.path),
            shown=shown_path(source, file.path),
            start=edge.offset,
            stop=None if segment.footer is None else stop,
            checksum=None if chain is None else chain.checksum,
            index=None if chain is None else chain.index,
            names=segment.names,
            cluster_id=segment.cluster_id,
        )
        yield _split(source, stop - edge.offset, plan)


def _edges(segment: Segment, split_size: int) -> Sequence[Mark]:
    """Return where the splits of a segment begin: at marks of its footer, each about one size from the last."""
    if segment.footer is None:
        return [Mark(FILE_HEADER_SIZE, segment.file.number or 0, 0)]
    edges: list[Mark] = []
    for mark in segment.footer.marks:
        if not edges or mark.offset - edges[-1].offset >= split_size:
            edges.append(mark)
    return edges
