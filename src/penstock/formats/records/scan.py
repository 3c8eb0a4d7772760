"""Scanning files of records in bulk: headers, tasks and ids as columns (docs/formats/records.md).

A kernel walks over records that fit: marker, head checksum, values of the header, body checksum, chain, index. Where one
does not, `read.walk` goes on from there: it alone says why a scan ends. Bodies above ``SMALL_BODY`` are checked by the
processor's instruction, which a kernel cannot use; smaller ones in the kernel, because a call would cost more.

Kernels read 64-bit words: records and columns begin at multiples of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as checksum_of_bytes

from penstock.binary import Bytes
from penstock.errors import TruncatedData
from penstock.formats.kernel import BATCH_ROWS, bulk, compiled
from penstock.formats.kernel_bytes import crc, crc_tables, emit
from penstock.formats.records.header import (
    FLAGS,
    HEADER_SIZE,
    LOCAL_KIND_MIN,
    MARKER,
    RECORD_SIZE_MAX,
    TIME_MAX,
)
from penstock.formats.records.read import Chain, End, Stop, collect, walk
from penstock.formats.records.segment import FILE_HEADER_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, lowest bit first
SMALL_BODY: Final = 512
"""Up to this size a kernel checks a body faster than a call of the library does (measured)."""

_ALL: Final = 0xFFFFFFFF
_MARKER: Final = int.from_bytes(MARKER, "little")
_UNKNOWN: Final = -1  # in place of a checksum


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

    data: Any
    words: Any


def buffers(data: Bytes | NDArray[np.uint8], *, interpreted: bool = False) -> Buffers:
    """Return views of a buffer for kernels; bytes behind the last multiple of 8 are no record."""
    with bulk():
        import numpy as np

    if interpreted:
        raw = bytes(data)
        return Buffers(raw, memoryview(raw[: len(raw) & ~7]).cast("q"))
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
    interpreted: bool = False,
) -> Generator[RecordColumns, None, End]:
    """Yield the records from ``start`` on in batches of columns; return how they end, as `read.walk` does.

    ``is_last`` is false for a window of a file that goes on behind it: a record that is cut then ends the scan with
    ``Stop.MORE``. Without ``check_bodies`` only headers and chain are checked. Needs numpy and numba.
    """
    with bulk():
        import numpy as np

    views = buffers(data, interpreted=interpreted)
    kernel: Callable[..., Any] = _scan_kernel if interpreted else compiled(_scan_kernel)
    tables = crc_tables(POLYNOMIAL, is_reflected=True, interpreted=interpreted)
    end = 8 * len(views.words)
    known = chain or Chain(None, 0)
    checksum = _UNKNOWN if known.checksum is None else known.checksum
    index = _UNKNOWN if chain is None else known.index
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
        at = position >> 3
        size = _fitting_size(data, words, position, end, tables)
        if size == 0 or not _continues(words, at, checksum, index, is_snapshot):
            break
        if size - HEADER_SIZE <= body_max:
            start = position + HEADER_SIZE
            actual = crc(data, start, position + size, _ALL, tables) ^ _ALL
            if actual != low(words[at + 5]):
                break
        checksum, index = high(words[at]), words[at + 2]
        _emit_record(words, position, size, rows, count)
        count += 1
        position += size
    return count, position, checksum, index, False


def _fitting_size(data: Any, words: Any, position: Any, end: Any, tables: Any) -> Any:
    """Return the size of the record at ``position`` if its header is whole and the record is there, else 0."""
    at = position >> 3
    if low(words[at]) != _MARKER:
        return 0
    size = low(words[at + 1])
    flags = (words[at + 1] >> 40) & 0xFF
    if size < HEADER_SIZE or size > RECORD_SIZE_MAX or size & 7 or position + size > end:
        return 0
    if flags & ~FLAGS or words[at + 2] < 0 or words[at + 3] < 0:
        return 0
    if words[at + 4] < 0 or words[at + 4] > TIME_MAX:
        return 0
    actual = crc(data, position + 8, position + HEADER_SIZE, _ALL, tables) ^ _ALL
    return size if actual == high(words[at]) else 0


def _continues(words: Any, at: Any, checksum: Any, index: Any, is_snapshot: Any) -> Any:
    """Return whether a record continues the one before it."""
    if not is_snapshot and high(words[at + 1]) & 0xFF >= LOCAL_KIND_MIN:
        return False  # a footer, or damage
    if checksum != _UNKNOWN and high(words[at + 5]) != checksum:
        return False
    expected = index if is_snapshot else index + 1
    return index == _UNKNOWN or words[at + 2] == expected


def _emit_record(words: Any, position: Any, size: Any, rows: Any, row: Any) -> None:
    at = position >> 3
    meaning = high(words[at + 1])
    count = low(words[at + 8]) if size > HEADER_SIZE else 0
    emit(
        rows, row,
        (
            position, size, meaning & 0xFF, (meaning >> 8) & 0xFF, meaning >> 16,
            words[at + 2], words[at + 3], words[at + 4], low(words[at + 5]), high(words[at]),
            low(words[at + 6]), high(words[at + 6]), words[at + 7], count,
        ),
    )  # fmt: skip
