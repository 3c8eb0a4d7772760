"""Reading a split of a broker's directory into columns. Runs on executors; no row is ever an object here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadData, CorruptData, InvalidValue, PathRefused
from penstock.families import arrow
from penstock.families.arrow import Property, hexadecimal, properties
from penstock.families.damage import Severity, words_of
from penstock.families.family import Split
from penstock.families.plan import DamagePlan, damage_rows, read_damage, why
from penstock.families.rabbitmq.damage import BAD_PROPERTIES, UNREADABLE, damage_at
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.tables import files
from penstock.families.rabbitmq.tables.files import (
    LOCATIONS,
    STATUS_REASONS,
    STATUSES,
    Rows,
    read_rows,
)
from penstock.families.rabbitmq.tables.messages import MessageParts, ScannedMessages, json_of_keys
from penstock.families.rabbitmq.tables.plan import FileKind, FilePlan, QueuePlan, text_of
from penstock.families.tables import Kind, Mode, Op, ReadOptions, Table, schema_of
from penstock.formats.rabbitmq import queue_v2
from penstock.formats.rabbitmq.journal import MESSAGE_ID_SIZE

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_KINDS: Final = {
    FileKind.SEGMENT: Kind.ENTRY,
    FileKind.JOURNAL: Kind.RECORD,
    FileKind.INDEX: Kind.SLOT,
    FileKind.QUEUE_STORE: Kind.MESSAGE,
    FileKind.STORE: Kind.MESSAGE,
}
_OPS: Final[dict[int, str | None]] = {
    files.NOTHING: None,
    files.ADD: Op.ADD,
    files.DELIVER: Op.DELIVER,
    files.REMOVE: Op.REMOVE,
}


def read_split(
    split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split."""
    plan = split.plan
    if isinstance(plan, FilePlan):
        yield from _Reading(split.source, plan, options, columns).batches()
    elif isinstance(plan, QueuePlan):
        from penstock.families.rabbitmq.tables import state

        yield from state.read(split.source, plan, options, columns)
    elif isinstance(plan, DamagePlan):
        yield from read_damage(split, options, columns)


def address_properties(messages: MessageParts, *, vhost: bool) -> list[Property]:
    """Return exchange and routing keys of messages, and the vhost if it is asked for."""
    import pyarrow as pa

    rows, places, known = messages.addresses
    texts = {
        "vhost": [None if each.vhost is None else text_of(each.vhost) for each in known],
        "exchange": [text_of(each.exchange) for each in known],
        "routing_keys": [json_of_keys(each.routing_keys) for each in known],
    }
    made = []
    for name, values in texts.items():
        column = pa.array(values, pa.string()).take(pa.array(places))
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        if name != "vhost" or vhost:
            made.append(Property(name, rows[is_there], column.drop_null()))
    return made


def property_text(messages: MessageParts) -> Property:
    """Return the properties of messages."""
    import numpy as np

    column = messages.properties()
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    return Property("properties", np.flatnonzero(is_there), column.drop_null())


class _Reading:
    """One pass over a file, or over a part of it."""

    def __init__(
        self,
        source: str,
        plan: FilePlan,
        options: ReadOptions,
        columns: Sequence[str],
    ) -> None:
        self._source = source
        self._plan = plan
        self._options = options
        self._filters = options.filters
        self._columns = columns
        self._types = schema_of(Table.ENTRIES)
        self._kinds = {0: Kind.DAMAGE, 1: _KINDS[plan.kind]}

    def batches(self) -> Iterator[pa.RecordBatch]:
        windows = read_rows(self._plan)
        while True:
            try:
                rows = next(windows, None)
            except BadData as error:
                yield from self._damage(error.offset, "bad-header", error.reason)
                return
            except InvalidValue as error:
                yield from self._damage(None, "bad-name", str(error))
                return
            except (OSError, PathRefused) as error:
                yield from self._damage(None, UNREADABLE, words_of(error))
                return
            if rows is None:
                return
            built = self._build(rows)
            if built is not None:
                yield built

    def _damage(self, offset: int | None, status: str, reason: str) -> Iterator[pa.RecordBatch]:
        damage = damage_at(Path(self._plan.path), status, reason, offset=offset)
        if self._filters.is_open or self._options.mode is Mode.FAILFAST:
            yield from damage_rows(
                FAMILY, self._source, self._plan.shown, damage, self._options, self._columns
            )

    def _build(self, rows: Rows) -> pa.RecordBatch | None:
        """Return the rows that are wanted, or ``None`` if there are none."""
        if self._options.mode is Mode.FAILFAST:
            self._fail_fast(self._told(rows))
        rows = rows.only(self._wanted(rows))
        if self._options.mode is Mode.DROPMALFORMED and len(rows):
            rows = rows.only(self._told(rows).is_whole)
        if not len(rows):
            return None
        told = self._told(rows)
        made = {name: self._make(name, told) for name in self._columns}
        return arrow.batch(made, self._columns)

    def _told(self, rows: Rows) -> _Told:
        return _Told(rows, self._plan, self._options.table)

    def _wanted(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows to keep."""
        import numpy as np

        wanted = self._is_within(rows)
        if self._filters.first is not None or self._filters.last is not None:
            wanted &= rows.has_sequence
        if self._filters.ops is not None:
            codes = [code for code, word in _OPS.items() if word in self._filters.ops]
            wanted &= np.isin(rows.op, codes)
        if self._options.table is Table.CHANGES:
            wanted &= rows.op != files.NOTHING
        return wanted

    def _is_within(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows are of messages in the range that is wanted, or may be."""
        import numpy as np

        found = np.ones(len(rows), dtype=np.bool_)
        if self._filters.first is not None:
            found &= ~rows.has_sequence | (rows.sequence >= self._filters.first)
        if self._filters.last is not None:
            found &= ~rows.has_sequence | (rows.sequence <= self._filters.last)
        return found

    def _fail_fast(self, told: _Told) -> None:
        """Raise ``CorruptData`` for the first damage that may have been what is wanted."""
        rows = told.rows
        is_bad = ~told.is_whole & ~rows.is_harmless & self._is_within(rows)
        if is_bad.any():
            row = int(is_bad.argmax())
            status, reason = told.fault(row)
            raise CorruptData(
                why(status, reason), path=self._plan.path, offset=int(rows.offset[row])
            )

    def _make(self, name: str, told: _Told) -> pa.Array:
        import numpy as np

        rows, plan = told.rows, self._plan
        has_op = rows.op != files.NOTHING
        match name:
            case "kind":
                return arrow.words(rows.is_record.astype(np.int64), self._kinds)
            case "offset":
                return arrow.numbers(rows.offset, told.everywhere)
            case "size":
                return arrow.numbers(rows.size, told.everywhere)
            case "log_index":
                return arrow.numbers(rows.sequence, rows.has_sequence)
            case "task_id":
                return arrow.numbers(rows.sequence, has_op)
            case "key":
                return arrow.numbers(np.full(len(rows), plan.key, dtype=np.int64), has_op)
            case "op":
                return arrow.words(rows.op, _OPS)
            case "payload":
                return told.payload()
            case "properties":
                return told.properties()
            case "event_time":
                return told.messages.times()
            case "status":
                return told.statuses()
            case "reason":
                return told.reasons()
            case "severity":
                return told.severities()
        constants = {
            "source": self._source,
            "family": FAMILY,
            "path": plan.shown,
            "queue": plan.queue,
        }
        return arrow.same(constants.get(name), len(rows), self._types.field(name).type)


class _Told:
    """Rows, and what their messages say, worked out when it is first asked for."""

    def __init__(self, rows: Rows, plan: FilePlan, table: Table) -> None:
        import numpy as np

        self.rows = rows
        self._plan = plan
        self._table = table
        self.everywhere = np.ones(len(rows), dtype=np.bool_)
        self._messages: ScannedMessages | None = None
        self._faults: dict[int, tuple[str, str]] | None = None

    @property
    def messages(self) -> ScannedMessages:
        if self._messages is None:
            rows = self.rows
            self._messages = ScannedMessages(rows.data, rows.start, rows.length, rows.is_raw)
        return self._messages

    @property
    def faults(self) -> dict[int, tuple[str, str]]:
        """What is wrong with messages, by row."""
        if self._faults is None:
            reasons = self.messages.property_reasons()
            of_properties = {row: (BAD_PROPERTIES, reason) for row, reason in reasons.items()}
            self._faults = self.messages.faults | of_properties
        return self._faults

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.rows.status == 0
        found[list(self.faults)] = False
        return found

    def fault(self, row: int) -> tuple[str, str | None]:
        """Return status and reason of a row."""
        code = int(self.rows.status[row])
        return self.faults.get(row, (STATUSES[code], STATUS_REASONS[code]))

    def statuses(self) -> pa.Array:
        return self._words(STATUSES, 0)

    def reasons(self) -> pa.Array:
        return self._words(STATUS_REASONS | {0: None}, 1)

    def severities(self) -> pa.Array:
        import numpy as np

        costs = np.where(self.rows.is_harmless, 1, 2)
        costs[self.is_whole] = 0
        return arrow.words(costs, {0: None, 1: Severity.HARMLESS, 2: Severity.LOST})

    def _words(self, meanings: Any, place: int) -> pa.Array:
        import pyarrow as pa

        column = arrow.words(self.rows.status, meanings)
        if not self.faults:
            return column
        words = column.to_pylist()
        for row, fault in self.faults.items():
            words[row] = fault[place]
        return pa.array(words, pa.string())

    def payload(self) -> pa.Array:
        import pyarrow as pa

        # What means nothing is shown as it stands, but nowhere without a status that says so.
        is_told = self._table is Table.ENTRIES
        spans = self.messages.bodies_or_terms() if is_told else self.messages.bodies()
        return spans.column(pa.binary())

    def properties(self) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        rows = self.rows
        made: list[Property] = []

        def add(name: str, is_said: NDArray[np.bool_], values: NDArray[Any]) -> None:
            places = np.flatnonzero(is_said)
            made.append(Property(name, places, pa.array(values[places]).cast(pa.string())))

        plan, said = self._plan, rows.is_published
        if plan.vhost is not None:
            every = np.arange(len(rows))
            made.append(Property("vhost", every, pa.repeat(plan.vhost, len(rows))))
        add("persistent", said, rows.is_persistent)
        with_id = np.flatnonzero(rows.id_offset >= 0)
        ids = rows.data[rows.id_offset[with_id][:, None] + np.arange(MESSAGE_ID_SIZE)]
        made.append(Property("message_id", with_id, hexadecimal(ids)))
        add("expiry_us", said & (rows.expiry_us > 0), rows.expiry_us)
        add("body_size", said, rows.body_size)
        with_location = np.flatnonzero(rows.location >= 0)
        words = arrow.words(rows.location[with_location], LOCATIONS | {-1: None})
        made.append(Property("location", with_location, words))
        is_own = rows.location == queue_v2.Location.QUEUE_STORE
        add("message_offset", is_own, rows.message_offset)
        add("message_size", is_own, rows.message_size)
        made += address_properties(self.messages, vhost=plan.vhost is None)
        made.append(property_text(self.messages))
        return properties(made, len(rows))
