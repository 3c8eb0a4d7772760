"""The records of a split, window by window, checked in bulk; where they do not fit, the plain reader says what is wrong.

A split is read on its own: its plan says what its first record must continue. Damage is looked at in the context of its segment, so
a split that meets damage reads its segment again, entry by entry, and yields what is in its range.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import BadData
from penstock.families.damage import Damage, Severity
from penstock.families.penstock.location import StoredFile, resolve
from penstock.families.penstock.read import bad_file, load, survey
from penstock.families.penstock.scan import Entry, scan_segment
from penstock.families.penstock.tables.plan import RecordsPlan
from penstock.formats.records.header import RECORD_SIZE_MAX
from penstock.formats.records.read import Chain, End, Located, Stop, collect, walk
from penstock.formats.records.scan import RecordColumns, scan_records
from penstock.formats.records.segment import FILE_HEADER_SIZE, decode_file_header
from penstock.storage.files import File, opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW: Final = 8 * 2**20
"""Bytes that are read at once: large enough for the disk, small enough for a cache of a processor to matter little."""


class Batch(NamedTuple):
    """Records of one window. ``base`` is the place of its first byte in the file."""

    data: NDArray[np.uint8]
    base: int
    records: RecordColumns


Found = Batch | Damage


def read_records(plan: RecordsPlan, source: str) -> Iterator[Found]:
    """Yield the records of a split, and the damage between them."""
    term, time_ms = 0, 0
    position = plan.start
    with opened(Path(plan.path)) as file:
        windows = _Windows(file, plan)
        is_headed = plan.start > FILE_HEADER_SIZE or _is_headed(file, plan)
        for batch in windows.run() if is_headed else ():
            if _falls(batch.records, term, time_ms):
                break
            term, time_ms = int(batch.records.term[-1]), int(batch.records.time_ms[-1])
            position = batch.base + int(batch.records.offset[-1] + batch.records.size[-1])
            yield batch
        else:
            if is_headed and windows.is_whole:
                return
    yield from _one_by_one(plan, source, position)


def _is_headed(file: File, plan: RecordsPlan) -> bool:
    """Return whether the header of a file is whole and says what its name and its directory say."""
    try:
        header = decode_file_header(file.read(0, FILE_HEADER_SIZE))
    except BadData:
        return False
    index = None if plan.index is None else plan.index + (not plan.is_snapshot)
    is_ours = plan.cluster_id in (None, header.cluster_id)
    return index in (None, header.first_index) and is_ours


def _falls(records: RecordColumns, term: int, time_ms: int) -> bool:
    """Return whether terms or times fall, which no log has."""
    import numpy as np

    return bool(
        records.term[0] < term
        or records.time_ms[0] < time_ms
        or (np.diff(records.term) < 0).any()
        or (np.diff(records.time_ms) < 0).any()
    )


class _Windows:
    """Reads a split in windows that end behind a whole record."""

    def __init__(self, file: File, plan: RecordsPlan) -> None:
        self._file = file
        self._plan = plan
        self.is_whole = False  # whether the split ended as a file without damage does

    def run(self) -> Iterator[Batch]:
        import numpy as np

        plan, chain = self._plan, self._plan.chain
        limit = self._file.size() if plan.stop is None else plan.stop
        position, size = plan.start, WINDOW
        while position < limit:
            raw = self._file.read(position, min(size, limit - position))
            data = np.frombuffer(raw, dtype=np.uint8)
            is_last = position + len(raw) >= limit
            end = yield from self._window(data, position, chain, is_last=is_last)
            if end.stop is Stop.MORE and end.position == 0 and size <= RECORD_SIZE_MAX:
                size = RECORD_SIZE_MAX + WINDOW
                continue
            if end.stop is not Stop.MORE:
                self.is_whole = end.stop is not Stop.DAMAGE and (
                    plan.stop is None or position + end.position == plan.stop
                )
                return
            position, chain, size = position + end.position, end.chain, WINDOW
        self.is_whole = True

    def _window(
        self, data: NDArray[np.uint8], base: int, chain: Chain | None, *, is_last: bool
    ) -> Generator[Batch, None, End]:
        """Yield the records of a window; return how they end."""
        records = scan_records(
            data, start=0, chain=chain, is_snapshot=self._plan.is_snapshot, is_last=is_last
        )
        while True:
            try:
                yield Batch(data, base, next(records))
            except StopIteration as done:
                end: End = done.value
                return end


# --- damage --------------------------------------------------------------------------------------


def _one_by_one(plan: RecordsPlan, source: str, behind: int) -> Iterator[Found]:
    """Yield the entries and the damage of a split from ``behind`` on, as the plain reader finds them in the segment."""
    if plan.is_snapshot:
        yield from _rest_of_snapshot(plan, behind)
        return
    target = resolve(Path(source))
    history = survey(target)
    file = next((each for each in target.segments if str(each.path) == plan.path), None)
    if file is None:
        raise FileNotFoundError(plan.path)
    stop = file.size + 1 if plan.stop is None else plan.stop
    is_first = plan.start == behind
    entries: list[Entry] = []
    chain = Chain(plan.checksum, plan.index) if plan.index is not None else None
    for found in scan_segment(history, file, chain if _begins(plan) else None):
        if isinstance(found, Entry) and behind <= found.offset < stop:
            entries.append(found)
        elif isinstance(found, Damage):
            at = found.offset or 0
            if behind <= at < stop or (is_first and _begins(plan) and at < behind):
                if entries:
                    yield _batch(entries)
                    entries = []
                yield found
    if entries:
        yield _batch(entries)


def _begins(plan: RecordsPlan) -> bool:
    """Return whether a split is the first of its file."""
    return plan.start == FILE_HEADER_SIZE


def _rest_of_snapshot(plan: RecordsPlan, behind: int) -> Iterator[Found]:
    path = Path(plan.path)
    data = load(StoredFile(path=path, size=path.stat().st_size, number=plan.index))
    _, end = collect(walk(data, chain=plan.chain, is_snapshot=True))
    error = end.damage or BadData("times or terms of a snapshot differ", offset=behind)
    yield bad_file(path, error, "bad-snapshot", Severity.LOST, "snapshot")


def _batch(entries: list[Entry]) -> Batch:
    """Return entries of one file as a window that is the file."""
    import numpy as np

    data = np.frombuffer(entries[0].data, dtype=np.uint8)
    return Batch(data, 0, columns_of([Located(each.offset, each.header) for each in entries], data))


def columns_of(records: list[Located], data: NDArray[np.uint8]) -> RecordColumns:
    """Return records as columns."""
    import numpy as np

    words = data[: len(data) & ~7].view(np.uint32)
    offset = np.array([record.offset for record in records], dtype=np.int64)
    headers = [record.header for record in records]

    def column(name: str) -> NDArray[np.int64]:
        values = [getattr(header, name) for header in headers]
        return np.array(values, dtype=np.uint64).view(np.int64)

    size = column("size")
    count = np.array(
        [int(words[(at + 64) >> 2]) if length > 64 else 0 for at, length in zip(offset.tolist(), size.tolist(), strict=True)],
        dtype=np.int64,
    )  # fmt: skip
    names = (
        "kind", "flags", "version", "index", "term", "time_ms", "body_checksum", "checksum", "queue_id",
        "principal_id", "first_id",
    )  # fmt: skip
    return RecordColumns(
        offset=offset, size=size, count=count, **{name: column(name) for name in names}
    )
