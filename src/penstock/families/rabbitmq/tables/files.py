"""A broker's files as rows in columns, window by window. What a row is, the tools' ``dump`` says one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.families.rabbitmq.damage import HOLE, REASONS
from penstock.families.rabbitmq.tables.plan import FileKind, FilePlan
from penstock.formats.kernel import compiled
from penstock.formats.rabbitmq import journal, message_store, queue_v2
from penstock.formats.rabbitmq.journal import MESSAGE_ID_SIZE, PUBLISH_FIELDS, Kind
from penstock.storage.broker_files import (
    SLOTS,
    WINDOW,
    IndexWindow,
    scan_index_columns,
    scan_queue_store,
    scan_store_file,
    segment_scan_columns,
)
from penstock.storage.files import File, opened
from penstock.storage.log_end import end_of_data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOTHING, ADD, DELIVER, REMOVE = range(4)
"""What a row does, as codes."""

LOCATIONS: Final = {int(where): where.name.lower().replace("_", "-") for where in queue_v2.Location}

_ENUMS: Final = (
    journal.Status,
    message_store.Status,
    queue_v2.SlotStatus,
    queue_v2.RecordStatus,
)
_WORDS: Final = tuple(dict.fromkeys(status.word for kind in _ENUMS for status in kind))
_HOLE: Final = len(_WORDS)  # zeros in a store, which are no damage wherever they are
STATUSES: Final = dict(enumerate(_WORDS)) | {_HOLE: "zeros"}
"""The words of all statuses by our codes; 0 is ``ok``."""

STATUS_REASONS: Final = {code: REASONS.get(word) for code, word in enumerate(_WORDS)} | {
    _HOLE: HOLE
}
_ZEROS: Final = _WORDS.index("zeros")


@dataclass(slots=True)
class Rows:
    """Rows about one window of a file: an array a field, and the bytes that some of them count in."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]  # in the file
    size: NDArray[np.int64]
    status: NDArray[np.int64]
    is_record: NDArray[np.bool_]
    op: NDArray[np.int64]
    sequence: NDArray[np.int64]
    has_sequence: NDArray[np.bool_]
    start: NDArray[np.int64]  # of the message in ``data``
    length: NDArray[np.int64]  # 0: there is none
    is_raw: NDArray[np.bool_]  # whether the message is to be shown as it stands
    id_offset: NDArray[np.int64]  # of the message's id in ``data``; -1: it says none
    # What an index says of a message that it publishes.
    is_published: NDArray[np.bool_]
    is_persistent: NDArray[np.bool_]
    expiry_us: NDArray[np.uint64]
    body_size: NDArray[np.int64]
    # What an index of version 2 says beyond that; -1: it is none.
    location: NDArray[np.int64]
    message_offset: NDArray[np.uint64]
    message_size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, wanted: NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        if wanted.all():
            return self
        chosen = {
            each.name: getattr(self, each.name)[wanted]
            for each in fields(self)
            if each.name != "data"
        }
        return Rows(data=self.data, **chosen)

    @property
    def is_harmless(self) -> NDArray[np.bool_]:
        """Which rows that are not whole tell of nothing lost: zeros behind records, or in a store."""
        found: NDArray[np.bool_] = (self.status == _HOLE) | (
            (self.status == _ZEROS) & (self.offset > 0)
        )
        return found


def _rows(data: NDArray[np.uint8], offset: NDArray[np.int64], **known: NDArray[Any]) -> Rows:
    """Return rows of which only some fields are known."""
    import numpy as np

    count = len(offset)
    no = np.zeros(count, dtype=np.bool_)
    zero = np.zeros(count, dtype=np.int64)
    none = np.full(count, -1, dtype=np.int64)
    unknown: dict[str, NDArray[Any]] = {
        "op": zero,
        "sequence": zero,
        "has_sequence": no,
        "start": zero,
        "length": zero,
        "is_raw": no,
        "id_offset": none,
        "is_published": no,
        "is_persistent": no,
        "expiry_us": zero.view(np.uint64),
        "body_size": zero,
        "location": none,
        "message_offset": zero.view(np.uint64),
        "message_size": zero,
    }
    return Rows(data=data, offset=offset, **unknown | known)


def _codes(kind: type[Any]) -> NDArray[np.int64]:
    """Return our code for each status of a file's own."""
    import numpy as np

    words = [_WORDS.index(status.word) for status in kind]
    if kind is message_store.Status:
        words[message_store.Status.ZEROS] = _HOLE
    return np.array(words, dtype=np.int64)


def read_rows(plan: FilePlan) -> Iterator[Rows]:
    """Yield what a plan is about. Raises ``BadData``, ``InvalidValue``, ``OSError`` or ``PathRefused``."""
    with opened(Path(plan.path)) as file:
        match plan.kind:
            case FileKind.SEGMENT:
                yield from _segment_rows(file, plan)
            case FileKind.JOURNAL:
                yield from _journal_rows(file)
            case FileKind.INDEX:
                yield from _slot_rows(file)
            case FileKind.QUEUE_STORE:
                yield from _queue_store_rows(file)
            case FileKind.STORE:
                yield from _store_rows(file, plan)


# --- journals and segments -----------------------------------------------------------------------


def _journal_rows(file: File) -> Iterator[Rows]:
    import numpy as np

    ops = np.array([ADD, ADD, DELIVER, REMOVE, NOTHING, NOTHING], dtype=np.int64)  # by kind
    for window in scan_index_columns(file, journal.scan_journal_columns):
        yield _index_rows(window, ops[window.pieces.kind])


def _segment_rows(file: File, plan: FilePlan) -> Iterator[Rows]:
    import numpy as np

    scan = segment_scan_columns(plan.number, plan.entry_count)
    first = plan.number * plan.entry_count
    turns = np.zeros(plan.entry_count, dtype=np.int64)
    for window in scan_index_columns(file, scan):
        pieces = window.pieces
        op = np.zeros(len(pieces), dtype=np.int64)
        compiled(_turn_kernel)(pieces.kind, pieces.sequence, first, turns, op)
        yield _index_rows(window, op)


def _turn_kernel(kind: Any, sequence: Any, first: Any, turns: Any, op: Any) -> None:
    """Report delivers from acks: of a message the first is its deliver, those behind it are its ack."""
    for row in range(len(kind)):
        at = sequence[row] - first
        if kind[row] <= 1:
            turns[at] = 0
            op[row] = 1
        elif kind[row] == 4:
            op[row] = 2 if turns[at] == 0 else 3
            turns[at] += 1


def _index_rows(window: IndexWindow, op: NDArray[np.int64]) -> Rows:
    import numpy as np

    pieces = window.pieces
    is_published = pieces.kind <= int(Kind.PUBLISH_TRANSIENT)
    ends = pieces.offset + pieces.size
    is_record = pieces.kind != int(Kind.NONE)
    return _rows(
        window.data,
        pieces.offset + window.base,
        size=pieces.size,
        status=_codes(journal.Status)[pieces.status],
        is_record=is_record,
        op=op,
        sequence=pieces.sequence,
        has_sequence=is_record,
        start=ends - pieces.length,
        length=pieces.length,
        id_offset=np.where(is_published, ends - pieces.length - PUBLISH_FIELDS.size, -1),
        is_published=is_published,
        is_persistent=pieces.kind == int(Kind.PUBLISH_PERSISTENT),
        expiry_us=pieces.expiry_us,
        body_size=pieces.body_size,
    )


# --- stores --------------------------------------------------------------------------------------


def _store_rows(file: File, plan: FilePlan) -> Iterator[Rows]:
    """Yield the records and gaps that begin in a part of a store file.

    Any message may hold what looks like records, so only a scan from the beginning knows where one begins. From
    a boundary that it came by, what it finds depends on nothing that stands before.
    """
    import numpy as np

    head_size = message_store.HEAD.size
    for window in scan_store_file(file):
        pieces = window.pieces
        offset = pieces.offset + window.base
        is_ours = offset >= plan.start
        if plan.stop is not None:
            is_ours &= offset < plan.stop
            if len(offset) and int(offset[0]) >= plan.stop:
                return
        if not is_ours.any():
            continue
        is_message = pieces.length > 0
        rows = _rows(
            window.data,
            offset,
            size=pieces.size,
            status=_codes(message_store.Status)[pieces.status],
            is_record=is_message,
            start=pieces.offset + head_size,
            length=pieces.length,
            id_offset=np.where(is_message, pieces.offset + head_size - MESSAGE_ID_SIZE, -1),
        )
        yield rows.only(is_ours)


# --- version 2 -----------------------------------------------------------------------------------

_SLOT: Final = [
    ("status", "u1"),
    ("flags", "u1"),
    ("zero", "u1"),
    ("location", "u1"),
    ("place", ">u8"),
    ("length", ">u4"),
    ("rest", ">u4"),
    ("body_size", ">u4"),
    ("expiry_us", ">u8"),
]


def _slot_rows(file: File) -> Iterator[Rows]:
    header = queue_v2.decode_index_header(file.read(0, queue_v2.HEADER_SIZE))
    size, offset = file.size(), queue_v2.HEADER_SIZE
    slots_end = offset + queue_v2.SLOT.size * (header.end - header.first)
    first = int(header.first)
    while offset < min(size, slots_end):
        data = file.read(offset, min(SLOTS * queue_v2.SLOT.size, slots_end - offset))
        if not data:
            break
        yield from _slots(data, offset, first)
        first += len(data) // queue_v2.SLOT.size
        offset += len(data)
    if end_of_data(file, slots_end, size) > slots_end:
        rest = size - slots_end
        yield _bad_slot(slots_end, rest, queue_v2.SlotStatus.LEFTOVER, int(header.end))


def _slots(raw: bytes, offset: int, first: int) -> Iterator[Rows]:
    """Yield the slots of a window that are not empty; a file may end inside the last."""
    import numpy as np

    width = queue_v2.SLOT.size
    count, torn = divmod(len(raw), width)
    data = np.frombuffer(raw, dtype=np.uint8)
    slots = data[: count * width].view(_SLOT)
    places = np.flatnonzero(slots["status"])
    if len(places):
        found = slots[places]
        location = found["location"].astype(np.int64)
        status = np.where(location > max(queue_v2.Location), queue_v2.SlotStatus.BAD_LOCATION, 0)
        status = np.where(found["status"] != 1, queue_v2.SlotStatus.BAD_STATUS, status)
        is_whole = status == 0
        is_shared = is_whole & (location == queue_v2.Location.SHARED_STORE)
        yield _rows(
            data,
            places * width + offset,
            size=np.full(len(places), width, dtype=np.int64),
            status=_codes(queue_v2.SlotStatus)[status],
            is_record=is_whole,
            op=np.where(is_whole, ADD, NOTHING),
            sequence=places + first,
            has_sequence=np.ones(len(places), dtype=np.bool_),
            id_offset=np.where(is_shared, places * width + 4, -1),
            is_published=is_whole,
            is_persistent=(found["flags"] & 1) == 1,
            expiry_us=found["expiry_us"].astype(np.uint64),
            body_size=found["body_size"].astype(np.int64),
            location=np.where(is_whole, location, -1),
            message_offset=found["place"].astype(np.uint64),
            message_size=found["length"].astype(np.int64),
        )
    if torn and raw[count * width]:
        yield _bad_slot(offset + count * width, torn, queue_v2.SlotStatus.TORN, first + count)


def _bad_slot(offset: int, size: int, status: queue_v2.SlotStatus, sequence: int) -> Rows:
    import numpy as np

    return _rows(
        np.zeros(0, dtype=np.uint8),
        np.array([offset]),
        size=np.array([size]),
        status=_codes(queue_v2.SlotStatus)[[status]],
        is_record=np.array([False]),
        sequence=np.array([sequence]),
        has_sequence=np.array([True]),
    )


def _queue_store_rows(file: File) -> Iterator[Rows]:
    queue_v2.decode_store_header(file.read(0, queue_v2.HEADER_SIZE))
    held: list[tuple[queue_v2.Record, bytes]] = []
    size = 0
    for record, message in scan_queue_store(file):
        held.append((record, message))
        size += len(message)
        if size >= WINDOW:
            yield _queue_store_window(held)
            held, size = [], 0
    if held:
        yield _queue_store_window(held)


def _queue_store_window(held: list[tuple[queue_v2.Record, bytes]]) -> Rows:
    import numpy as np

    data = np.frombuffer(b"".join(message for _, message in held), dtype=np.uint8)
    length = np.array([len(message) for _, message in held], dtype=np.int64)
    status = np.array([record.status for record, _ in held], dtype=np.int64)
    return _rows(
        data,
        np.array([record.offset for record, _ in held], dtype=np.int64),
        size=np.array([record.size for record, _ in held], dtype=np.int64),
        status=_codes(queue_v2.RecordStatus)[status],
        is_record=length > 0,
        start=np.cumsum(length) - length,
        length=length,
        is_raw=status != 0,
    )
