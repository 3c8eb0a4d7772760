"""Deltas: the payloads of log records in generations 1c, 2 and 3 (docs/formats/deltas.md).

A delta is one change of state, applied without deciding anything. ``delta_row`` is the one decoder, interpreted and
compiled. ``decode_change`` makes a tuple of it, because building a value per entry dominates recovery of a large
log, and ``decode_delta`` the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, assert_never

from penstock.binary import (
    INT32,
    UINT64,
    Bytes,
    Reader,
    decode_queue_name,
    encode_nullable,
    encode_queue_name,
)
from penstock.errors import BadData, CorruptData, InvalidQueueName, InvalidValue, TruncatedData
from penstock.formats.taskflux.generation import Contents
from penstock.model import (
    INT32_MAX,
    UINT64_MAX,
    AddTask,
    CreateQueue,
    DeleteQueue,
    Delta,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)

CREATE: Final = 0x43  # 'C'
DELETE: Final = 0x44  # 'D'
ADD: Final = 0x41  # 'A'
REMOVE: Final = 0x52  # 'R'
PAGED: Final = int(Implementation.PAGED)

KEY_AND_SIZE: Final = Struct(">qi")
KEY_RANGE: Final = Struct(">qq")

_unpack_key_and_size = KEY_AND_SIZE.unpack_from
_unpack_key_range = KEY_RANGE.unpack_from
_unpack_id = Struct(">q").unpack_from
_unpack_policy = Struct(
    ">iiiB"
).unpack_from  # the implementation, two limits, whether a key range follows
_pack_key_and_size = KEY_AND_SIZE.pack
_KEY_AND_SIZE_SIZE: Final = KEY_AND_SIZE.size

Change = tuple[int, QueueName, Any, Any]
"""(type, queue, key or id or policy or None, payload or None)."""


def decode_change(data: Bytes, offset: int, end: int, *, by_id: bool) -> Change:
    """Return the delta in ``data[offset:end]`` as a tuple. Raises ``BadData``."""
    kind, at, name_size, key, start, size, task_id = delta_row(data, offset, end, by_id)
    if kind == BAD_OP:
        raise _explained(data, offset, end, by_id=by_id)
    try:
        queue = decode_queue_name(bytes(data[at : at + name_size]))
    except InvalidQueueName as error:
        raise CorruptData(str(error), offset=offset + 1) from None
    if start:
        return kind, queue, key, bytes(data[start : start + size])
    if kind == REMOVE:
        return kind, queue, task_id & UINT64_MAX, None
    if kind == CREATE:
        return kind, queue, decode_policy(Reader(data, at + name_size, end)), None
    return kind, queue, None, None


def _explained(data: Bytes, offset: int, end: int, *, by_id: bool) -> BadData:
    """Return what is wrong with bytes that are no delta."""
    if end - offset < 2:
        return TruncatedData("the bytes end inside a delta", offset=offset)
    kind, body = data[offset], offset + 2 + data[offset + 1]
    if body > end:
        return TruncatedData("the bytes end inside a queue name", offset=offset + 1)
    try:
        decode_queue_name(bytes(data[offset + 2 : body]))
        if kind == CREATE:
            reader = Reader(data, body, end)
            decode_policy(reader)
            reader.finish("a delta")
    except InvalidQueueName as error:
        return CorruptData(str(error), offset=offset + 1)
    except BadData as error:
        return error
    if kind == ADD or (kind == REMOVE and not by_id):
        start = body + KEY_AND_SIZE.size
        if start > end:
            return TruncatedData("the bytes end inside key and length", offset=body)
        return CorruptData(
            "the payload's length does not fit the delta",
            offset=body + 8,
            expected=str(end - start),
            found=str(KEY_AND_SIZE.unpack_from(data, body)[1]),
        )
    if kind == REMOVE:
        return CorruptData("a removal by id has 8 bytes after the name", offset=body)
    if kind == DELETE:
        return CorruptData("bytes left over after a delta", offset=body)
    return CorruptData(
        "unknown delta", offset=offset, expected="43, 44, 41 or 52", found=f"{kind:02X}"
    )


def decode_delta(data: Bytes, contents: Contents) -> Delta:
    """Return the delta that ``data`` holds, all of it. Raises ``BadData``."""
    by_id = contents is Contents.DELTAS_BY_ID
    kind, queue, middle, payload = decode_change(data, 0, len(data), by_id=by_id)
    if kind == ADD:
        return AddTask(queue=queue, key=middle, payload=payload)
    if kind == REMOVE and by_id:
        return RemoveTask(queue=queue, id=TaskId(middle))
    if kind == REMOVE:
        return RemoveEqualTask(queue=queue, key=middle, payload=payload)
    if kind == DELETE:
        return DeleteQueue(queue=queue)
    return CreateQueue(queue=queue, policy=middle)


def encode_delta(delta: Delta) -> bytes:
    """Return the bytes of a delta. The caller picks removals that the file's generation knows."""
    match delta:
        case AddTask():
            return _encode_task(ADD, delta.queue, delta.key, delta.payload)
        case RemoveEqualTask():
            return _encode_task(REMOVE, delta.queue, delta.key, delta.payload)
        case RemoveTask():
            return bytes((REMOVE,)) + encode_queue_name(delta.queue) + UINT64.pack(delta.id)
        case DeleteQueue():
            return bytes((DELETE,)) + encode_queue_name(delta.queue)
        case CreateQueue():
            return bytes((CREATE,)) + encode_queue_name(delta.queue) + encode_policy(delta.policy)
        case _:
            assert_never(delta)


def _encode_task(kind: int, queue: QueueName, key: int, payload: bytes) -> bytes:
    return _type_and_name(kind, queue) + _pack_key_and_size(key, len(payload)) + payload


def encode_adds(queue: QueueName, keys: Sequence[int], payloads: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of an AddTask for each key and payload."""
    start = _type_and_name(ADD, queue)
    sizes = set(map(len, payloads))
    if len(sizes) == 1 and len(set(keys)) == 1:  # tasks of a kind, as most batches hold
        head = start + _pack_key_and_size(keys[0], sizes.pop())
        return list(map(head.__add__, payloads))
    heads = map(_pack_key_and_size, keys, map(len, payloads))
    return [start + head + payload for head, payload in zip(heads, payloads, strict=True)]


def encode_removals(queue: QueueName, ids: Iterable[int]) -> list[bytes]:
    """Return the bytes of a RemoveTask for each id."""
    return list(map(_type_and_name(REMOVE, queue).__add__, map(UINT64.pack, ids)))


class Adds(NamedTuple):
    """A run of adds to one queue, and the number of the first entry behind it."""

    queue: QueueName
    keys: list[int]
    payloads: list[bytes]
    following: int


def decode_adds(
    data: bytes, starts: Sequence[int], ends: Sequence[int], first: int, stop: int
) -> Adds:
    """Decode entry ``first``, an add, and those up to ``stop`` that add to the same queue. Raises ``BadData``.

    The entries' payloads are ``data[starts[i]:ends[i]]``. For a rebuild of the state, where one value per
    entry would cost more than all the rest.
    """
    _, queue, key, payload = decode_change(data, starts[first], ends[first], by_id=True)
    keys, payloads = [key], [payload]
    head = data[starts[first] : starts[first] + 2 + len(queue)]
    size, fixed = len(head), len(head) + _KEY_AND_SIZE_SIZE
    number = first + 1
    while number < stop:
        start, end = starts[number], ends[number]
        body = start + fixed
        if body > end or data[start : start + size] != head:
            break
        key, length = _unpack_key_and_size(data, start + size)
        if body + length != end:
            break  # the caller finds the same and says what is wrong
        keys.append(key)
        payloads.append(data[body:end])
        number += 1
    return Adds(queue, keys, payloads, number)


@lru_cache(maxsize=4096)
def _type_and_name(kind: int, queue: QueueName) -> bytes:
    """Return how a delta begins; few queues get most of the tasks."""
    return bytes((kind,)) + encode_queue_name(queue)


# A policy has the same bytes in a CreateQueue delta and in a snapshot of generation 2. Generation 3
# snapshots put the last id between its first and its second field, so the two parts stand alone.


def decode_policy(reader: Reader) -> Policy:
    return decode_limits(reader, decode_implementation(reader))


def decode_implementation(reader: Reader) -> Implementation:
    offset = reader.offset
    code = reader.int32("a queue's implementation")
    try:
        return Implementation(code)
    except ValueError:
        raise CorruptData(
            "unknown queue implementation", offset=offset, expected="1, 2 or 1001", found=str(code)
        ) from None


def decode_limits(reader: Reader, implementation: Implementation) -> Policy:
    offset = reader.offset
    size_max = _limit(reader, "the queue size limit")
    payload_size_max = _limit(reader, "the payload size limit")
    try:
        return Policy(
            implementation=implementation,
            size_max=size_max,
            payload_size_max=payload_size_max,
            keys=_key_range(reader),
        )
    except InvalidValue as error:
        raise CorruptData(str(error), offset=offset) from None


def decode_optional_limits(reader: Reader) -> Policy:
    """Return the policy as a queue of a snapshot of variant 1d has it. Raises ``BadData``."""
    offset = reader.offset
    size_max = _limit(reader, "the queue size limit")
    try:
        keys = _key_range(reader)
        payload_size_max = None
        if reader.boolean("the payload size limit flag"):
            payload_size_max = reader.int32("the payload size limit")
        return Policy(size_max=size_max, payload_size_max=payload_size_max, keys=keys)
    except InvalidValue as error:
        raise CorruptData(str(error), offset=offset) from None


def encode_optional_limits(policy: Policy) -> bytes:
    return (
        INT32.pack(-1 if policy.size_max is None else policy.size_max)
        + _encode_key_range(policy)
        + encode_nullable(policy.payload_size_max, INT32.pack)
    )


def _key_range(reader: Reader) -> KeyRange | None:
    """Return an optional key range. Raises ``BadData`` or ``InvalidValue``."""
    if not reader.boolean("the key range flag"):
        return None
    lowest, highest = KEY_RANGE.unpack(reader.take(KEY_RANGE.size, "a key range"))
    return KeyRange(lowest=lowest, highest=highest)


def _encode_key_range(policy: Policy) -> bytes:
    return encode_nullable(policy.keys, lambda keys: KEY_RANGE.pack(keys.lowest, keys.highest))


def _limit(reader: Reader, what: str) -> int | None:
    offset = reader.offset
    limit = reader.int32(what)
    if limit < -1:
        raise CorruptData(
            f"{what} is negative", offset=offset, expected="-1 or more", found=str(limit)
        )
    return None if limit == -1 else limit


def encode_policy(policy: Policy) -> bytes:
    return INT32.pack(policy.implementation) + encode_limits(policy)


def encode_limits(policy: Policy) -> bytes:
    limits = [-1 if n is None else n for n in (policy.size_max, policy.payload_size_max)]
    assert max(limits) <= INT32_MAX, "a limit beyond Int32 must be refused before it is encoded"
    return INT32.pack(limits[0]) + INT32.pack(limits[1]) + _encode_key_range(policy)


def is_delta(data: Bytes, contents: Contents) -> bool:
    """Return whether ``data`` is a whole delta."""
    try:
        decode_delta(data, contents)
    except BadData:
        return False
    return True


# --- rows ----------------------------------------------------------------------------------------
#
# A row says what a delta or command is without making a value of it: the type byte, offset and size of the queue's
# name, the key, offset and size of the payload, the id of a removal by id; 0 where nothing applies. ``decode_change``
# calls these functions one by one, ``entries`` compiles them and calls them for many.


BAD_OP: Final = 0xFF
"""The op of bytes that are no delta or command."""

BAD_ROW: Final = (BAD_OP, 0, 0, 0, 0, 0, 0)


def delta_row(data: Any, start: Any, end: Any, by_id: Any) -> Any:
    """Return the row of the delta in ``data[start:end]``, whose name may still be one that no queue has."""
    if end - start < 2:
        return BAD_ROW
    op = data[start]
    body = start + 2 + data[start + 1]
    if op == ADD or (op == REMOVE and not by_id):
        return task_row(data, start, body, end)
    if op == REMOVE and end - body == 8:
        return change_row(data, start, body, _unpack_id(data, body)[0])
    if (op == DELETE and body == end) or (op == CREATE and is_policy(data, body, end - body)):
        return change_row(data, start, body, 0)
    return BAD_ROW


def task_row(data: Any, start: Any, body: Any, end: Any) -> Any:
    """Return the row of a change that has a key, the size of a payload and the payload from ``body`` on."""
    payload = body + 12
    if payload > end:
        return BAD_ROW
    key, size = _unpack_key_and_size(data, body)
    if payload + size != end:
        return BAD_ROW
    return data[start] * 1, start + 2, body - start - 2, key, payload, size, 0


def change_row(data: Any, start: Any, body: Any, task_id: Any) -> Any:
    """Return the row of a change without a task."""
    return data[start] * 1, start + 2, body - start - 2, 0, 0, 0, task_id


def is_policy(data: Any, body: Any, size: Any) -> Any:
    """Return whether the ``size`` bytes from ``body`` on are what ``decode_policy`` takes."""
    if size != 13 and size != 29:
        return False
    kind, size_max, payload_size_max, is_ranged = _unpack_policy(data, body)
    if kind != 1 and kind != PAGED and not (kind == 2 and is_ranged != 0):
        return False
    if size_max < -1 or payload_size_max < -1 or (size == 29) != (is_ranged != 0):
        return False
    lowest, highest = _unpack_key_range(data, body + 13) if size == 29 else (0, 0)
    return lowest <= highest
