"""Writing the body of an add (docs/formats/records.md): what is equal in all tasks is stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue
from penstock.formats.records import add
from penstock.formats.records.columns import (
    I64,
    NONE,
    TWO_U32,
    ZEROS,
    Extension,
    encode_array,
    encode_blobs,
    encode_extensions,
)
from penstock.formats.records.task_headers import encode_headers

Values = int | Sequence[int]
"""One value for all tasks, or one for each."""

_ORDER: Final = tuple(1 << bit for bit in (*range(2, 18), 31))


def encode_add(
    name: bytes,
    keys: Values,
    payloads: Sequence[Bytes],
    *,
    not_before: Values | None = None,
    expires: Values | None = None,
    headers: Sequence[Mapping[str, bytes]] | None = None,
    producer: tuple[bytes, int] | None = None,
    groups: Sequence[bytes] | None = None,
    unique: Sequence[bytes] | None = None,
    producers: Sequence[tuple[bytes, int] | None] | None = None,
    ids: Sequence[int] | None = None,
    attempts: Sequence[int] | None = None,
    enqueued: Sequence[int] | None = None,
    principals: Sequence[int] | None = None,
    entries: Sequence[int] | None = None,
    born: Sequence[tuple[int, int] | None] | None = None,
    origins: Sequence[bytes] | None = None,
    extensions: Sequence[Extension] = (),
) -> bytes:
    """Return the body of an add of these tasks. Raises ``InvalidValue``.

    Times are relative to the record's, ``NONE`` where a task has none. A column is left out if no task has a value in
    it, and has one value if all are equal. ``producer`` is (id, first sequence) of one request, ``producers`` is that
    of each task of a merged add.
    """
    columns: dict[int, bytes] = {}
    _put_times(columns, not_before, add.NOT_BEFORE_ONE, add.NOT_BEFORE_EACH)
    _put_times(columns, expires, add.EXPIRES_ONE, add.EXPIRES_EACH)
    if headers is not None:
        _put_blobs(columns, [encode_headers(each) for each in headers], add.HEADERS)
    if producer is not None:
        columns[add.PRODUCER] = add.PRODUCER_LAYOUT.pack(*producer)
    if producers is not None and any(producers):
        columns[add.PRODUCER_EACH] = encode_producers(producers)
    for strings, bit in ((groups, add.GROUP), (unique, add.UNIQUE), (origins, add.ORIGIN)):
        if strings is not None:
            _put_blobs(columns, strings, bit)
    if ids is not None and ids[-1] - ids[0] != len(ids) - 1:
        columns[add.IDS] = encode_array("Q", ids)
    if enqueued is not None and any(value != NONE for value in enqueued):
        columns[add.ENQUEUED] = encode_array("q", enqueued)
    for numbers, bit, form in (
        (attempts, add.ATTEMPTS, "I"),
        (principals, add.PRINCIPAL_EACH, "I"),
        (entries, add.ENTRY_EACH, "Q"),
    ):
        if numbers is not None and any(numbers):
            columns[bit] = encode_array(form, numbers)
    if born is not None and any(born):
        places = [(0, 0) if place is None else place for place in born]
        columns[add.BORN] = encode_array("I", [queue for queue, _ in places]) + encode_array(
            "Q", [task_id for _, task_id in places]
        )
    if extensions:
        columns[add.EXTENSIONS] = encode_extensions(extensions)
    sizes: Values = [len(payload) for payload in payloads]
    return build_add(name, len(payloads), keys, sizes, payloads, columns)


def build_add(
    name: bytes,
    count: int,
    keys: Values,
    sizes: Values,
    payloads: Sequence[Bytes],
    columns: Mapping[int, Bytes],
) -> bytes:
    """Return a body from columns whose bytes exist already, padded: what merges chunks, compacts and delivers.

    ``sizes``: the size of every payload, or one for each. ``payloads`` are joined as they are; a piece may hold several.
    """
    if not 0 < count <= add.COUNT_MAX:
        raise InvalidValue(f"an add holds 1 to {add.COUNT_MAX} tasks, not {count}")
    bits = 0
    for bit in columns:
        bits |= bit
    front: list[Bytes] = [bytes((len(name),)), name, ZEROS[-(1 + len(name)) % 8]]
    one_key = _one(keys, count)
    if one_key is None:
        assert not isinstance(keys, int)
        front.append(encode_array("q", keys))
    else:
        bits |= add.KEY_ONE
        front.append(I64.pack(one_key))
    one_size = _one(sizes, count)
    if one_size is None:
        assert not isinstance(sizes, int)
        bits |= add.SIZES
        offsets = [0, *accumulate(sizes)]
        size = offsets[-1]
        front.append(encode_array("i", offsets))
    else:
        size = one_size * count
    if size > add.PAYLOAD_SIZE_MAX:
        raise InvalidValue(f"{size} bytes of payloads are beyond the 2 GiB of an add")
    front += [columns[bit] for bit in _ORDER if bit in columns]
    fixed = add.FIXED.pack(count, bits, size, 0)
    return b"".join((fixed, *front, *payloads, ZEROS[-size % 8]))


def _one(values: Values, count: int) -> int | None:
    """Return the value that all tasks have, or None if they differ."""
    if isinstance(values, int):
        return values
    if len(values) != count:
        raise InvalidValue(f"{len(values)} values for {count} tasks")
    return values[0] if len(set(values)) == 1 else None


def _put_times(columns: dict[int, bytes], times: Values | None, one: int, each: int) -> None:
    if times is None:
        return
    if isinstance(times, int) or len(set(times)) == 1:
        value = times if isinstance(times, int) else times[0]
        if value != NONE:
            columns[one] = I64.pack(value)
    else:
        columns[each] = encode_array("q", times)


def _put_blobs(columns: dict[int, bytes], values: Sequence[bytes], bit: int) -> None:
    if any(values):
        columns[bit] = encode_blobs(values)


def encode_producers(producers: Sequence[tuple[bytes, int] | None]) -> bytes:
    """Return the column *producer each*: every producer once, and which one each task has."""
    table: dict[bytes, int] = {}
    which, sequences = [], []
    for each in producers:
        producer, sequence = each or (b"", 0)
        which.append(table.setdefault(producer, len(table)) if producer else add.NO_PRODUCER)
        sequences.append(sequence)
    head = TWO_U32.pack(len(table), 0) + b"".join(table)
    return head + encode_array("I", which) + encode_array("Q", sequences)
