"""Extensions in columns: many of our entries in one call (docs/formats/extensions.md).

A kernel gives the verdicts and the fields of ``decode_extension``; a property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import i64, put, u32
from penstock.formats.taskflux.extensions import (
    ADDING,
    ATTEMPTS,
    CREATING,
    EXPIRES,
    NOT_BEFORE,
    PREFIX,
    PRODUCER,
    REMOVING,
    RESERVED,
    RETURNING,
)
from penstock.model import INT32_MAX, LEASE_MS_MAX, QUEUE_NAME_SIZE_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Verdict(IntEnum):
    """What an entry of a reserved name is."""

    NOTHING = 0  # a name that says nothing
    ADDING = ADDING
    CREATING = CREATING
    RETURNING = RETURNING
    REMOVING = REMOVING
    LATER = 5  # of a later version of Penstock
    BAD = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtensionColumns:
    """What extensions say, one array a field. Where a field does not apply it is as if left open."""

    verdict: NDArray[np.int64]
    count: NDArray[np.int64]  # of an Adding: 1 or more
    not_before_ms: NDArray[np.int64]  # of an Adding or Returning; -1: left open
    expires_ms: NDArray[np.int64]  # -1: left open
    attempts: NDArray[np.int64]  # 0: none
    has_producer: NDArray[np.bool_]
    producer: NDArray[np.uint8]  # 16 bytes a row
    sequence: NDArray[np.uint64]
    total: NDArray[np.int64]
    lease_ms: NDArray[np.int64]  # of a Creating: 1 or more
    attempts_max: NDArray[np.int64]  # 0: no limit
    dead_letter: NDArray[np.uint64]  # the number of that queue plus 1; 0: none
    queue: NDArray[np.uint64]  # of a Returning
    id_ends: NDArray[np.int64]  # ids of row i: ``ids[id_ends[i]:id_ends[i + 1]]``
    ids: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.verdict)


def scan_extensions(
    data: Bytes | NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    *,
    interpreted: bool = False,
) -> ExtensionColumns:
    """Return what the entries in ``data[start:end]`` say, each of which ``is_extension``.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """
    with bulk():
        import numpy as np

    if interpreted:
        source: Any = bytes(data)
        kernel: Callable[..., Any] = _extension_kernel
    else:
        source = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        kernel = compiled(_extension_kernel)
    rows = np.empty((len(_FIELDS), len(start)), dtype=np.int64)
    id_ends = np.zeros(len(start) + 1, dtype=np.int64)
    # No more ids than its base64 has room for; a length that does not fit is refused before that.
    ids = np.empty(int((np.minimum(end - start, 2 + QUEUE_NAME_SIZE_MAX) // 10).sum()), np.int64)
    scratch = np.empty(_BODY_SIZE_MAX + len(_FIELDS), dtype=np.int64)
    kernel(source, start, end, _sextets(), _steps(), scratch, rows, id_ends, ids)
    found = dict(zip(_FIELDS, rows, strict=True))
    return ExtensionColumns(
        verdict=found["verdict"],
        count=found["count"],
        not_before_ms=found["not_before_ms"],
        expires_ms=found["expires_ms"],
        attempts=found["attempts"],
        has_producer=(found["flags"] & PRODUCER) != 0,
        producer=np.stack((found["producer_1"], found["producer_2"]), axis=1)
        .astype(">i8")
        .view(np.uint8),
        sequence=found["sequence"].view(np.uint64),
        total=found["total"],
        lease_ms=found["lease_ms"],
        attempts_max=found["attempts_max"],
        dead_letter=found["dead_letter"].view(np.uint64),
        queue=found["queue"].view(np.uint64),
        id_ends=id_ends,
        ids=ids[: id_ends[-1]].view(np.uint64),
    )


_FIELDS: Final = (
    "verdict", "flags", "count", "not_before_ms", "expires_ms", "attempts", "producer_1",
    "producer_2", "sequence", "total", "lease_ms", "attempts_max", "dead_letter", "queue",
)  # fmt: skip
"""The rows that the kernel fills; the 16 bytes of a producer are two numbers there."""

_STEPS: Final = (
    (ADDING, 0, "count", 4),
    (ADDING, 0, "flags", 1),
    (ADDING, NOT_BEFORE, "not_before_ms", 8),
    (ADDING, EXPIRES, "expires_ms", 8),
    (ADDING, ATTEMPTS, "attempts", 4),
    (ADDING, PRODUCER, "producer_1", 8),
    (ADDING, PRODUCER, "producer_2", 8),
    (ADDING, PRODUCER, "sequence", 8),
    (ADDING, PRODUCER, "total", 4),
    (CREATING, 0, "lease_ms", 4),
    (CREATING, 0, "attempts_max", 4),
    (CREATING, 0, "dead_letter", 8),
    (RETURNING, 0, "queue", 8),
    (RETURNING, 0, "not_before_ms", 8),
)
"""How a body goes on behind its first byte: of which kind, under which flag, which field, how many bytes."""

_BODY_SIZE_MAX: Final = (QUEUE_NAME_SIZE_MAX - len(PREFIX)) // 4 * 3


@cache
def _steps() -> NDArray[np.int64]:
    """Return the steps as numbers."""
    import numpy as np

    steps = [(kind, flag, _FIELDS.index(field), size) for kind, flag, field, size in _STEPS]
    return np.array(steps, dtype=np.int64)


@cache
def _sextets() -> NDArray[np.int64]:
    """Return the six bits that each letter of base64 stands for; above 63 for what is no letter."""
    import numpy as np

    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    sextets = np.full(256, 64, dtype=np.int64)
    sextets[np.frombuffer(letters, dtype=np.uint8)] = np.arange(64)
    return sextets


# What the kernel knows as plain numbers.
_NOTHING, _LATER, _BAD = map(int, (Verdict.NOTHING, Verdict.LATER, Verdict.BAD))
_OURS: Final = -1  # of this version: the body decides
_RESERVED_SIZE: Final = len(RESERVED)
_TEXT_AT: Final = 2 + len(PREFIX)
_VERSION, _DOT = PREFIX[_RESERVED_SIZE:]
_ZERO, _NINE, _PAD = b"09="
_COLUMNS: Final = len(_FIELDS)
_FLAGS_AT, _COUNT_AT, _NOT_BEFORE_AT, _EXPIRES_AT, _ATTEMPTS_AT, _TOTAL_AT = map(
    _FIELDS.index, ("flags", "count", "not_before_ms", "expires_ms", "attempts", "total")
)
_LEASE_AT, _ATTEMPTS_MAX_AT = map(_FIELDS.index, ("lease_ms", "attempts_max"))
_FLAGS_MAX: Final = NOT_BEFORE | EXPIRES | ATTEMPTS | PRODUCER


def _extension_kernel(
    data: Any, start: Any, end: Any, sextets: Any, steps: Any, scratch: Any, rows: Any,
    id_ends: Any, ids: Any,
) -> None:  # fmt: skip
    """Decode an extension per row as ``decode_extension`` does.

    ``scratch`` holds the fields of one row, then its body: a row that turns out bad shows none of them.
    """
    found = 0
    for row in range(len(start)):
        for column in range(_COLUMNS):
            is_open = column == _NOT_BEFORE_AT or column == _EXPIRES_AT
            scratch[column] = -1 if is_open else 0
            rows[column, row] = scratch[column]
        verdict = _verdict(data, start[row] + 2, end[row])
        if verdict == _OURS:
            stop = _decode_base64(data, start[row] + _TEXT_AT, end[row], sextets, scratch)
            kind = scratch[_COLUMNS]
            at = _read_fields(scratch, steps, stop) if stop > 0 else -1
            good = at > 0 and _is_possible(scratch, kind)
            count = 0
            if good and (kind == RETURNING or kind == REMOVING):
                count = _read_ids(scratch, at, stop, ids, found)
                good = count > 0
                at = stop
            verdict = _BAD
            if good and at == stop:
                verdict = kind
                found += count
                for column in range(_COLUMNS):
                    rows[column, row] = scratch[column]
        rows[0, row] = verdict
        id_ends[row + 1] = found


def _verdict(data: Any, first: Any, last: Any) -> Any:
    """Return what the name in ``[first, last)`` is as far as its version tells."""
    if data[first - 1] != last - first:
        return _BAD
    version = first + _RESERVED_SIZE
    if last >= version + 2 and data[version] == _VERSION and data[version + 1] == _DOT:
        return _OURS
    is_digit = last > version and _ZERO <= data[version] <= _NINE
    return _LATER if is_digit else _NOTHING


def _decode_base64(data: Any, first: Any, last: Any, sextets: Any, scratch: Any) -> Any:
    """Write the body behind the fields in ``scratch``; return where it ends there, or -1 if it is no base64.

    Base64 is whole groups of four letters, the last with padding and no bits left over.
    """
    size = last - first
    if size == 0 or size % 4 != 0:
        return -1
    pads = 0
    left_over = 0
    if data[last - 1] == _PAD:
        pads = 1
        left_over = sextets[data[last - 2]] & 3
        if data[last - 2] == _PAD:
            pads = 2
            left_over = sextets[data[last - 3]] & 15
    good = left_over == 0
    for i in range(first, last - pads):
        good = good and sextets[data[i]] < 64
    at = _COLUMNS
    for i in range(first, last, 4):
        group = 0
        for j in range(i, i + 4):
            group = group * 64 + (sextets[data[j]] & 63)
        at = put(scratch, at, group, 3)
    return at - pads if good else -1


def _read_fields(scratch: Any, steps: Any, stop: Any) -> Any:
    """Read the fields of the body as the steps say; return where they end, or -1 if the body ends before."""
    at = _COLUMNS + 1
    for step in range(len(steps)):
        flag = steps[step, 1]
        if steps[step, 0] != scratch[_COLUMNS] or (flag != 0 and scratch[_FLAGS_AT] & flag == 0):
            continue
        width = steps[step, 3]
        if at + width > stop:
            return -1
        value = scratch[at]
        if width == 8:
            value = i64(scratch, at)
        elif width == 4:
            value = u32(scratch, at)
        scratch[steps[step, 2]] = value
        at += width
    return at


def _is_possible(scratch: Any, kind: Any) -> Any:
    """Return whether the fields that were read can be those of an extension."""
    if kind == ADDING:
        flags = scratch[_FLAGS_AT]
        good = flags <= _FLAGS_MAX and scratch[_COUNT_AT] > 0
        good = good and (flags & NOT_BEFORE == 0 or scratch[_NOT_BEFORE_AT] >= 0)
        good = good and (flags & EXPIRES == 0 or scratch[_EXPIRES_AT] >= 0)
        good = good and (flags & ATTEMPTS == 0 or scratch[_ATTEMPTS_AT] > 0)
        return good and (flags & PRODUCER == 0 or scratch[_TOTAL_AT] >= scratch[_COUNT_AT])
    if kind == CREATING:
        return 1 <= scratch[_LEASE_AT] <= LEASE_MS_MAX and scratch[_ATTEMPTS_MAX_AT] <= INT32_MAX
    return (kind == RETURNING or kind == REMOVING) and scratch[_NOT_BEFORE_AT] >= -1


def _read_ids(scratch: Any, at: Any, stop: Any, ids: Any, found: Any) -> Any:
    """Write the ids up to ``stop`` into ``ids`` from ``found`` on; return how many, or 0 if they are not whole."""
    if (stop - at) % 8 != 0:
        return 0
    count = (stop - at) // 8
    good = True
    for i in range(count):
        ids[found + i] = i64(scratch, at + 8 * i)
        good = good and ids[found + i] != 0
    return count if good else 0
