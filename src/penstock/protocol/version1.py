"""Version 1 of the client protocol: TaskFlux's packets, byte for byte (docs/protocol.md).

Packets have no outer length: each is parsed field by field behind its type byte. The decoders are
therefore resumable by trying again: ``decode_request`` and ``decode_response`` return ``None`` while
bytes are missing, and check every length against the limit before waiting for it. What is whole but
breaks the protocol raises ``BadData``, which costs the sender its connection. What is well-formed but means
nothing (a bad name, a negative limit) is a ``Refused`` command with the code to answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import error as struct_error
from typing import Final, assert_never

from penstock.binary import (
    INT32,
    INT64,
    UINT32,
    UINT64,
    Bytes,
    Reader,
    encode_array,
    encode_boolean,
    encode_buffer,
    encode_nullable,
    encode_pairs,
    encode_queue_name,
    encode_string,
)
from penstock.errors import CorruptData, InvalidQueueName, InvalidValue, TruncatedData
from penstock.model import INT32_MAX, Implementation, KeyRange, Policy, QueueName

PORT: Final = 2602

PAYLOAD_SIZE_MAX: Final = 16 * 2**20
"""The largest payload that is taken; TaskFlux speaks of this limit and does not hold it."""

TEXT_SIZE_MAX: Final = 64 * 2**10
LIST_MAX: Final = 1_000_000

STRAY_SIZE_MAX: Final = 4096
"""Bytes of a response packet that a client sends; nobody has a use for it, so a longer one is not worth reading."""


class Code(IntEnum):
    """Business errors, as the programs number them; the documents shift them by one from 4 on."""

    UNKNOWN = 0
    INVALID_QUEUE_NAME = 1
    QUEUE_MISSING = 2
    QUEUE_EXISTS = 3
    INVALID_KEY_RANGE = 4
    INVALID_SIZE_LIMIT = 5
    INVALID_PAYLOAD_LIMIT = 6
    KEY_RANGE_MISSING = 7
    UNKNOWN_IMPLEMENTATION = 8


# --- packets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorize:
    """Only the method "none" exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    major: int
    minor: int
    patch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCluster:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """The negative acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    queue: QueueName
    key: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequeue:
    queue: QueueName
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    queue: QueueName
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    queue: QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQueues:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A well-formed command with a value that is not allowed: answer ``code`` and go on.

    ``is_packet``: TaskFlux answers create and enqueue by an error packet, the other commands by a failed answer.
    """

    code: Code
    is_packet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A response packet that a client sent: ignored once the greeting is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversized:
    """An enqueue whose payload is above the limit. Its ``size`` bytes follow the packet; drop them and go on."""

    size: int
    is_name_valid: bool


Command = Enqueue | Dequeue | Count | Create | Delete | ListQueues
Unsendable = Refused | Stray | Oversized
"""Packets that a server may read and a client does not send."""

Request = Authorize | Bootstrap | AskCluster | Acknowledge | Reject | Command | Unsendable


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorized:
    reason: str | None  # None: welcome; else why not


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    addresses: tuple[str, ...]
    leader: int | None
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeader:
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPacket:
    """The error outside a command's response; clients must accept both forms."""

    code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The answer to a dequeue that found a task."""

    id: int
    key: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """The answer to a dequeue that found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    name: QueueName
    count: int
    policies: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    queues: tuple[QueueInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeViolated:
    size_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyViolated:
    keys: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadViolated:
    payload_size_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyViolated:
    """A violation that has only words."""

    text: str


Violation = SizeViolated | KeyViolated | PayloadViolated | PolicyViolated
Answer = Delivered | Empty | Counted | Failed | Listed | Violation
Response = Authorized | Bootstrapped | Cluster | Ok | NotLeader | ErrorPacket | Answer


def policy_words(policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return a queue's limits as the list response names them, in TaskFlux's order."""
    words = []
    if policy.size_max is not None:
        words.append(("max-queue-size", str(policy.size_max)))
    if policy.payload_size_max is not None:
        words.append(("max-payload-size", str(policy.payload_size_max)))
    if policy.keys is not None:
        words.append(("priority-range", f"{policy.keys.lowest} {policy.keys.highest}"))
    return tuple(words)


# --- requests ------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Return a client's packet. Raises ``InvalidValue`` for a number that its field cannot hold."""
    try:
        return _encode_request(request)
    except struct_error as error:
        raise InvalidValue(f"a number does not fit in its field: {error}") from None


def _encode_request(request: Request) -> bytes:
    match request:
        case Authorize():
            return b"AN"
        case Bootstrap():
            numbers = (request.major, request.minor, request.patch)
            return b"B" + b"".join(map(INT32.pack, numbers))
        case AskCluster():
            return b"M"
        case Acknowledge():
            return b"K"
        case Reject():
            return b"N"
        case Refused() | Stray() | Oversized():
            raise InvalidValue(f"a client does not send {type(request).__name__}")
        case _:
            return b"C" + _encode_command(request)


def _encode_command(command: Command) -> bytes:
    match command:
        case Enqueue():
            name = encode_queue_name(command.queue)
            return b"E" + name + INT64.pack(command.key) + encode_buffer(command.payload)
        case Dequeue():
            return b"D" + encode_queue_name(command.queue) + UINT32.pack(command.wait_ms)
        case Count():
            return b"C" + encode_queue_name(command.queue)
        case Create():
            policy = command.policy
            limits = [-1 if n is None else n for n in (policy.size_max, policy.payload_size_max)]
            return (
                b"Q"
                + encode_queue_name(command.queue)
                + INT32.pack(policy.implementation)
                + INT32.pack(limits[0])
                + INT32.pack(limits[1])
                + encode_nullable(policy.keys, _encode_keys)
            )
        case Delete():
            return b"R" + encode_queue_name(command.queue)
        case ListQueues():
            return b"L"
        case _:
            assert_never(command)


def _encode_keys(keys: KeyRange) -> bytes:
    return INT64.pack(keys.lowest) + INT64.pack(keys.highest)


def decode_request(
    data: Bytes, offset: int = 0, *, payload_size_max: int = PAYLOAD_SIZE_MAX
) -> tuple[Request, int] | None:
    """Return the packet at ``offset`` and where the next one begins; ``None`` while bytes are missing.

    A payload above the limit is not waited for: it follows ``Oversized``. Raises ``BadData`` for an unknown type and for
    a negative length.
    """
    reader = Reader(data, offset)
    try:
        request = _decode_request(reader, payload_size_max)
    except TruncatedData:
        return None
    return request, reader.offset


def _decode_request(reader: Reader, payload_size_max: int) -> Request:
    kind = reader.byte()
    if kind == ord("C"):
        return _decode_command(reader, payload_size_max)
    if kind in (ord("K"), ord("Q")):  # the programs send K, the documents say Q
        return Acknowledge()
    if kind == ord("N"):
        return Reject()
    if kind == ord("M"):
        return AskCluster()
    if kind == ord("B"):
        return Bootstrap(major=reader.int32(), minor=reader.int32(), patch=reader.int32())
    if kind == ord("A"):
        method = reader.byte()
        if method != ord("N"):
            raise _unknown("authorization method", reader, method)
        return Authorize()
    if kind in b"kablecm":
        return _decode_stray(reader, kind)
    raise _unknown("packet", reader, kind)


def _decode_stray(reader: Reader, kind: int) -> Stray:
    start = reader.offset - 1
    try:
        _decode_response(reader, kind, STRAY_SIZE_MAX, with_id=True)
        is_long = reader.offset - start > STRAY_SIZE_MAX
    except TruncatedData:
        # The packet is parsed again from its beginning each time more bytes arrive.
        is_long = reader.end - start >= STRAY_SIZE_MAX
        if not is_long:
            raise
    if is_long:
        raise CorruptData("a client sent a long response packet", offset=start)
    return Stray()


def _decode_command(reader: Reader, payload_size_max: int) -> Command | Refused | Oversized:
    kind = reader.byte()
    if kind == ord("L"):
        return ListQueues()
    if kind not in b"EDCQR":
        raise _unknown("command", reader, kind)
    queue = _queue_name(reader)
    if kind == ord("E"):
        return _decode_enqueue(reader, queue, payload_size_max)
    if kind == ord("D"):
        wait_ms = reader.uint32()
        return _refused_name if queue is None else Dequeue(queue=queue, wait_ms=wait_ms)
    if kind == ord("Q"):
        return _decode_create(reader, queue)
    if queue is None:
        return _refused_name
    return Count(queue=queue) if kind == ord("C") else Delete(queue=queue)


_refused_name: Final = Refused(code=Code.INVALID_QUEUE_NAME)


def _decode_enqueue(
    reader: Reader, queue: QueueName | None, payload_size_max: int
) -> Enqueue | Refused | Oversized:
    key = reader.int64()
    size = _size(reader, INT32_MAX, "a payload")
    if size > payload_size_max:
        return Oversized(size=size, is_name_valid=queue is not None)
    payload = reader.take(size, "a payload")
    if queue is None:
        return _refused(Code.INVALID_QUEUE_NAME)
    return Enqueue(queue=queue, key=key, payload=payload)


def _refused(code: Code) -> Refused:
    return Refused(code=code, is_packet=True)


def _decode_create(reader: Reader, queue: QueueName | None) -> Create | Refused:
    """Return the command, or the first of its faults in the order in which TaskFlux looks for them."""
    code, size_max, payload_size_max = reader.int32(), reader.int32(), reader.int32()
    bounds = reader.nullable(lambda: (reader.int64(), reader.int64()))
    if code not in (0, 1, 2):
        return _refused(Code.UNKNOWN_IMPLEMENTATION)
    # 0 asks for the default structure; it is never stored.
    implementation = Implementation(code or 1)
    if implementation is Implementation.ARRAY and bounds is None:
        return _refused(Code.KEY_RANGE_MISSING)
    if bounds is not None and bounds[0] > bounds[1]:
        return _refused(Code.INVALID_KEY_RANGE)
    if payload_size_max < -1:
        return _refused(Code.INVALID_PAYLOAD_LIMIT)
    if size_max < -1:
        return _refused(Code.INVALID_SIZE_LIMIT)
    if queue is None:
        return _refused(Code.INVALID_QUEUE_NAME)
    return Create(
        queue=queue,
        policy=Policy(
            implementation=implementation,
            size_max=None if size_max == -1 else size_max,
            payload_size_max=None if payload_size_max == -1 else payload_size_max,
            keys=None if bounds is None else KeyRange(lowest=bounds[0], highest=bounds[1]),
        ),
    )


def _queue_name(reader: Reader) -> QueueName | None:
    """Return a name, or ``None`` for one that breaks the rules: that is answered, not punished."""
    raw = reader.take(reader.byte("a queue name"), "a queue name")
    try:
        return QueueName(raw.decode("latin-1"))
    except InvalidQueueName:
        return None


def _bounded(reader: Reader, size_max: int, what: str) -> bytes:
    """Return a buffer whose length is judged before anybody waits for its bytes."""
    return reader.take(_size(reader, size_max, what), what)


def _size(reader: Reader, size_max: int, what: str) -> int:
    offset = reader.offset
    size = reader.int32(f"the length of {what}")
    if not 0 <= size <= size_max:
        raise CorruptData(
            f"impossible length of {what}",
            offset=offset,
            expected=f"0 to {size_max}",
            found=str(size),
        )
    return size


def _unknown(what: str, reader: Reader, kind: int) -> CorruptData:
    return CorruptData(f"unknown {what}", offset=reader.offset - 1, found=f"{kind:02X}")


# --- responses -----------------------------------------------------------------------------------


def encode_response(response: Response, *, with_id: bool = True) -> bytes:
    """Return a server's packet; clients from before 2024-04 expect no id in a delivered task."""
    match response:
        case Ok():
            return b"k"
        case NotLeader():
            return b"l" + INT32.pack(-1 if response.leader is None else response.leader)
        case ErrorPacket():
            return b"e" + INT32.pack(response.code) + encode_string(response.text)
        case Authorized():
            return b"a" + _encode_reason(response.reason)
        case Bootstrapped():
            return b"b" + _encode_reason(response.reason)
        case Cluster():
            leader = -1 if response.leader is None else response.leader
            addresses = encode_array(list(response.addresses), encode_string)
            return b"m" + addresses + INT32.pack(leader) + INT32.pack(response.node)
        case _:
            return b"c" + _encode_answer(response, with_id)


def _encode_reason(reason: str | None) -> bytes:
    return encode_boolean(reason is None) + (b"" if reason is None else encode_string(reason))


def _encode_answer(answer: Answer, with_id: bool) -> bytes:
    match answer:
        case Delivered():
            task_id = UINT64.pack(answer.id) if with_id else b""
            return b"d\x01" + task_id + INT64.pack(answer.key) + encode_buffer(answer.payload)
        case Empty():
            return b"d\x00"
        case Counted():
            return b"c" + INT32.pack(answer.count)
        case Failed():
            return b"e" + INT32.pack(answer.code) + encode_string(answer.text)
        case Listed():
            return b"l" + encode_array(list(answer.queues), _encode_info)
        case SizeViolated():
            return b"p" + INT32.pack(1) + INT32.pack(answer.size_max)
        case KeyViolated():
            return b"p" + INT32.pack(2) + _encode_keys(answer.keys)
        case PayloadViolated():
            return b"p" + INT32.pack(3) + INT32.pack(answer.payload_size_max)
        case PolicyViolated():
            return b"p" + INT32.pack(0) + encode_string(answer.text)
        case _:
            assert_never(answer)


def _encode_info(info: QueueInfo) -> bytes:
    policies = encode_pairs(list(info.policies), encode_string, encode_string)
    return encode_queue_name(info.name) + INT32.pack(info.count) + policies


def decode_response(
    data: Bytes, offset: int = 0, *, payload_size_max: int = PAYLOAD_SIZE_MAX, with_id: bool = True
) -> tuple[Response, int] | None:
    """Return the packet at ``offset`` and where the next one begins; ``None`` while bytes are missing."""
    reader = Reader(data, offset)
    try:
        response = _decode_response(reader, reader.byte(), payload_size_max, with_id=with_id)
    except TruncatedData:
        return None
    return response, reader.offset


def _decode_response(
    reader: Reader, kind: int, payload_size_max: int, *, with_id: bool
) -> Response:
    match chr(kind):
        case "k":
            return Ok()
        case "l":
            leader = reader.int32()
            return NotLeader(leader=None if leader < 0 else leader)
        case "e":
            return ErrorPacket(code=reader.int32(), text=_text(reader))
        case "a":
            return Authorized(reason=None if reader.boolean() else _text(reader))
        case "b":
            return Bootstrapped(reason=None if reader.boolean() else _text(reader))
        case "m":
            addresses = tuple(_text(reader) for _ in range(_length(reader, "addresses")))
            leader = reader.int32()
            return Cluster(
                addresses=addresses, leader=None if leader < 0 else leader, node=reader.int32()
            )
        case "c":
            return _decode_answer(reader, payload_size_max, with_id)
        case _:
            raise _unknown("packet", reader, kind)


def _decode_answer(reader: Reader, payload_size_max: int, with_id: bool) -> Answer:
    kind = reader.byte()
    match chr(kind):
        case "d":
            if not reader.boolean():
                return Empty()
            task_id = reader.uint64() if with_id else 0
            key = reader.int64()
            payload = _bounded(reader, payload_size_max, "a payload")
            return Delivered(id=task_id, key=key, payload=payload)
        case "c":
            return Counted(count=reader.int32())
        case "e" | "x":  # the programs send e, the documents say x
            return Failed(code=reader.int32(), text=_text(reader))
        case "l":
            return Listed(queues=tuple(_info(reader) for _ in range(_length(reader, "queues"))))
        case "p":
            return _decode_violation(reader)
        case _:
            raise _unknown("response", reader, kind)


def _decode_violation(reader: Reader) -> Violation:
    code = reader.int32()
    if code == 1:
        return SizeViolated(size_max=reader.int32())
    if code == 2:
        lowest, highest = reader.int64(), reader.int64()
        try:
            return KeyViolated(keys=KeyRange(lowest=lowest, highest=highest))
        except InvalidValue as error:
            raise CorruptData(str(error), offset=reader.offset - 16) from None
    if code == 3:
        return PayloadViolated(payload_size_max=reader.int32())
    if code == 0:
        return PolicyViolated(text=_text(reader))
    raise CorruptData("unknown policy", offset=reader.offset - 4, found=str(code))


def _info(reader: Reader) -> QueueInfo:
    name = reader.queue_name()
    count = reader.int32()
    policies = tuple((_text(reader), _text(reader)) for _ in range(_length(reader, "policies")))
    return QueueInfo(name=name, count=count, policies=policies)


def _length(reader: Reader, what: str) -> int:
    """Return a count of things; unlike in a file, the bytes of those things may still be on their way."""
    offset = reader.offset
    count = reader.int32(f"the number of {what}")
    if not 0 <= count <= LIST_MAX:
        raise CorruptData(
            f"impossible number of {what}",
            offset=offset,
            expected=f"0 to {LIST_MAX}",
            found=str(count),
        )
    return count


def _text(reader: Reader) -> str:
    offset = reader.offset
    try:
        return _bounded(reader, TEXT_SIZE_MAX, "a text").decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptData("a text is not UTF-8", offset=offset) from None
