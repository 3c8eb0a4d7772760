"""How a TaskFlux source is cut into pieces, by names, sizes and headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.model import SnapshotPoint
from penstock.spark.columns import Op, Table
from penstock.spark.families import Piece
from penstock.spark.filters import Filters
from penstock.spark.options import ReadOptions
from penstock.tools.history import History, survey
from penstock.tools.target import FAMILY, LogFile, Target

ROW_SIZE: Final = 1
"""What a piece of a few rows counts for in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Entries that begin in ``[start, stop)`` of a log file."""

    path: str
    shown: str  # the path as its rows have it
    layout: str  # by name: an enumeration's member is pickled with all that it holds
    first: int  # index of the file's first record
    start: int
    stop: int  # None cannot be: a file that grows is read up to the size it had
    size: int
    commit: (
        int | None
    )  # entries behind it are not known to be committed; None: nothing is known of that


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """All of a snapshot."""

    path: str
    shown: str
    layout: str
    point: SnapshotPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPlan:
    """A few rows that the planner has already."""

    rows: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """What the queues of a whole source hold."""

    path: str


def plan_source(source: str, target: Target, options: ReadOptions, filters: Filters) -> list[Piece]:
    """Return the pieces of one directory or file."""
    if options.table is Table.TASKS:
        return [_piece(source, target.size, StatePlan(path=str(target.path)))]
    history = survey(target)
    pieces: list[Piece] = []
    if options.table is Table.ENTRIES:
        rows = (*_metadata_rows(source, history), *_unreadable_rows(source, history))
        if rows:
            pieces.append(_piece(source, ROW_SIZE, RowsPlan(rows=rows)))
    pieces += _snapshot_pieces(source, history, filters)
    pieces += _log_pieces(source, history, options, filters)
    return pieces


def _piece(source: str, size: int, plan: object) -> Piece:
    return Piece(family=FAMILY, source=source, size=size, plan=plan)


def shown_path(source: str, path: Path) -> str:
    """Return a file's path as rows have it: under its source, or its name if it is the source."""
    return str(path.relative_to(source)) if path != Path(source) else path.name


def _snapshot_pieces(source: str, history: History, filters: Filters) -> list[Piece]:
    path, header = history.target.snapshot, history.snapshot
    if path is None or header is None:
        return []
    shown = shown_path(source, path)
    is_wanted = filters.ops is None or bool(filters.ops & {Op.QUEUE, Op.TASK})
    is_wanted = is_wanted and filters.wants_indexes(header.point.index, header.point.index + 1)
    if not is_wanted or (filters.paths is not None and shown not in filters.paths):
        return []
    plan = SnapshotPlan(path=str(path), shown=shown, layout=header.layout.name, point=header.point)
    return [_piece(source, path.stat().st_size, plan)]


def _log_pieces(
    source: str, history: History, options: ReadOptions, filters: Filters
) -> list[Piece]:
    pieces: list[Piece] = []
    logs = history.target.logs
    unreadable = {one.path for one in history.unreadable if one.kind == "log"}
    for number, log in enumerate(logs):
        if log.path in unreadable:
            continue
        following = logs[number + 1].first if number + 1 < len(logs) else None
        first = history.first if log.first is None else log.first
        shown = shown_path(source, log.path)
        if filters.paths is not None and shown not in filters.paths:
            continue
        if not filters.wants_indexes(first, following):
            continue
        for start, stop in _ranges(log, options.split_size):
            plan = LogPlan(
                path=str(log.path),
                shown=shown,
                layout=log.layout.name,
                first=first,
                start=start,
                stop=stop,
                size=log.size,
                commit=history.commit,
            )
            pieces.append(_piece(source, stop - start, plan))
    return pieces


def _ranges(log: LogFile, split_size: int) -> list[tuple[int, int]]:
    """Return where each split of a file begins and ends; one that is hardly too large stays whole."""
    start = log.layout.header_size
    # Without markers no place in the middle tells a record from what looks like one.
    if not log.layout.is_marked or log.size - start <= split_size + split_size // 2:
        return [(start, max(start, log.size))]
    edges = [*range(start, log.size, split_size), log.size]
    return list(pairwise(edges))


def _metadata_rows(source: str, history: History) -> list[dict[str, object]]:
    path, metadata = history.target.metadata, history.metadata
    if path is None or metadata is None:
        return []
    properties = {"variant": metadata.layout.variant}
    if metadata.state.vote is not None:
        properties["vote"] = str(metadata.state.vote)
    return [
        {
            "kind": "metadata",
            "path": shown_path(source, path),
            "offset": 0,
            "size": metadata.layout.size,
            "term": metadata.state.term,
            "properties": list(properties.items()),
            "status": "ok",
        }
    ]


def _unreadable_rows(source: str, history: History) -> list[dict[str, object]]:
    return [
        {
            "kind": "damage",
            "path": shown_path(source, one.path),
            "offset": one.error.offset,
            "status": "bad-header" if one.kind == "log" else f"bad-{one.kind}",
            "reason": str(one.error),
        }
        for one in history.unreadable
    ]


def layout_of(name: str) -> LogLayout:
    return LogLayout[name]


def snapshot_layout_of(name: str) -> SnapshotLayout:
    return SnapshotLayout[name]


def is_sequential(generation: Generation) -> bool:
    """Whether only a replay in order tells what the entries of a generation do."""
    return generation is Generation.ONE
