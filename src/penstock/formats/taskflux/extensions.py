"""Extensions: entries of ours that plain readers of the format replay without effect (docs/formats/extensions.md).

Each is a DeleteQueue of a name that no queue can have; deleting a missing queue is ignored. The name
holds the extension's bytes in base64, so that it stays printable, as names must be. ``decode_extension`` has one of
them as a value, ``scan_extensions`` many in columns: by the same code, interpreted and compiled.
"""

from __future__ import annotations

from binascii import Error as BadBase64
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, Final, assert_never

from penstock.binary import Bytes
from penstock.errors import CorruptData, UnsupportedVersion
from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import put
from penstock.formats.taskflux.deltas import DELETE
from penstock.model import (
    INT32_MAX,
    LEASE_MS_MAX,
    QUEUE_NAME_SIZE_MAX,
    RESERVED_PREFIX,
    UINT64_MAX,
    Adding,
    Creating,
    Extension,
    Removing,
    Returning,
    Terms,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFIX: Final = (RESERVED_PREFIX + "1.").encode()
"""Version 1 of our extensions; a later one gets another number and is refused by this reader."""

ADDING: Final = 1
CREATING: Final = 2
RETURNING: Final = 3
REMOVING: Final = 4

NOT_BEFORE: Final = 1
EXPIRES: Final = 2
ATTEMPTS: Final = 4
PRODUCER: Final = 8

_HEAD: Final = Struct(">BIB")
_TIME: Final = Struct(">q")
_NUMBER: Final = Struct(">I")
_PRODUCER_FIELDS: Final = Struct(">16sQI")
_OPTIONS: Final = Struct(">BIIQ")
_RETURN: Final = Struct(">BQq")

IDS_MAX: Final = 20
"""Ids in one extension: what base64 leaves of a name's 255 bytes."""

assert len(PREFIX) + -(-(_RETURN.size + 8 * IDS_MAX) // 3) * 4 <= QUEUE_NAME_SIZE_MAX


def is_extension(data: Bytes, offset: int, end: int) -> bool:
    """Return whether the entry in ``data[offset:end]`` is one of ours, of whatever version."""
    return (
        end - offset >= 12 and data[offset] == DELETE and data[offset + 2 : offset + 12] == RESERVED
    )


RESERVED: Final = RESERVED_PREFIX.encode()
assert len(RESERVED) == 10


def encode_extension(extension: Extension) -> bytes:
    """Return the payload of an entry."""
    name = PREFIX + b2a_base64(_encode(extension), newline=False)
    assert len(name) <= QUEUE_NAME_SIZE_MAX
    return bytes((DELETE, len(name))) + name


def _encode(extension: Extension) -> bytes:
    match extension:
        case Adding():
            return _encode_adding(extension)
        case Creating():
            dead_letter = 0 if extension.dead_letter is None else extension.dead_letter + 1
            attempts_max = extension.attempts_max or 0
            return _OPTIONS.pack(CREATING, extension.lease_ms, attempts_max, dead_letter)
        case Returning():
            time = -1 if extension.not_before_ms is None else extension.not_before_ms
            return _RETURN.pack(RETURNING, extension.queue, time) + _encode_ids(extension.ids)
        case Removing():
            return bytes((REMOVING,)) + _encode_ids(extension.ids)
        case _:
            assert_never(extension)


def _encode_adding(adding: Adding) -> bytes:
    flags, fields, terms = 0, b"", adding.terms
    if terms.not_before_ms is not None:
        flags |= NOT_BEFORE
        fields += _TIME.pack(terms.not_before_ms)
    if terms.expires_ms is not None:
        flags |= EXPIRES
        fields += _TIME.pack(terms.expires_ms)
    if terms.attempts:
        flags |= ATTEMPTS
        fields += _NUMBER.pack(terms.attempts)
    if terms.producer is not None:
        flags |= PRODUCER
        fields += _PRODUCER_FIELDS.pack(terms.producer, terms.sequence, terms.total)
    return _HEAD.pack(ADDING, adding.count, flags) + fields


def _encode_ids(ids: tuple[int, ...]) -> bytes:
    assert len(ids) <= IDS_MAX
    return pack(f">{len(ids)}Q", *ids)


# --- decoding ------------------------------------------------------------------------------------


class Verdict(IntEnum):
    """What an entry of a reserved name is."""

    NOTHING = 0  # a name that says nothing
    ADDING = ADDING
    CREATING = CREATING
    RETURNING = RETURNING
    REMOVING = REMOVING
    LATER = 5  # of a later version of Penstock
    BAD = 6


_FIELDS: Final = (
    "verdict", "flags", "count", "not_before_ms", "expires_ms", "attempts", "producer_1",
    "producer_2", "sequence", "total", "lease_ms", "attempts_max", "dead_letter", "queue",
)  # fmt: skip
"""What an extension may say; the 16 bytes of a producer are two numbers there."""

_OPEN: Final = tuple(-1 if field in ("not_before_ms", "expires_ms") else 0 for field in _FIELDS)
"""The fields of an extension that says nothing."""


# What the code that kernels share knows as plain numbers.
_NOTHING, _LATER, _BAD = map(int, (Verdict.NOTHING, Verdict.LATER, Verdict.BAD))
_OURS: Final = -1  # of this version: the body decides
_RESERVED_SIZE: Final = len(RESERVED)
_TEXT_AT: Final = 2 + len(PREFIX)
_VERSION, _DOT = PREFIX[_RESERVED_SIZE:]
_ZERO, _NINE, _PAD = b"09="
_COLUMNS: Final = len(_FIELDS)
_FLAGS_MAX: Final = NOT_BEFORE | EXPIRES | ATTEMPTS | PRODUCER
_FLAGS, _COUNT, _NOT_BEFORE, _EXPIRES, _ATTEMPTS, _PRODUCER_1, _PRODUCER_2, _SEQUENCE, _TOTAL = (
    range(1, 10)
)
_LEASE, _ATTEMPTS_MAX, _DEAD_LETTER, _QUEUE = range(10, _COLUMNS)

_unpack_head = _HEAD.unpack_from
_unpack_time = _TIME.unpack_from
_unpack_attempts = _NUMBER.unpack_from
_unpack_producer = Struct(">qqqI").unpack_from
_unpack_options = Struct(_OPTIONS.format.replace("Q", "q")).unpack_from
_unpack_return = Struct(_RETURN.format.replace("Q", "q")).unpack_from


def decode_extension(data: Bytes, offset: int, end: int) -> Extension | None:
    """Return the extension in ``data[offset:end]``; ``None`` for a reserved name that says nothing.

    Raises ``CorruptData``, and ``UnsupportedVersion`` for one that a later version of Penstock wrote.
    """
    verdict = _verdict(data, offset + 2, end)
    if verdict == _OURS:
        try:
            return _value(_decode_text(bytes(data[offset + _TEXT_AT : end])))
        except (BadBase64, ValueError) as error:
            raise CorruptData(f"an extension that means nothing: {error}", offset=offset) from None
    if verdict == _BAD:
        raise CorruptData(
            "the name's length does not fit the delta",
            offset=offset + 1,
            expected=str(end - offset - 2),
            found=str(data[offset + 1]),
        )
    if verdict == _LATER:
        raise UnsupportedVersion(
            "an extension of a later version; open this directory with a newer Penstock",
            offset=offset,
            expected=PREFIX.decode(),
            found=bytes(data[offset + 2 : end])[: len(PREFIX)].decode("latin-1"),
        )
    return None


def _decode_text(text: bytes) -> bytes:
    """Return what ``text`` spells, if it is spelled as we do: versions of Python differ in what else they take.

    An entry that one node took and another refused would divide them.
    """
    body = a2b_base64(text, strict_mode=True)
    if not body or b2a_base64(body, newline=False) != text:
        raise ValueError("another spelling than ours")
    return body


def _value(body: bytes) -> Extension:
    """Return the extension with these bytes. Raises ``ValueError``."""
    kind, stop, fields = body[0], len(body), [*_OPEN]
    at = _read_fields(body, stop, fields)
    if at < 0:
        raise ValueError("it ends too early")
    if not _is_possible(fields, kind):
        raise ValueError("fields that no extension has")
    if kind in (RETURNING, REMOVING):
        return _value_with_ids(body, at, fields)
    if at != stop:
        raise ValueError("bytes are left over")
    if kind == CREATING:
        dead_letter = fields[_DEAD_LETTER] & UINT64_MAX
        return Creating(
            lease_ms=fields[_LEASE],
            attempts_max=fields[_ATTEMPTS_MAX] or None,
            dead_letter=dead_letter - 1 if dead_letter else None,
        )
    _, flags, count, not_before_ms, expires_ms, attempts, *producer, sequence, total = fields[
        :_LEASE
    ]
    terms = Terms(
        not_before_ms=not_before_ms if flags & NOT_BEFORE else None,
        expires_ms=expires_ms if flags & EXPIRES else None,
        attempts=attempts,
        producer=pack(">qq", *producer) if flags & PRODUCER else None,
        sequence=sequence & UINT64_MAX,
        total=total,
    )
    return Adding(count=count, terms=terms)


def _value_with_ids(body: bytes, at: int, fields: list[int]) -> Extension:
    """Return the extension that ends with ids, from ``at`` on. Raises ``ValueError``."""
    stop = len(body)
    ids = [0] * ((stop - at) // 8)
    if not _read_ids(body, at, stop, ids, 0):
        raise ValueError("its ids are not whole")
    numbers = tuple([number & UINT64_MAX for number in ids])
    if body[0] == REMOVING:
        return Removing(ids=numbers)
    not_before_ms = None if fields[_NOT_BEFORE] < 0 else fields[_NOT_BEFORE]
    queue = fields[_QUEUE] & UINT64_MAX
    return Returning(queue=queue, ids=numbers, not_before_ms=not_before_ms)


def _verdict(data: Any, first: Any, last: Any) -> Any:
    """Return what the name in ``[first, last)`` is as far as its version tells."""
    if data[first - 1] != last - first:
        return _BAD
    version = first + _RESERVED_SIZE
    if last >= version + 2 and data[version] == _VERSION and data[version + 1] == _DOT:
        return _OURS
    is_digit = last > version and _ZERO <= data[version] <= _NINE
    return _LATER if is_digit else _NOTHING


def _read_fields(body: Any, stop: Any, fields: Any) -> Any:
    """Read the fields of the body, which ends at ``stop``; return where they end, or -1 if the body ends before."""
    kind = body[0]
    if kind == ADDING:
        return _read_adding(body, stop, fields)
    if (kind == CREATING or kind == RETURNING) and stop < 17:
        return -1
    if kind == CREATING:
        _, fields[_LEASE], fields[_ATTEMPTS_MAX], fields[_DEAD_LETTER] = _unpack_options(body, 0)
    elif kind == RETURNING:
        _, fields[_QUEUE], fields[_NOT_BEFORE] = _unpack_return(body, 0)
    else:
        return 1
    return 17


def _read_adding(body: Any, stop: Any, fields: Any) -> Any:
    """Read the fields of an Adding as ``_read_fields`` does: each flag stands for some."""
    if stop < 6:
        return -1
    _, fields[_COUNT], flags = _unpack_head(body, 0)
    fields[_FLAGS] = flags
    needed = 6 + 8 * (flags & NOT_BEFORE) + 4 * (flags & EXPIRES) + (flags & ATTEMPTS)
    if needed + (28 if flags & PRODUCER != 0 else 0) > stop:
        return -1
    at = 6
    if flags & NOT_BEFORE != 0:
        fields[_NOT_BEFORE] = _unpack_time(body, at)[0]
        at += 8
    if flags & EXPIRES != 0:
        fields[_EXPIRES] = _unpack_time(body, at)[0]
        at += 8
    if flags & ATTEMPTS != 0:
        fields[_ATTEMPTS] = _unpack_attempts(body, at)[0]
        at += 4
    if flags & PRODUCER != 0:
        first, second, sequence, total = _unpack_producer(body, at)
        fields[_PRODUCER_1], fields[_PRODUCER_2] = first, second
        fields[_SEQUENCE], fields[_TOTAL] = sequence, total
        at += 28
    return at


def _is_possible(fields: Any, kind: Any) -> Any:
    """Return whether the fields that were read can be those of an extension."""
    if kind == ADDING:
        flags = fields[_FLAGS]
        good = flags <= _FLAGS_MAX and fields[_COUNT] > 0
        good = good and (flags & NOT_BEFORE == 0 or fields[_NOT_BEFORE] >= 0)
        good = good and (flags & EXPIRES == 0 or fields[_EXPIRES] >= 0)
        good = good and (flags & ATTEMPTS == 0 or fields[_ATTEMPTS] > 0)
        return good and (flags & PRODUCER == 0 or fields[_TOTAL] >= fields[_COUNT])
    if kind == CREATING:
        return 1 <= fields[_LEASE] <= LEASE_MS_MAX and fields[_ATTEMPTS_MAX] <= INT32_MAX
    return (kind == RETURNING or kind == REMOVING) and fields[_NOT_BEFORE] >= -1


def _read_ids(body: Any, at: Any, stop: Any, ids: Any, found: Any) -> Any:
    """Write the ids up to ``stop`` into ``ids`` from ``found`` on; return how many, or 0 if they are not whole."""
    if (stop - at) % 8 != 0:
        return 0
    count = (stop - at) // 8
    good = True
    for i in range(count):
        ids[found + i] = _unpack_time(body, at + 8 * i)[0]
        good = good and ids[found + i] != 0
    return count if good else 0


# --- in columns ----------------------------------------------------------------------------------


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
) -> ExtensionColumns:
    """Return what the entries in ``data[start:end]`` say, each of which ``is_extension``.

    Needs numpy and numba, which the ``tables`` extra brings.
    """
    with bulk():
        import numpy as np

    source = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    rows = np.empty((len(_FIELDS), len(start)), dtype=np.int64)
    id_ends = np.zeros(len(start) + 1, dtype=np.int64)
    # No more ids than its base64 has room for; a length that does not fit is refused before that.
    ids = np.empty(int((np.minimum(end - start, 2 + QUEUE_NAME_SIZE_MAX) // 10).sum()), np.int64)
    fields, body = np.empty(_COLUMNS, dtype=np.int64), np.empty(_BODY_SIZE_MAX, dtype=np.uint8)
    kernel = compiled(_extension_kernel)
    kernel(source, start, end, _sextets(), fields, body, rows, id_ends, ids)
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


_BODY_SIZE_MAX: Final = (QUEUE_NAME_SIZE_MAX - len(PREFIX)) // 4 * 3


@cache
def _sextets() -> NDArray[np.int64]:
    """Return the six bits that each letter of base64 stands for; above 63 for what is no letter."""
    import numpy as np

    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    sextets = np.full(256, 64, dtype=np.int64)
    sextets[np.frombuffer(letters, dtype=np.uint8)] = np.arange(64)
    return sextets


def _extension_kernel(
    data: Any, start: Any, end: Any, sextets: Any, fields: Any, body: Any, rows: Any, id_ends: Any,
    ids: Any,
) -> None:  # fmt: skip
    """Decode an extension per row; ``fields`` and ``body`` are those of one row, of which a bad one shows none."""
    found = 0
    for row in range(len(start)):
        for column in range(_COLUMNS):
            fields[column] = rows[column, row] = _OPEN[column]
        verdict = _verdict(data, start[row] + 2, end[row])
        if verdict == _OURS:
            verdict = _BAD
            stop = _decode_base64(data, start[row] + _TEXT_AT, end[row], sextets, body)
            at = _read_fields(body, stop, fields) if stop > 0 else -1
            good = at > 0 and _is_possible(fields, body[0])
            count = 0
            if good and (body[0] == RETURNING or body[0] == REMOVING):
                count = _read_ids(body, at, stop, ids, found)
                good = count > 0
                at = stop
            if good and at == stop:
                verdict = body[0] * 1
                found += count
                for column in range(_COLUMNS):
                    rows[column, row] = fields[column]
        rows[0, row] = verdict
        id_ends[row + 1] = found


def _decode_base64(data: Any, first: Any, last: Any, sextets: Any, body: Any) -> Any:
    """Write the body; return where it ends, or -1 if it is no base64.

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
    at = 0
    for i in range(first, last, 4):
        group = 0
        for j in range(i, i + 4):
            group = group * 64 + (sextets[data[j]] & 63)
        at = put(body, at, group, 3)
    return at - pads if good else -1
