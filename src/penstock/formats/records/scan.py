"""Scanning files of records in bulk: headers, tasks and ids as columns (docs/formats/records.md).

A kernel walks over records that fit: marker, head checksum, values of the header, body checksum, chain, index. Where one
does not, `read.walk` goes on from there: it alone says why a scan ends. Bodies above ``SMALL_BODY`` are checked by the
processor's instruction, which a kernel cannot use; smaller ones in the kernel, because a call would cost more.

A header is judged by the same functions as in the plain reader. Columns are read as 64-bit words: they begin at multiples of 8.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as checksum_of_bytes

from penstock.binary import Bytes
from penstock.errors import TruncatedData
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import crc, crc_tables, emit
from penstock.formats.records.header import (
    HEADER_SIZE,
    LOCAL_KIND_MIN,
    MARKER_NUMBER,
    is_possible,
    unpack_header,
)
from penstock.formats.records.read import (
    UNKNOWN,
    Chain,
    End,
    Stop,
    break_in_chain,
    collect,
    walk,
)
from penstock.formats.records.segment import FILE_HEADER_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, lowest bit first
SMALL_BODY: Final = 512
"""Up to this size a kernel checks a body faster than a call of the library does (measured)."""

_ALL: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Records as one array for each field of the header. Ids are the bits of u64."""

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    kind: NDArray[np.int64]
    flags: NDArray[np.int64]
    version: NDArray[np.int64]
    index: NDArray[np.int64]
    term: NDArray[np.int64]
    time_ms: NDArray[np.int64]
    body_checksum: NDArray[np.int64]
    checksum: NDArray[np.int64]  # of the header
    queue_id: NDArray[np.int64]
    principal_id: NDArray[np.int64]
    first_id: NDArray[np.int64]
    count: NDArray[np.int64]  # the first number of the body: tasks of an add, ids of a change by id

    def __len__(self) -> int:
        return len(self.offset)


_FIELDS: Final = tuple(RecordColumns.__dataclass_fields__)


def _columns(rows: NDArray[np.int64]) -> RecordColumns:
    return RecordColumns(**dict(zip(_FIELDS, rows, strict=True)))


class Buffers(NamedTuple):
    """One buffer as the kernels take it: bytes and 64-bit words."""

    data: NDArray[np.uint8]
    words: NDArray[np.int64]


def buffers(data: Bytes | NDArray[np.uint8]) -> Buffers:
    """Return views of a buffer for kernels; bytes behind the last multiple of 8 are no record."""
    with bulk():
        import numpy as np

    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    return Buffers(array, array[: len(array) & ~7].view(np.int64))


def scan_records(
    data: Bytes | NDArray[np.uint8],
    *,
    start: int = FILE_HEADER_SIZE,
    chain: Chain | None = None,
    is_snapshot: bool = False,
    is_last: bool = True,
    check_bodies: bool = True,
    batch_rows: int = BATCH_ROWS,
) -> Generator[RecordColumns, None, End]:
    """Yield the records from ``start`` on in batches of columns; return how they end, as `read.walk` does.

    ``is_last`` is false for a window of a file that goes on behind it: a record that is cut then ends the scan with
    ``Stop.MORE``. Without ``check_bodies`` only headers and chain are checked. Needs numpy and numba.
    """
    with bulk():
        import numpy as np

    views, kernel = buffers(data), compiled(_scan_kernel)
    tables = crc_tables(POLYNOMIAL, is_reflected=True, interpreted=False)
    end = 8 * len(views.words)
    known = chain or Chain(None, 0)
    checksum = UNKNOWN if known.checksum is None else known.checksum
    index = UNKNOWN if chain is None else known.index
    body_max = SMALL_BODY if check_bodies else -1
    position, is_full = start, True
    while is_full:
        room = max(1, min(batch_rows, (end - position) // HEADER_SIZE))
        rows = np.empty((len(_FIELDS), room), dtype=np.int64)
        count, position, checksum, index, is_full = kernel(
            *views, position, end, checksum, index, is_snapshot, body_max, tables, rows
        )
        batch = _columns(rows[:, :count])
        good = _check_large_bodies(views.data, batch) if check_bodies else count
        if good < count:
            position, is_full = int(batch.offset[good]), False
            batch = _columns(rows[:, :good])
        if good:
            yield batch
            chain = Chain(int(batch.checksum[-1]), int(batch.index[-1]))
    return _end(data, position, chain, is_snapshot=is_snapshot, is_last=is_last)


def _check_large_bodies(data: Any, batch: RecordColumns) -> int:
    """Return how many records, from the first on, have bodies that match their checksums."""
    large = (batch.size > SMALL_BODY + HEADER_SIZE).nonzero()[0]
    starts = (batch.offset + HEADER_SIZE)[large].tolist()
    ends = (batch.offset + batch.size)[large].tolist()
    stored = batch.body_checksum[large].tolist()
    for row, start, end, checksum in zip(large.tolist(), starts, ends, stored, strict=True):
        if checksum_of_bytes(data[start:end]) != checksum:
            return row
    return len(batch)


def _end(data: Any, position: int, chain: Chain | None, *, is_snapshot: bool, is_last: bool) -> End:
    """Let the plain reader say what is at ``position``, where the kernel stopped."""
    records = walk(memoryview(data), offset=position, chain=chain, is_snapshot=is_snapshot)
    found, end = collect(records)
    assert not found, "the kernel refused a record that the reader takes"
    if isinstance(end.damage, TruncatedData) and not is_last:
        return End(end.position, Stop.MORE, end.chain)
    return end


# --- the kernel of headers -----------------------------------------------------------------------


def low(word: Any) -> Any:
    """Return the first four bytes of a word as an unsigned integer."""
    return word & 0xFFFFFFFF


def high(word: Any) -> Any:
    """Return the last four bytes of a word as an unsigned integer."""
    return (word >> 32) & 0xFFFFFFFF


def u32_at(words: Any, at: Any) -> Any:
    """Return the unsigned integer in the four bytes from ``at``, a multiple of 4, on."""
    return (words[at >> 3] >> ((at & 4) * 8)) & 0xFFFFFFFF


def _scan_kernel(
    data: Any, words: Any, position: Any, end: Any, checksum: Any, index: Any, is_snapshot: Any,
    body_max: Any, tables: Any, rows: Any,
) -> Any:  # fmt: skip
    """Write a row for each record that fits; return rows, position, last checksum and index, whether rows are full."""
    count = 0
    while position + HEADER_SIZE <= end:
        if count == rows.shape[1]:
            return count, position, checksum, index, True
        size = _emit_record(data, position, end, checksum, index, is_snapshot, tables, rows, count)
        if size == 0:
            break
        body_size = size - HEADER_SIZE
        start = position + HEADER_SIZE
        if body_size <= body_max and (
            crc(data, start, start + body_size, _ALL, tables) ^ _ALL != rows[_BODY_CHECKSUM, count]
        ):
            break
        checksum, index = rows[_CHECKSUM, count], rows[_INDEX, count]
        rows[_COUNT, count] = low(words[start >> 3]) if body_size else 0
        count += 1
        position += size
    return count, position, checksum, index, False


def _emit_record(
    data: Any, position: Any, end: Any, known_checksum: Any, known_index: Any, is_snapshot: Any,
    tables: Any, rows: Any, row: Any,
) -> Any:  # fmt: skip
    """Write the row of the record at ``position``; return its size, or 0 if it is not one that continues the others."""
    (
        marker, checksum, size, kind, flags, version, index, term, time_ms,
        body_checksum, previous, queue_id, principal_id, first_id,
    ) = unpack_header(data, position)  # fmt: skip
    if marker != MARKER_NUMBER or not is_possible(size, flags, index, term, time_ms):
        return 0
    actual = crc(data, position + 8, position + HEADER_SIZE, _ALL, tables) ^ _ALL
    if actual != checksum or position + size > end:
        return 0
    if kind >= LOCAL_KIND_MIN and not is_snapshot:
        return 0  # a footer, or damage
    if break_in_chain(kind, index, previous, known_checksum, known_index, is_snapshot):
        return 0
    emit(
        rows, row,
        (
            position, size, kind, flags, version, index, term, time_ms, body_checksum, checksum,
            queue_id, principal_id,
        ),
    )  # fmt: skip
    rows[_FIRST_ID, row] = first_id  # alone, because it is unsigned to numba
    return size


_INDEX, _BODY_CHECKSUM, _CHECKSUM, _FIRST_ID, _COUNT = (
    _FIELDS.index(name) for name in ("index", "body_checksum", "checksum", "first_id", "count")
)
