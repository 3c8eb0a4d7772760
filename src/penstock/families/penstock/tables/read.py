"""Reading a split of generation 4 into Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import BadData, BadRecord, Compacted, CorruptData
from penstock.families.damage import Damage, Severity
from penstock.families.family import Split
from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.location import resolve
from penstock.families.penstock.read import History, load, survey
from penstock.families.penstock.tables.columns import TableColumns
from penstock.families.penstock.tables.plan import MetadataPlan, RecordsPlan, StatePlan
from penstock.families.penstock.tables.records import Batch, read_records
from penstock.families.penstock.tables.units import OPS, Units, bad_units, rows_of, some, units_of
from penstock.families.plan import DamagePlan, damage_rows, read_damage
from penstock.families.tables import OK, Kind, Mode, Op, ReadOptions, Table, schema_of, shown_path
from penstock.formats.records.changes import AddTasks, SetQueue, decode_change
from penstock.formats.records.header import Kind as Record
from penstock.formats.records.read import collect, walk
from penstock.formats.records.scan import RecordColumns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_CHANGES = frozenset(
    {Op.CREATE, Op.DELETE, Op.ADD, Op.REMOVE, Op.RETURN, Op.MOVE, Op.SET, Op.DELIVER}
)
"""What the table of changes shows."""


def read_split(
    split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split."""
    plan = split.plan
    if isinstance(plan, RecordsPlan):
        try:
            yield from _Reading(split.source, plan, options, columns).batches()
        except FileNotFoundError:
            if plan.first is None:
                raise
            raise Compacted(
                f"{plan.path}: entries {plan.first} to {plan.last} were removed before they were read"
            ) from None
    elif isinstance(plan, StatePlan):
        from penstock.families.penstock.tables.state import read_state

        yield from read_state(split.source, plan, options, columns)
    elif isinstance(plan, MetadataPlan):
        yield from _read_metadata(split.source, plan, options, columns)
    elif isinstance(plan, DamagePlan):
        yield from read_damage(split, options, columns)


class _Reading:
    """One pass over the records of a split."""

    def __init__(
        self, source: str, plan: RecordsPlan, options: ReadOptions, columns: Sequence[str]
    ) -> None:
        self._source = source
        self._plan = plan
        filters = options.filters
        if plan.first is not None:
            filters = replace(filters, first=plan.first, last=plan.last)
        self._options = options
        self._filters = filters
        self._columns = columns
        self._names: dict[int, str] = dict(plan.names)
        self._has_looked = plan.is_snapshot  # whether names were looked for in snapshots
        self._made = TableColumns(source, plan.shown, is_snapshot=plan.is_snapshot)
        self._last_index = -1 if plan.index is None else plan.index

    def batches(self) -> Iterator[pa.RecordBatch]:
        for found in read_records(self._plan, self._source):
            if isinstance(found, Damage):
                yield from self._damage(found)
                continue
            if self._filters.last is not None and found.records.index[0] > self._filters.last:
                return
            self._last_index = int(found.records.index[-1])
            yield from self._rows(found)
        self._check_range()

    def _check_range(self) -> None:
        """Raise ``CorruptData`` if entries are missing that a stream must deliver."""
        plan = self._plan
        is_short = plan.last is not None and self._last_index < plan.last
        if is_short and self._options.fail_on_data_loss:
            raise CorruptData(
                f"entries {plan.first} to {plan.last} are not all there, damage hides some; see 'penstock"
                " verify', or read without them: failOnDataLoss=false",
                path=plan.path,
            )

    def _rows(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a window; a record whose body means nothing is damage, the others are rows."""
        try:
            yield from self._whole(batch, batch.records)
        except BadRecord:
            import numpy as np

            bad = bad_units(batch.data, batch.records)
            if not bad:
                raise
            start = 0
            for row, error in bad.items():
                yield from self._whole(batch, some(batch.records, slice(start, row)))
                yield from self._damage(self._undecoded(batch, row, error))
                start = row + 1
            yield from self._whole(batch, some(batch.records, np.s_[start:]))

    def _undecoded(self, batch: Batch, row: int, error: BadRecord) -> Damage:
        return Damage(
            path=Path(self._plan.path),
            offset=batch.base + int(batch.records.offset[row]),
            size=int(batch.records.size[row]),
            status="bad-record",
            reason=error.reason,
            severity=Severity.LOST,
            index=int(batch.records.index[row]),
        )

    def _whole(self, batch: Batch, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        if not len(records):
            return
        units = units_of(batch.data, records)
        self._learn(units)
        wanted = self._wanted(units)
        if not wanted.any():
            return
        rows = rows_of(units if wanted.all() else units.only(wanted))
        if len(rows):
            yield self._made.make(
                rows, batch.base, records.offset, records.size, self._names, self._columns
            )

    def _wanted(self, units: Units) -> NDArray[np.bool_]:
        """Return which changes have rows that are wanted."""
        import numpy as np

        filters, columns = self._filters, units.columns
        wanted = np.ones(len(units), dtype=np.bool_)
        if filters.first is not None:
            wanted &= columns.index >= filters.first
        if filters.last is not None:
            wanted &= columns.index <= filters.last
        if filters.queues is not None:
            known = [each for each, name in self._names.items() if name in filters.queues]
            wanted &= np.isin(columns.queue_id, known)
        ops = self._ops()
        if ops is not None:
            kinds = [kind for kind, op in self._words().items() if op in ops]
            wanted &= np.isin(columns.kind, kinds)
        return wanted

    def _words(self) -> dict[int, Any]:
        if not self._plan.is_snapshot:
            return dict(OPS)
        return {
            int(Record.ADD): Op.TASK, int(Record.QUEUE): Op.QUEUE, int(Record.DELIVER): Op.DELIVER,
        }  # fmt: skip

    def _ops(self) -> frozenset[str] | None:
        ops = self._filters.ops
        if self._options.table is Table.CHANGES:
            return _CHANGES if ops is None else ops & _CHANGES
        return ops

    def _learn(self, units: Units) -> None:
        """Note the names of queues that the changes tell, and look elsewhere for those that they do not."""
        import numpy as np

        columns = units.columns
        for queue_id in np.unique(columns.queue_id).tolist():
            if not queue_id or queue_id in self._names:
                continue
            tells = np.isin(columns.kind, (int(Record.ADD), int(Record.QUEUE)))
            told = np.flatnonzero(tells & (columns.queue_id == queue_id))
            if len(told):
                self._names[queue_id] = _name_in(units, int(told[0]))
        missing = set(np.unique(columns.queue_id).tolist()) - {0} - self._names.keys()
        if missing and not self._has_looked:
            self._has_looked = True
            for queue_id, name in _names_in_snapshots(self._source).items():
                self._names.setdefault(queue_id, name)

    def _damage(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        filters, options = self._filters, self._options
        index = damage.index
        is_outside = index is not None and not (
            (filters.last is None or index <= filters.last)
            and (filters.first is None or index >= filters.first)
        )
        if is_outside or not filters.wants_path(self._plan.shown):
            return
        is_shown = filters.queues is None and filters.ops is None
        if index is None and (filters.first is not None or filters.last is not None):
            is_shown = False
        if is_shown or options.mode is Mode.FAILFAST:
            yield from damage_rows(
                FAMILY, self._source, self._plan.shown, damage, options, self._columns,
                log_index=damage.index,
            )  # fmt: skip


def _name_in(units: Units, unit: int) -> str:
    change = units.change(unit)
    if isinstance(change, AddTasks):
        return change.body.name.decode()
    assert isinstance(change, SetQueue)
    return str(change.settings.name)


def _names_in_snapshots(source: str) -> dict[int, str]:
    """Return the names of queues that snapshots of a source tell: of those that no segment names."""
    names: dict[int, str] = {}
    for head in survey(resolve(Path(source))).snapshots:
        with suppress(BadData):  # a damaged snapshot tells what is before the damage
            data = load(head.file)
            records, _ = collect(walk(data, is_snapshot=True))
            for each in records:
                if each.header.kind == Record.QUEUE:
                    change = decode_change(each.header, data, *each.body)
                    assert isinstance(change, SetQueue)
                    names[change.queue_id] = str(change.settings.name)
    return names


# --- small files ---------------------------------------------------------------------------------


def _read_metadata(
    source: str, plan: MetadataPlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    history = survey(resolve(Path(plan.path)))
    rows = [
        {
            "source": source, "family": FAMILY, "kind": Kind.METADATA, "path": shown, "offset": 0,
            "size": path.stat().st_size, "status": OK, "properties": list(fields.items()),
            "term": int(fields["term"]) if "term" in fields else None,
        }
        for path, fields in _small_files(history)
        for shown in [shown_path(source, path)]
        if options.filters.wants_path(shown)
    ]  # fmt: skip
    if rows:
        schema = pa.schema([schema_of(options.table).field(name) for name in columns])
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _small_files(history: History) -> Iterator[tuple[Path, dict[str, str]]]:
    home = history.target.path
    if (identity := history.identity) is not None:
        cluster = "" if identity.cluster_id is None else identity.cluster_id.hex()
        yield home / "identity.json", {"node": str(identity.node), "cluster_id": cluster}
    if (state := history.hard_state) is not None:
        vote = {} if state.vote is None else {"vote": str(state.vote)}
        yield home / "hard-state", {"term": str(state.term), **vote}
    if (synced := history.synced) is not None:
        fields = {"synced": str(synced.index), "commit_floor": str(synced.commit_floor)}
        yield home / "sync-point", fields
