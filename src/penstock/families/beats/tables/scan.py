"""Reading a split of a spool into columns. Runs on executors; frames never become objects, events only if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import Compacted, CorruptData, InvalidValue
from penstock.families import arrow
from penstock.families.arrow import properties
from penstock.families.beats.damage import (
    BAD_CHECKSUM,
    BAD_END,
    GAP,
    GONE,
    TORN,
    UNREADABLE,
    WRONG_KEY,
    damage_at,
    severity_of,
)
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.tables.events import Events, Undecoded
from penstock.families.beats.tables.plan import NUMBER_MAX, SegmentPlan, key_for, number_of
from penstock.families.beats.tables.read import read_segment, waits_from
from penstock.families.damage import Damage, Severity, words_of
from penstock.families.family import Split
from penstock.families.plan import DamagePlan, damage_rows, read_damage, why
from penstock.families.tables import OK, Kind, Mode, Op, ReadOptions, Table, schema_of
from penstock.formats.beats.frame import FRAME_MAX, FRAME_MIN, Verdict
from penstock.formats.beats.frame_scan import FrameColumns
from penstock.model import INT64_MAX

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_STATUSES: Final = {
    int(Verdict.GOOD): OK,
    int(Verdict.OTHER_END): BAD_END,
    int(Verdict.FRAME): BAD_CHECKSUM,
    int(Verdict.GAP): GAP,
    int(Verdict.TAIL): TORN,
}
_REASONS: Final[dict[int, str | None]] = {
    int(Verdict.GOOD): None,
    int(Verdict.OTHER_END): "the frame is whole, but the length at its end is another",
    int(Verdict.FRAME): "the checksum does not match",
    int(Verdict.GAP): "no frame, up to the next one",
    int(Verdict.TAIL): "no whole frame, up to the end",
}
_SEVERITIES: Final[dict[int, str | None]] = {
    code: None if status == OK else severity_of(status) for code, status in _STATUSES.items()
}
_KINDS: Final[dict[int, str | None]] = {0: Kind.DAMAGE, 1: Kind.FRAME}


def read_split(
    split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split."""
    plan = split.plan
    if isinstance(plan, SegmentPlan):
        yield from _Reading(split.source, plan, options, columns).batches()
    elif isinstance(plan, DamagePlan):
        yield from read_damage(split, options, columns)


class _Reading:
    """One pass over a segment, or over a part of it."""

    def __init__(
        self,
        source: str,
        plan: SegmentPlan,
        options: ReadOptions,
        columns: Sequence[str],
    ) -> None:
        self._source = source
        self._plan = plan
        self._options = options
        self._filters = options.filters
        self._columns = columns
        self._types = schema_of(Table.ENTRIES)
        self._waits_from = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        key = key_for(Path(plan.path), plan.header.options, self._options)
        try:
            if self._options.table is not Table.ENTRIES:
                self._waits_from = waits_from(plan, key)
            if self._options.table is Table.TASKS:
                if self._waits_from == INT64_MAX:
                    return
                plan = replace(plan, first=max(plan.first, self._waits_from))
            for found in read_segment(plan, key):
                if isinstance(found, Damage):
                    yield from self._damage(found)
                else:
                    yield from self._build(found)
        except FileNotFoundError:
            yield from self._gone()
        except OSError as error:
            yield from self._damage(damage_at(Path(plan.path), UNREADABLE, words_of(error)))

    def _gone(self) -> Iterator[pa.RecordBatch]:
        path, reason = Path(self._plan.path), "the file went away meanwhile: its owner removed it"
        if not self._plan.is_streamed:
            yield from self._damage(damage_at(path, GONE, reason))
        elif self._options.fail_on_data_loss:
            raise Compacted(f"{path}: {reason}; go on without it: failOnDataLoss=false")

    def _damage(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        if damage.status == WRONG_KEY and self._options.table is not Table.ENTRIES:
            raise InvalidValue(f"{damage.path}: {damage.reason}; check the key")
        if self._filters.is_open or self._options.mode is Mode.FAILFAST:
            yield from damage_rows(
                FAMILY, self._source, self._plan.shown, damage, self._options, self._columns
            )

    def _build(self, frames: FrameColumns) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are wanted."""
        told = _Told(frames, self._plan)
        within = self._is_within(frames)
        if self._options.mode is not Mode.PERMISSIVE:
            if self._options.mode is Mode.FAILFAST:
                self._fail_fast(told, within)
            within &= told.is_readable
        if self._filters.queues is not None:
            within &= told.events.is_in(self._filters.queues)
        told = told.only(within & self._has_row(frames))
        for op, rows in self._by_op(told):
            if len(rows.frames):
                made = {name: self._make(name, rows, op) for name in self._columns}
                yield arrow.batch(made, self._columns)

    def _has_row(self, frames: FrameColumns) -> NDArray[np.bool_]:
        """Return what has a row in the table: damage is only told of among entries, and if nothing else is asked."""
        import numpy as np

        is_told = self._options.table is Table.ENTRIES and self._filters.is_open
        return (frames.verdict <= Verdict.OTHER_END) | np.bool_(is_told)

    def _is_within(self, frames: FrameColumns) -> NDArray[np.bool_]:
        """Return which rows are in the range that is wanted, or may be."""
        import numpy as np

        found = np.ones(len(frames), dtype=np.bool_)
        if self._plan.number > NUMBER_MAX:
            return found & (self._filters.first is None and self._filters.last is None)
        is_numbered = frames.verdict <= Verdict.FRAME
        numbers = frames.index + (number_of(self._plan.number, 0) or 0)
        if self._filters.first is not None:
            found &= ~is_numbered | (numbers >= self._filters.first)
        if self._filters.last is not None:
            found &= ~is_numbered | (numbers <= self._filters.last)
        return found

    def _fail_fast(self, told: _Told, within: NDArray[np.bool_]) -> None:
        """Raise ``CorruptData`` for the first damage that may have been what is wanted."""
        is_bad = ~told.is_readable & ~told.is_expected & within
        if is_bad.any():
            row = int(is_bad.argmax())
            code = int(told.frames.verdict[row])
            event = told.events.undecoded.get(row)
            status, reason = (_STATUSES[code], _REASONS[code]) if event is None else event  # fmt: skip
            offset = int(told.frames.offset[row])
            raise CorruptData(why(status, reason), path=self._plan.path, offset=offset)

    def _by_op(self, told: _Told) -> Iterator[tuple[str, _Told]]:
        """Yield rows with what they say was done: each frame was added, and those before the position were removed."""
        wanted = self._filters.ops
        if wanted is None or Op.ADD in wanted:
            yield Op.ADD, told
        if self._options.table is Table.CHANGES and (wanted is None or Op.REMOVE in wanted):
            yield Op.REMOVE, told.only(told.frames.offset < self._waits_from)

    def _make(self, name: str, told: _Told, op: str) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        frames, count = told.frames, len(told.frames)
        kind = self._types.field(name).type
        is_removal = op == Op.REMOVE
        match name:
            case "kind":
                return arrow.words(told.is_frame.astype(np.int64), _KINDS)
            case "offset":
                return arrow.numbers(frames.offset, told.everywhere)
            case "size":
                return arrow.numbers(frames.size, told.everywhere)
            case "log_index" | "task_id":
                is_there = frames.verdict <= Verdict.FRAME if name == "log_index" else told.is_frame
                first = number_of(self._plan.number, 0)
                if first is None:
                    return arrow.same(None, count, kind)
                return arrow.numbers(frames.index + first, is_there)
            case "op":
                return arrow.words(told.is_frame.astype(np.int64), {0: None, 1: op})
            case "payload" | "properties" | "event_time" if is_removal:
                return arrow.same(None, count, kind)
            case "payload":
                return arrow.stretches(
                    frames.data, frames.payload_start, frames.payload_size, told.everywhere, pa.binary()
                )  # fmt: skip
            case "queue":
                return told.events.queues()
            case "key":
                return told.events.keys()
            case "event_time":
                return told.events.times()
            case "properties":
                return told.properties()
            case "status":
                return told.words(_STATUSES, lambda event: event.status)
            case "reason":
                return told.words(_REASONS, lambda event: event.reason)
            case "severity":
                return told.severities()
        constants = {"source": self._source, "family": FAMILY, "path": self._plan.shown}
        return arrow.same(constants.get(name), count, kind)


class _Told:
    """Frames, and what their events say, worked out when it is first asked for."""

    def __init__(
        self, frames: FrameColumns, plan: SegmentPlan, events: Events | None = None
    ) -> None:
        import numpy as np

        self.frames = frames
        self._plan = plan
        self.events = events or Events(frames, plan.header.payload_format, plan.queue)
        self.is_frame = self.events.is_frame
        self.everywhere = np.ones(len(frames), dtype=np.bool_)

    def only(self, wanted: NDArray[np.bool_]) -> _Told:
        """Return some of the rows."""
        if wanted.all():
            return self
        frames = self.frames.only(wanted)
        return _Told(frames, self._plan, self.events.only(frames, wanted))

    @property
    def is_readable(self) -> NDArray[np.bool_]:
        """Which rows are events."""
        found = self.is_frame.copy()
        found[list(self.events.undecoded)] = False
        return found

    @property
    def is_expected(self) -> NDArray[np.bool_]:
        """Which rows are odd and yet tell of nothing lost: a whole frame, or a tail that a crash leaves."""
        frames, header = self.frames, self._plan.header
        found: NDArray[np.bool_] = frames.verdict == Verdict.OTHER_END
        if self._plan.is_newest or header.count == 0:
            is_tail = frames.verdict == Verdict.TAIL
            if is_tail.any():
                row = int(is_tail.argmax())
                found[row] = int(frames.offset[row]) > header.size or _is_torn(frames, row)
        return found

    def words(
        self, meanings: Mapping[int, str | None], of_event: Callable[[Undecoded], str]
    ) -> pa.Array:
        """Return a word for each row: by its verdict, or by what is wrong with its event."""
        import numpy as np
        import pyarrow as pa

        column = arrow.words(self.frames.verdict.astype(np.int64), meanings)
        if not self.events.undecoded:
            return column
        words = column.to_pylist()
        for row, event in self.events.undecoded.items():
            words[row] = of_event(event)
        return pa.array(words, pa.string())

    def severities(self) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.words(_SEVERITIES, lambda event: severity_of(event.status))
        is_tail = self.is_expected & (self.frames.verdict == Verdict.TAIL)
        return pc.if_else(pa.array(is_tail), str(Severity.HARMLESS), column)

    def properties(self) -> pa.Array:
        return properties(self.events.properties(), len(self.frames))


def _is_torn(frames: FrameColumns, row: int) -> bool:
    """Return whether a frame begins here that the file ends in, or nothing was written: not just any bytes."""
    start, size = int(frames.payload_start[row]), int(frames.payload_size[row])
    shown = frames.data[start : start + size]
    length = int.from_bytes(shown[:4].tobytes(), "little")
    return size < 4 or not shown.any() or FRAME_MIN <= length <= FRAME_MAX
