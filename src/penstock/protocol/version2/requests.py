"""Requests in bytes (docs/protocol.md)."""

from __future__ import annotations

from collections import deque
from struct import Struct, pack
from struct import error as struct_error
from typing import Final, NamedTuple, assert_never

from penstock.binary import (
    INT32,
    INT64,
    UINT32,
    UINT64,
    Reader,
    decode_queue_name,
    encode_nullable,
    encode_queue_name,
)
from penstock.errors import CorruptData, InvalidQueueName, InvalidValue
from penstock.model import QueueName
from penstock.protocol.frames import Frame, encode_frame
from penstock.protocol.version2.fields import (
    decode_column,
    decode_count,
    decode_flags,
    decode_payloads,
    decode_policy,
    decode_tokens,
    encode_payloads,
    encode_policy,
    encode_tokens,
)
from penstock.protocol.version2.groups import decode_change_members, encode_change_members
from penstock.protocol.version2.messages import (
    BATCH_MAX,
    PRODUCER_SIZE,
    Ack,
    ChangeMembers,
    Cluster,
    Create,
    Delete,
    Dequeue,
    Enqueue,
    Extend,
    Kind,
    Nack,
    Node,
    Peek,
    Ping,
    Producer,
    Purge,
    Read,
    Release,
    Request,
    Start,
    Stat,
    Subscribe,
    Transfer,
    Unsubscribe,
)

# --- requests in bytes ---------------------------------------------------------------------------

_DELAY: Final = 1
_TTL: Final = 2
_PRODUCER: Final = 4
_KEY: Final = 2
_DEQUEUE: Final = Struct(">IIII")
_SUBSCRIBE: Final = Struct(">II")
_READ: Final = Struct(">QII")
_START: Final = Struct(">II")


def encode_request(request: Request, number: int) -> bytes:
    """Return the frame of a request. Raises ``InvalidValue`` for a number that its field cannot hold."""
    try:
        kind, body = _encode_request(request)
    except struct_error as error:
        raise InvalidValue(f"a number does not fit in its field: {error}") from None
    return encode_frame(kind, number, body)


def _encode_request(request: Request) -> tuple[Kind, bytes]:
    match request:
        case Enqueue():
            return Kind.ENQUEUE, _encode_enqueue(request)
        case Dequeue():
            numbers = (request.count_max, request.size_max, request.wait_ms, request.lease_ms)
            return Kind.DEQUEUE, encode_queue_name(request.queue) + _DEQUEUE.pack(*numbers)
        case Ack():
            return Kind.ACK, encode_tokens(request.tokens)
        case Nack():
            return Kind.NACK, _encode_nack(request)
        case Start():
            return Kind.START, _encode_start(request)
        case Release():
            return Kind.RELEASE, encode_tokens(request.tokens)
        case Extend():
            return Kind.EXTEND, UINT32.pack(request.lease_ms) + encode_tokens(request.tokens)
        case Subscribe():
            numbers_ = _SUBSCRIBE.pack(request.prefetch, request.lease_ms)
            return Kind.SUBSCRIBE, encode_queue_name(request.queue) + numbers_
        case Unsubscribe():
            return Kind.UNSUBSCRIBE, UINT32.pack(request.subscription)
        case Peek():
            return Kind.PEEK, encode_queue_name(request.queue) + UINT32.pack(request.count_max)
        case Purge():
            return Kind.PURGE, encode_queue_name(request.queue)
        case Create():
            return Kind.CREATE, _encode_create(request)
        case Delete():
            return Kind.DELETE, encode_queue_name(request.queue)
        case Stat():
            return Kind.STAT, encode_nullable(request.queue, encode_queue_name)
        case Read():
            return Kind.READ, _READ.pack(request.first, request.size_max, request.wait_ms)
        case Node():
            return Kind.NODE, b""
        case Ping():
            return Kind.PING, b""
        case Cluster():
            return Kind.CLUSTER, b""
        case ChangeMembers():
            return Kind.CHANGE_MEMBERS, encode_change_members(request)
        case Transfer():
            return Kind.TRANSFER, INT32.pack(request.to)
        case _:
            assert_never(request)


def _encode_enqueue(request: Enqueue) -> bytes:
    count = len(request.payloads)
    assert count == len(request.keys) <= BATCH_MAX
    flags, terms = 0, b""
    if request.delay_ms is not None:
        flags |= _DELAY
        terms += UINT64.pack(request.delay_ms)
    if request.ttl_ms is not None:
        flags |= _TTL
        terms += UINT64.pack(request.ttl_ms)
    if request.producer is not None:
        assert len(request.producer.id) == PRODUCER_SIZE
        flags |= _PRODUCER
        terms += request.producer.id + UINT64.pack(request.producer.sequence)
    return b"".join(
        (
            encode_queue_name(request.queue),
            bytes((flags,)),
            terms,
            pack(f">I{count}q", count, *request.keys),
            encode_payloads(request.payloads),
        )
    )


def _encode_nack(request: Nack) -> bytes:
    flags, terms = 0, b""
    if request.delay_ms is not None:
        flags |= _DELAY
        terms += UINT64.pack(request.delay_ms)
    if request.key is not None:
        flags |= _KEY
        terms += INT64.pack(request.key)
    return bytes((flags,)) + terms + encode_tokens(request.tokens)


def _encode_start(request: Start) -> bytes:
    tokens, acked = request.tokens, request.acked
    counts = len(tokens), len(acked)
    return pack(f">II{sum(counts)}Q", *counts, *tokens, *acked)


def _encode_create(request: Create) -> bytes:
    return (
        encode_queue_name(request.queue)
        + encode_policy(request.policy)
        + UINT32.pack(request.lease_ms)
        + UINT32.pack(request.attempts_max or 0)
        + encode_nullable(request.dead_letter, encode_queue_name)
    )


def decode_request(kind: int, body: bytes) -> Request:
    """Return the request in a frame. Raises ``BadData``, and ``InvalidValue`` for what means nothing."""
    reader = Reader(body)
    request = _decode_request(kind, reader)
    reader.finish("a request")
    return request


def _decode_request(kind: int, reader: Reader) -> Request:
    match kind:
        case Kind.ENQUEUE:
            return _decode_enqueue(reader)
        case Kind.DEQUEUE:
            queue = _queue_name(reader)
            return Dequeue(queue, *_DEQUEUE.unpack(reader.take(_DEQUEUE.size, "a dequeue")))
        case Kind.ACK:
            return Ack(decode_tokens(reader))
        case Kind.NACK:
            return _decode_nack(reader)
        case Kind.START:
            return _decode_start(reader)
        case Kind.RELEASE:
            return Release(decode_tokens(reader))
        case Kind.EXTEND:
            lease_ms = reader.uint32()
            return Extend(decode_tokens(reader), lease_ms)
        case Kind.SUBSCRIBE:
            queue = _queue_name(reader)
            return Subscribe(queue, *_SUBSCRIBE.unpack(reader.take(_SUBSCRIBE.size, "a subscribe")))
        case Kind.UNSUBSCRIBE:
            return Unsubscribe(reader.uint32())
        case Kind.PEEK:
            return Peek(_queue_name(reader), reader.uint32())
        case Kind.PURGE:
            return Purge(_queue_name(reader))
        case Kind.CREATE:
            return _decode_create(reader)
        case Kind.DELETE:
            return Delete(_queue_name(reader))
        case Kind.STAT:
            return Stat(reader.nullable(lambda: _queue_name(reader)))
        case Kind.READ:
            return Read(*_READ.unpack(reader.take(_READ.size, "a read")))
        case Kind.NODE:
            return Node()
        case Kind.PING:
            return Ping()
        case Kind.CLUSTER:
            return Cluster()
        case Kind.CHANGE_MEMBERS:
            return decode_change_members(reader)
        case Kind.TRANSFER:
            return Transfer(reader.int32())
        case _:
            raise CorruptData("unknown request", offset=0, found=f"{kind:02X}")


def _queue_name(reader: Reader) -> QueueName:
    """Return a name. Raises ``InvalidQueueName``: as in version 1, a bad name is answered, not punished."""
    return decode_queue_name(reader.take(reader.byte("a queue name"), "a queue name"))


def _decode_enqueue(reader: Reader) -> Enqueue:
    queue = _queue_name(reader)
    flags = decode_flags(reader, _DELAY | _TTL | _PRODUCER)
    delay_ms = _milliseconds(reader) if flags & _DELAY else None
    ttl_ms = _milliseconds(reader) if flags & _TTL else None
    producer = None
    if flags & _PRODUCER:
        producer = Producer(reader.take(PRODUCER_SIZE, "a producer's id"), reader.uint64())
    count = decode_count(reader, 12)
    keys = decode_column(reader, count, "q", 8)
    return Enqueue(queue, keys, decode_payloads(reader, count), delay_ms, ttl_ms, producer)


MILLISECONDS_MAX: Final = 100 * 366 * 86_400_000
"""A century: no delay or expiry is longer, and sums with the time stay far within 64 bits."""


def _milliseconds(reader: Reader) -> int:
    value = reader.uint64("milliseconds")
    if value > MILLISECONDS_MAX:
        raise InvalidValue(f"{value} ms is longer than a century")
    return value


def _decode_nack(reader: Reader) -> Nack:
    flags = decode_flags(reader, _DELAY | _KEY)
    delay_ms = _milliseconds(reader) if flags & _DELAY else None
    key = reader.int64() if flags & _KEY else None
    return Nack(decode_tokens(reader), delay_ms, key)


def _decode_start(reader: Reader) -> Start:
    started, acked = _START.unpack(reader.take(_START.size, "counts"))
    if max(started, acked) > BATCH_MAX:
        raise CorruptData("impossible count", offset=0, expected=f"at most {BATCH_MAX}")
    tokens = decode_column(reader, started + acked, "Q", 8)
    return Start(tokens[:started], tokens[started:])


def _decode_create(reader: Reader) -> Create:
    queue = _queue_name(reader)
    policy = decode_policy(reader)
    lease_ms, attempts_max = reader.uint32(), reader.uint32()
    return Create(
        queue, policy, lease_ms, attempts_max or None, reader.nullable(lambda: _queue_name(reader))
    )


# --- many small requests -------------------------------------------------------------------------

SINGLES_MAX: Final = 4096
"""Requests taken as one run."""

_SINGLE: Final = Struct(">qI")
_ENQUEUE: Final = int(Kind.ENQUEUE)
_ONE: Final = UINT32.pack(1)


_LONE_HEAD: Final = Struct(">IBIB")  # length, type, request id, size of the queue's name
_LONE_REST: Final = Struct(">BIqI")  # flags, number of tasks, key, size of the payload


SINGLE_SIZE: Final = 2 + len(_ONE) + _SINGLE.size
"""Bytes of such a request's body beyond its queue's name and its payload."""


class Singles(NamedTuple):
    """Consecutive requests of one caller that enqueue one task each, to one queue, on no terms."""

    queue: QueueName
    numbers: list[int]
    keys: list[int]
    payloads: list[bytes]


def decode_lone(data: bytes) -> Singles | None:
    """Decode bytes that are one whole frame, a plain single enqueue, or return ``None``.

    Most of what arrives from somebody who sends one task after the other; ``FrameReader`` and ``decode_request``
    come to the same, and judge everything else.
    """
    size = len(data)
    if size < _LONE_HEAD.size + _LONE_REST.size:
        return None
    length, kind, number, name_size = _LONE_HEAD.unpack_from(data)
    start = _LONE_HEAD.size + name_size
    if kind != _ENQUEUE or length + 4 != size or size < start + _LONE_REST.size:
        return None
    flags, count, key, payload_size = _LONE_REST.unpack_from(data, start)
    start += _LONE_REST.size
    if flags or count != 1 or start + payload_size != size:
        return None
    try:
        queue = decode_queue_name(data[_LONE_HEAD.size : start - _LONE_REST.size])
    except InvalidQueueName:
        return None
    return Singles(queue, [number], [key], [data[start:]])


def take_singles(frames: deque[Frame]) -> Singles | None:
    """Take a run of plain single enqueues off the front, or return ``None`` if there is none.

    What a caller pipelines task by task is so decoded at the price of a batch. Anything unusual is left in
    place for ``decode_request``, which judges it.
    """
    if frames[0][0] != _ENQUEUE:
        return None
    body = frames[0][2]
    name_end = 1 + (body[0] if body else 0)
    head = body[:name_end] + b"\x00" + _ONE  # the name, no flags, one task
    start = len(head)
    numbers: list[int] = []
    keys: list[int] = []
    payloads: list[bytes] = []
    while frames and len(numbers) < SINGLES_MAX:
        kind, number, body = frames[0]
        if kind != _ENQUEUE or not body.startswith(head) or len(body) < start + _SINGLE.size:
            break
        key, size = _SINGLE.unpack_from(body, start)
        if start + _SINGLE.size + size != len(body):
            break
        numbers.append(number)
        keys.append(key)
        payloads.append(body[start + _SINGLE.size :])
        frames.popleft()
    if not numbers:
        return None
    try:
        queue = decode_queue_name(head[1:name_end])
    except InvalidQueueName:
        queue = None
    if queue is None or (len(numbers) > 1 and len(set(numbers)) != len(numbers)):
        frames.extendleft(
            (Kind.ENQUEUE, number, head + _SINGLE.pack(key, len(payload)) + payload)
            for number, key, payload in zip(
                reversed(numbers), reversed(keys), reversed(payloads), strict=True
            )
        )
        return None
    return Singles(queue, numbers, keys, payloads)
