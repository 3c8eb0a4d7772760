"""How a TaskFlux source is cut into splits, by names, sizes and headers alone, and what these tell of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from penstock.errors import Compacted, OutOfRange
from penstock.families.family import Split
from penstock.families.options import entry_at
from penstock.families.plan import edges
from penstock.families.sources import File, Source
from penstock.families.tables import OK, Filters, Mode, Op, ReadOptions, Table, shown_path
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.family import TITLE
from penstock.families.taskflux.location import LogFile, Target
from penstock.families.taskflux.read import History, read_history, survey
from penstock.families.taskflux.rows import file_severity
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import LogLayout
from penstock.model import SnapshotPoint
from penstock.storage.files import opened
from penstock.storage.log_end import EndRule
from penstock.storage.reading import NO_RULE, walk_windows

ROW_SIZE: Final = 1
"""What a split of a few rows counts for in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Entries that begin in ``[start, stop)`` of a log file."""

    path: str
    shown: str  # the path as its rows have it
    layout: str  # by name: an enumeration's member is pickled with all that it holds
    first: int  # index of the file's first record
    start: int
    stop: int
    size: int  # of the file when it was planned; what a growing one has behind it is not read
    # Entries behind it are not known to be committed; None: nothing is known of that.
    commit: int | None
    rule: EndRule = NO_RULE  # what decides about bytes behind the end marker


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
    at: int | None  # after this entry; None: after the last one


def plan_source(source: str, target: Target, options: ReadOptions) -> list[Split]:
    """Return the splits of one directory or file. Raises ``PenstockError`` for what no task could read."""
    if options.table is Table.TASKS:
        return _state_splits(source, target, options)
    # Segments that cannot match are not even opened for their headers.
    wanted = [log for log in target.logs if _is_wanted(source, log, options.filters)]
    history = survey(replace(target, logs=tuple(wanted)))
    splits: list[Split] = []
    rows = (*_metadata_rows(source, history), *_unreadable_rows(source, history))
    rows = tuple(row for row in rows if _is_row_wanted(row, options))
    if rows:
        splits.append(_split(source, ROW_SIZE, RowsPlan(rows=rows)))
    splits += _snapshot_splits(source, history, options.filters)
    splits += _log_splits(source, history, options)
    return splits


def _state_splits(source: str, target: Target, options: ReadOptions) -> list[Split]:
    """Return the one split of a source's state. Raises ``PenstockError`` for a state that cannot be told."""
    history = read_history(target)
    # Variant 1a may tell by its log alone what the snapshot covers.
    is_known = not target.logs or target.logs[0].layout is not LogLayout.ONE_A
    at = None if options.at is None else entry_at(options.at, TITLE)
    if is_known and at is not None and at < history.covered:
        raise Compacted(
            f"{target.path}: entry {at} is covered by the snapshot, which holds the state after"
            f" entry {history.covered}; ask for that one or a later one"
        )
    if at is not None:
        refuse_beyond(history, at)
    return [_split(source, target.size, StatePlan(path=str(target.path), at=at))]


def refuse_beyond(history: History, at: int) -> None:
    """Raise ``OutOfRange`` if the log ends before an entry. Scans the last log file unless a name or header decides.

    A log that is damaged there passes: the replay reports the damage.
    """
    end = history.covered
    if history.target.logs:
        log = history.target.logs[-1]
        last = (history.first if log.first is None else log.first) - 1
        if at <= max(end, last, history.sure):
            return
        with opened(log.path) as file:
            for window in walk_windows(file, log.path, log.layout):
                last += len(window.found.offsets)
                if window.found.stop is not None:
                    return
        end = max(end, last)
    if at > end:
        raise OutOfRange(
            f"{history.target.path}: entry {at} is beyond the log, which ends at entry {end};"
            f" ask for entry {end}, or for none to get the last"
        )


def _is_wanted(source: str, log: LogFile, filters: Filters) -> bool:
    """Return whether a log file may hold rows that are wanted, as far as its name tells."""
    if not filters.wants_path(shown_path(source, log.path)):
        return False
    if filters.ops is not None and not filters.ops - {Op.QUEUE, Op.TASK}:
        return False
    return log.first is None or filters.wants_indexes(log.first, log.following)


def _is_row_wanted(row: dict[str, object], options: ReadOptions) -> bool:
    """Return whether a row without index, op and queue is wanted."""
    if not options.filters.wants_path(str(row["path"])):
        return False
    if row["status"] != OK and options.mode is Mode.FAILFAST:
        return True  # It is there to fail: what a file that cannot be read holds may be wanted.
    return options.table is Table.ENTRIES and options.filters.is_open


def _split(source: str, size: int, plan: object) -> Split:
    return Split(family=FAMILY, source=source, size=size, plan=plan)


def _snapshot_splits(source: str, history: History, filters: Filters) -> list[Split]:
    path, header = history.target.snapshot, history.snapshot
    if path is None or header is None:
        return []
    shown = shown_path(source, path)
    is_wanted = filters.ops is None or bool(filters.ops & {Op.QUEUE, Op.TASK})
    is_wanted = is_wanted and filters.wants_indexes(header.point.index, header.point.index + 1)
    if not is_wanted or not filters.wants_path(shown):
        return []
    plan = SnapshotPlan(path=str(path), shown=shown, layout=header.layout.name, point=header.point)
    return [_split(source, path.stat().st_size, plan)]


def _log_splits(
    source: str,
    history: History,
    options: ReadOptions,
) -> list[Split]:
    splits: list[Split] = []
    for log in history.target.logs:  # also those without a header: their records stand all the same
        first = history.first if log.first is None else log.first
        if not options.filters.wants_indexes(first, log.following):
            continue
        shown = shown_path(source, log.path)
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
                rule=history.end_rule(log),
            )
            splits.append(_split(source, stop - start, plan))
    return splits


def _ranges(log: LogFile, split_size: int) -> list[tuple[int, int]]:
    """Return where each split of a file begins and ends; one that is hardly too large stays whole."""
    start = log.layout.header_size
    # Without markers no place in the middle tells a record from what looks like one.
    if not log.layout.is_marked or log.size - start <= split_size + split_size // 2:
        return [(start, max(start, log.size))]
    return list(pairwise([*edges(log.path, start, log.size, split_size), log.size]))


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
            "severity": file_severity(one.kind),
        }
        for one in history.unreadable
    ]


def describe(name: str, target: Target, *, uncommitted: bool) -> Source:
    """Return what a pipeline needs to know of a source. Raises ``PenstockError``."""
    history = survey(target)
    is_decided = any(log.layout.contents is Contents.COMMANDS for log in target.logs)
    is_whole = history.first == 0 or history.is_whole_log()
    return Source(
        name=name,
        family=FAMILY,
        words=f"TaskFlux generation {int(target.generation)}, {target.kind}",
        files=tuple(_files(name, target, history)),
        begin=-1 if is_whole or history.snapshot is None else history.covered,
        log_first=history.first,
        covered=history.covered,
        commit=None if uncommitted else history.commit,
        by_value=target.generation is not Generation.THREE and not is_decided,
        is_decided=is_decided,
        notice=target.notice,
        by_array_heap=is_decided and history.is_by_array_heap(),
    )


def _files(name: str, target: Target, history: History) -> list[File]:
    logs = [
        File(
            shown=shown_path(name, log.path),
            first=history.first if log.first is None else log.first,
            size=log.size,
        )
        for log in target.logs
    ]
    others = [path for path in (target.metadata, target.snapshot) if path is not None]
    return [
        *(File(shown=shown_path(name, p), first=None, size=p.stat().st_size) for p in others),
        *logs,
    ]
