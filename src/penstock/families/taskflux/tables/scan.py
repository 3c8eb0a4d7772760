"""Reading a split of a TaskFlux source into columns. Runs on executors; no row is ever an object here."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptData
from penstock.families import arrow
from penstock.families.damage import Severity
from penstock.families.family import Split
from penstock.families.tables import OK, Filters, Kind, Mode, Op, ReadOptions, Table, schema_of
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.read import BEHIND_END
from penstock.families.taskflux.rows import REASONS, severity_of
from penstock.families.taskflux.tables import extensions
from penstock.families.taskflux.tables.plan import (
    LogPlan,
    RowsPlan,
    SnapshotPlan,
    StatePlan,
)
from penstock.formats.taskflux import commands, deltas
from penstock.formats.taskflux.deltas import BAD_OP
from penstock.formats.taskflux.extensions import scan_extensions
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout, Status
from penstock.model import RESERVED_PREFIX
from penstock.storage.files import File, opened
from penstock.storage.log_end import EndRule
from penstock.storage.reading import Batch, are_records, scan_file_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_DELTAS: Final[Mapping[int, str | None]] = {
    0: None,
    deltas.CREATE: Op.CREATE,
    deltas.DELETE: Op.DELETE,
    deltas.ADD: Op.ADD,
    deltas.REMOVE: Op.REMOVE,
    **extensions.OPS,
    BAD_OP: None,
}
_COMMANDS: Final[Mapping[int, str | None]] = {
    0: None,
    commands.ENQUEUE: Op.ENQUEUE,
    commands.DEQUEUE: Op.DEQUEUE,
    commands.COUNT: Op.COUNT,
    commands.CREATE: Op.CREATE,
    commands.DELETE: Op.DELETE,
    commands.LIST: Op.LIST,
    BAD_OP: None,
}
_CHANGES: Final = frozenset(
    (Op.CREATE, Op.DELETE, Op.ADD, Op.REMOVE, Op.ENQUEUE, Op.DEQUEUE, *extensions.OPS.values())
)
_BAD_DELTA: Final = len(Status)  # our code for a whole record whose payload means nothing
_BAD_EXTENSION: Final = _BAD_DELTA + 1  # a delta of ours that means nothing
_STATUSES: Final = {int(status): status.word for status in Status} | {
    _BAD_DELTA: "bad-delta",
    _BAD_EXTENSION: "bad-delta",
}
_REASONS: Final[Mapping[int, str | None]] = (
    {int(Status.OK): None}
    | {int(status): reason for status, reason in REASONS.items()}
    | {
        _BAD_DELTA: "neither a delta nor a command",
        _BAD_EXTENSION: "an extension that means nothing",
    }
)
_SEVERITIES: Final[Mapping[int, str | None]] = (
    {int(status): severity_of(status) for status in REASONS}
    | {int(Status.OK): None}
    | dict.fromkeys((_BAD_DELTA, _BAD_EXTENSION), Severity.LOST)
)
_BEHIND_END: Final = [int(status) for status in BEHIND_END]
_KINDS: Final = {0: Kind.DAMAGE, 1: Kind.ENTRY}


def read_split(
    split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split."""
    from penstock.families.taskflux.tables import snapshots, state

    plan = split.plan
    if isinstance(plan, LogPlan):
        yield from _read_log(split.source, plan, options, columns)
    elif isinstance(plan, SnapshotPlan):
        yield from snapshots.read(split.source, plan, options, columns)
    elif isinstance(plan, StatePlan):
        yield from state.read(split.source, plan, options, columns)
    elif isinstance(plan, RowsPlan):
        yield from _read_rows(split.source, plan, options, columns)


def _read_rows(
    source: str, plan: RowsPlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows = [row | {"source": source, "family": FAMILY} for row in plan.rows]
    bad = [row for row in rows if row["status"] != OK]
    if bad and options.mode is Mode.FAILFAST:
        raise CorruptData(str(bad[0]["reason"]))
    if options.mode is Mode.DROPMALFORMED:
        rows = [row for row in rows if row["status"] == OK]
    assert not rows or options.table is Table.ENTRIES
    schema = pa.schema([schema_of(options.table).field(name) for name in columns])
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# --- logs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A true boundary in a log: the term of the record before it, and the index of what begins there."""

    position: int
    term: int
    index: int | None  # None behind damage of unknown extent


_FILES_MAX: Final = 64
_PLACES_MAX: Final = 4096
_STEADY_NS: Final = 2 * 10**9  # a file that was written to just now may be, once more, unseen

_File = tuple[str, int, int, int]  # path, inode, time of the last change, size
_places: OrderedDict[_File, dict[int, Place]] = OrderedDict()
"""The first boundary behind each place where a scan was told to stop, for some files: a worker reads many splits.

Only of files at rest: one that is still written to may be of another content when it is read again, at the same size.
"""


def _read_log(
    source: str, plan: LogPlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    layout = LogLayout[plan.layout]
    builder = Builder(source, plan, layout, options, columns)
    with opened(Path(plan.path)) as file:
        known = _known_places(plan)
        size = (
            file.size()
        )  # larger than when it was planned, if it grows: its last record may be whole now
        place = _find_place(file, plan, layout, size, options.filters, known)
        if place is None:
            return
        walk = Walk(layout, place, plan.first, plan.rule)
        for batch in walk.over(file, plan.stop, size):
            if _is_behind(walk, options.filters):
                return
            built = builder.build(batch, walk.indexes)
            if built is not None:
                yield built
        _remember(known, plan.stop, walk.place, size)


def _is_behind(walk: Walk, filters: Filters) -> bool:
    """Return whether all that a walk finds from here on is behind what is wanted."""
    return filters.last is not None and walk.before is not None and walk.before > filters.last


def _known_places(plan: LogPlan) -> dict[int, Place]:
    """Return the places that are known of a file; what is added to them is known to the next split."""
    found = Path(plan.path).stat()
    if time.time_ns() - found.st_mtime_ns < _STEADY_NS:
        return {}
    key = plan.path, found.st_ino, found.st_mtime_ns, found.st_size
    known = _places.setdefault(key, {})
    _places.move_to_end(key)
    while len(_places) > _FILES_MAX:
        _places.popitem(last=False)
    return known


def _remember(known: dict[int, Place], at: int, place: Place, size: int) -> None:
    # The end of a file is no place to begin at: it may only be where its zeros began.
    if place.position < size and len(known) < _PLACES_MAX:
        known[at] = place


def _find_place(
    file: File,
    plan: LogPlan,
    layout: LogLayout,
    size: int,
    filters: Filters,
    known: dict[int, Place],
) -> Place | None:
    """Return the first boundary at or behind a split's start; ``None`` if all that is wanted stands before it.

    Records carry no index, and only a scan from the file's beginning tells a boundary from what looks like
    one inside a payload; so the way there is scanned, from the nearest place that is known.
    """
    place = Place(layout.header_size, 0, plan.first)
    nearest = max((at for at in known if at <= plan.start), default=None)
    place = place if nearest is None else known[nearest]
    if place.position < plan.start:
        walk = Walk(layout, place, plan.first, plan.rule)
        for _ in walk.over(file, plan.start, size):
            if _is_behind(walk, filters):
                return None
        place = walk.place
        _remember(known, plan.start, place, size)
    return place


class Walk:
    """Counts indexes along a scan."""

    def __init__(self, layout: LogLayout, place: Place, first: int, rule: EndRule) -> None:
        """Begin at ``place`` in a file whose first record has index ``first``."""
        self._layout = layout
        self._first = first
        self._rule = rule
        self.place = place
        self.before = place.index  # the index at the start of the last batch
        self.indexes: tuple[NDArray[np.int64], NDArray[np.bool_]]  # of the last batch

    def over(self, file: File, stop: int, size: int) -> Iterator[Batch]:
        start, term = self.place.position, self.place.term
        index = self.place.index
        batches = scan_file_columns(
            file,
            self._layout,
            start=start,
            stop=stop,
            size=size,
            term=term,
            rule=self._rule,
            count=None if index is None else index - self._first,
        )
        while True:
            try:
                batch = next(batches)
            except StopIteration as done:
                self.place = Place(done.value, term, index)
                return
            pieces = batch.entries.pieces
            terms = pieces.term[pieces.term >= 1]
            term = int(terms[-1]) if len(terms) else term
            self.before = index
            self.indexes, index = self._number(batch, index)
            yield batch

    def _number(
        self, batch: Batch, index: int | None
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.bool_]], int | None]:
        import numpy as np

        pieces = batch.entries.pieces
        count = len(pieces)
        if index is None:
            return (np.zeros(count, np.int64), np.zeros(count, np.bool_)), None
        is_record = are_records(batch.entries.pieces, self._layout)
        steps = np.concatenate(([0], np.cumsum(is_record)))
        is_gap = ~is_record & ~np.isin(pieces.status, _BEHIND_END)
        lost = int(is_gap.argmax()) if is_gap.any() else count
        is_known = np.arange(count) <= lost
        following = None if lost < count else index + int(steps[-1])
        return (index + steps[:-1], is_known), following


class Builder:
    """Makes record batches of batches of entries."""

    def __init__(
        self,
        source: str,
        plan: LogPlan,
        layout: LogLayout,
        options: ReadOptions,
        columns: Sequence[str],
    ) -> None:
        self._source = source
        self._plan = plan
        self._layout = layout
        self._options = options
        self._filters = options.filters
        self._columns = columns
        self._words = _COMMANDS if layout.contents is Contents.COMMANDS else _DELTAS
        self._types = schema_of(Table.ENTRIES)

    def build(
        self, batch: Batch, indexes: tuple[NDArray[np.int64], NDArray[np.bool_]]
    ) -> pa.RecordBatch | None:
        """Return the rows that are wanted, or ``None`` if there are none."""
        rows = _Rows(batch, indexes, self._layout)
        self._fail_fast(rows)
        wanted = self._wanted(rows)
        if wanted is not None:
            if not wanted.any():
                return None
            rows = rows.only(wanted)
        if not len(rows):
            return None
        columns = {name: self._make(name, rows) for name in self._columns}
        built = arrow.batch(columns, self._columns)
        return self._of_queues(built, rows)

    def _fail_fast(self, rows: _Rows) -> None:
        if self._options.mode is not Mode.FAILFAST:
            return
        is_bad = self._is_in_the_way(rows)
        if not is_bad.any():
            return
        first = int(is_bad.argmax())
        status = int(rows.status[first])
        index = f"entry {rows.index[first]}, " if rows.has_index[first] else ""
        raise CorruptData(
            f"{index}{_STATUSES[status]}: {_REASONS[status]}; mode PERMISSIVE reads on and reports it",
            path=self._plan.path,
            offset=int(rows.offset[first]),
        )

    def _is_in_the_way(self, rows: _Rows) -> NDArray[np.bool_]:
        """Return which rows are damage that may have been an entry of the range that is wanted."""
        import numpy as np

        first, last = self._filters.first, self._filters.last
        # Stale bytes are no damage, and no task is listed or lost because of undecided ones.
        fine = (int(Status.OK), int(Status.STALE), int(Status.UNDECIDED))
        found: NDArray[np.bool_] = ~np.isin(rows.status, fine)
        if last is not None:
            found &= ~(rows.has_index & (rows.index > last))
        if first is not None:
            # A gap of unknown extent before the range may reach into it; a single record does not.
            found &= ~(rows.has_index & (rows.index < first) & (rows.is_record == 1))
        return found

    def _wanted(self, rows: _Rows) -> NDArray[np.bool_] | None:
        """Return which rows to keep, by what costs nothing to ask; ``None``: all."""
        import numpy as np

        filters, options = self._filters, self._options
        if not filters.wants_path(self._plan.shown):
            return np.zeros(len(rows), dtype=np.bool_)
        tests: list[NDArray[np.bool_]] = []
        if filters.first is not None:
            tests.append(rows.has_index & (rows.index >= filters.first))
        if filters.last is not None:
            tests.append(rows.has_index & (rows.index <= filters.last))
        is_changes = options.table is Table.CHANGES
        if options.mode is Mode.DROPMALFORMED or is_changes:
            tests.append(rows.status == int(Status.OK))
        commit = self._plan.commit
        if is_changes and commit is not None and not options.uncommitted:
            tests.append(rows.has_index & (rows.index <= commit))
        ops = filters.ops
        if is_changes:
            ops = _CHANGES if ops is None else ops & _CHANGES
        if ops is not None:
            codes = [code for code, word in self._words.items() if word in ops]
            tests.append(np.isin(rows.op, codes))
        return np.logical_and.reduce(tests) if tests else None

    def _of_queues(self, built: pa.RecordBatch, rows: _Rows) -> pa.RecordBatch | None:
        """Return the rows of the queues that are wanted."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._filters.queues is None:
            return built
        names = self._make("queue", rows)
        mask = pc.is_in(names, value_set=pa.array(sorted(self._filters.queues), pa.string()))
        chosen = built.filter(mask)
        return chosen if chosen.num_rows else None

    def _make(self, name: str, rows: _Rows) -> pa.Array:
        makers: dict[str, Callable[[_Rows], pa.Array]] = {
            "kind": lambda r: arrow.words(r.is_record, _KINDS),
            "offset": lambda r: arrow.numbers(r.offset, r.everywhere),
            "size": lambda r: arrow.numbers(r.size, r.everywhere),
            "log_index": lambda r: arrow.numbers(r.index, r.has_index),
            "term": lambda r: arrow.numbers(r.term, r.term != 0),
            "op": lambda r: arrow.words(r.op, self._words),
            "queue": self._queue,
            "key": lambda r: arrow.numbers(r.key, r.has_key),
            "task_id": lambda r: arrow.numbers(r.task_id, r.has_id),
            "payload": self._payload,
            "properties": self._properties,
            "status": lambda r: arrow.words(r.status, _STATUSES),
            "reason": lambda r: arrow.words(r.status, _REASONS),
            "severity": lambda r: arrow.words(r.status, _SEVERITIES),
        }
        if name in makers:
            return makers[name](rows)
        constants = {"source": self._source, "family": FAMILY, "path": self._plan.shown}
        return arrow.same(constants.get(name), len(rows), self._types.field(name).type)

    def _queue(self, rows: _Rows) -> pa.Array:
        import pyarrow as pa

        return arrow.stretches(
            rows.data, rows.queue_offset, rows.queue_size, rows.has_queue, pa.string()
        )

    def _payload(self, rows: _Rows) -> pa.Array:
        import pyarrow as pa

        return arrow.stretches(
            rows.data, rows.payload_offset, rows.payload_size, rows.has_payload, pa.binary()
        )

    def _properties(self, rows: _Rows) -> pa.Array:
        import numpy as np

        contents = self._layout.contents
        create = commands.CREATE if contents is Contents.COMMANDS else deltas.CREATE
        creates = [
            (row, rows.data[rows.body_offset[row] :][: rows.body_size[row]].tobytes())
            for row in np.flatnonzero(rows.op == create).tolist()
        ]
        found = extensions.extension_properties(rows.extensions, rows.extension)
        found += extensions.policy_properties(creates, contents)
        found.append(extensions.record_property(creates))
        return extensions.properties(found, len(rows))


class _Rows:
    """A batch of entries as a table needs it: one array a field, and what each row has of it."""

    def __init__(
        self,
        batch: Batch,
        indexes: tuple[NDArray[np.int64], NDArray[np.bool_]],
        layout: LogLayout,
    ) -> None:
        import numpy as np

        pieces, changes = batch.entries.pieces, batch.entries.changes
        is_record = are_records(batch.entries.pieces, layout)
        is_extension = _is_extension(batch, layout)
        self.body_offset = pieces.offset + layout.record_header.size
        self.body_size = pieces.length
        starts = self.body_offset[is_extension]
        self.extensions = scan_extensions(batch.data, starts, starts + pieces.length[is_extension])
        # The place of each row among the extensions; -1 for what is none.
        self.extension = np.where(is_extension, np.cumsum(is_extension) - 1, -1)
        op = changes.op.copy()
        op[is_extension] = extensions.codes(self.extensions)
        is_bad = op == BAD_OP
        by_id = layout.contents is Contents.DELTAS_BY_ID
        self.data = batch.data
        self.offset = pieces.offset + batch.base
        self.size = pieces.size
        bad_status = np.where(is_extension, _BAD_EXTENSION, _BAD_DELTA)
        self.status = np.where(is_bad, bad_status, pieces.status)
        self.term = pieces.term
        self.index, self.has_index = indexes
        self.is_record = is_record.astype(np.int64)
        self.op = op
        self.everywhere = np.ones(len(pieces), dtype=np.bool_)
        self.queue_offset, self.queue_size = changes.queue_offset, changes.queue_size
        is_list = layout.contents is Contents.COMMANDS and op == commands.LIST
        self.has_queue = (op != 0) & ~is_bad & ~is_extension & ~np.asarray(is_list)
        self.key, self.task_id = changes.key, changes.task_id.view(np.int64)
        has_payload = changes.payload_offset > 0
        self.has_key = has_payload.copy()
        self.has_id = (op == deltas.REMOVE) & by_id
        # What means nothing, or what only we understand, is shown as it stands.
        is_raw = (is_bad | is_extension | ((pieces.status != int(Status.OK)) & is_record)) & (
            pieces.length > 0
        )
        self.has_payload = has_payload | is_raw
        self.payload_offset = np.where(is_raw, self.body_offset, changes.payload_offset)
        self.payload_size = np.where(is_raw, pieces.length, changes.payload_size)

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, wanted: NDArray[np.bool_]) -> _Rows:
        """Return some of the rows."""
        chosen = object.__new__(_Rows)
        for name, value in vars(self).items():
            is_shared = name in ("data", "extensions")
            setattr(chosen, name, value if is_shared else value[wanted])
        return chosen


_RESERVED: Final = RESERVED_PREFIX.encode()


def _is_extension(batch: Batch, layout: LogLayout) -> NDArray[np.bool_]:
    """Return which entries are ours: deletions of a name that no queue can have."""
    import numpy as np

    changes = batch.entries.changes
    if layout.contents is Contents.COMMANDS:
        return np.zeros(len(changes.op), dtype=np.bool_)
    found: NDArray[np.bool_]
    found = (changes.op == deltas.DELETE) & (changes.queue_size >= len(_RESERVED))
    places = np.flatnonzero(found)
    if len(places):
        starts = changes.queue_offset[places]
        for place, byte in enumerate(_RESERVED):
            found[places] &= batch.data[starts + place] == byte
    return found
