"""Answers in bytes (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from struct import Struct, pack
from typing import Final, assert_never

from penstock.binary import (
    UINT32,
    UINT64,
    Reader,
    encode_nullable,
    encode_queue_name,
    encode_string,
)
from penstock.errors import CorruptData, InvalidValue
from penstock.model import UINT64_MAX, QueueOptions
from penstock.protocol.frames import encode_frame
from penstock.protocol.version2.fields import (
    decode_column,
    decode_count,
    decode_payloads,
    decode_policy,
    decode_tokens,
    encode_payloads,
    encode_policy,
    encode_tokens,
)
from penstock.protocol.version2.groups import decode_cluster, encode_cluster
from penstock.protocol.version2.messages import (
    BATCH_MAX,
    Answer,
    ClusterInfo,
    Delivered,
    Enqueued,
    Entries,
    Failed,
    Kind,
    NodeInfo,
    Ok,
    Outcome,
    Peeked,
    Purged,
    QueueStat,
    Run,
    Settled,
    Stats,
)

# --- answers in bytes ----------------------------------------------------------------------------

_RUN: Final = Struct(">BIQ")
_DELIVERED: Final = Struct(">QII")
_ENTRIES: Final = Struct(">BQqI")
_COUNTS: Final = Struct(">12Q")
_FAILED: Final = Struct(">Hq")


def encode_answer(answer: Answer, number: int) -> bytes:
    """Return the frame of an answer."""
    kind, body = _encode_answer(answer)
    return encode_frame(kind, number, body)


def _encode_answer(answer: Answer) -> tuple[Kind, bytes]:
    match answer:
        case Enqueued():
            runs = b"".join([_RUN.pack(run.outcome, run.count, run.first) for run in answer.runs])
            return Kind.ENQUEUED, UINT32.pack(len(answer.runs)) + runs
        case Delivered():
            head = _DELIVERED.pack(answer.token, answer.lease_ms, len(answer.ids))
            return Kind.DELIVERED, head + _encode_tasks(answer)
        case Settled():
            return Kind.SETTLED, encode_tokens(answer.lost)
        case Peeked():
            return Kind.PEEKED, UINT32.pack(len(answer.ids)) + _encode_tasks(answer)
        case Purged():
            return Kind.PURGED, UINT64.pack(answer.count)
        case Stats():
            stats = b"".join(map(_encode_stat, answer.queues))
            return Kind.STATS, UINT32.pack(len(answer.queues)) + stats
        case Entries():
            count = len(answer.terms)
            head = _ENTRIES.pack(answer.generation, answer.first, answer.committed, count)
            terms = pack(f">{count}q", *answer.terms)
            return Kind.ENTRIES, head + terms + encode_payloads(answer.payloads)
        case NodeInfo():
            return Kind.NODE_INFO, _encode_node(answer)
        case ClusterInfo():
            return Kind.CLUSTER_INFO, encode_cluster(answer)
        case Ok():
            return Kind.OK, b""
        case Failed():
            return Kind.FAILED, _FAILED.pack(answer.code, answer.detail) + encode_string(
                answer.text
            )
        case _:
            assert_never(answer)


def _encode_tasks(tasks: Delivered | Peeked) -> bytes:
    count = len(tasks.ids)
    return b"".join(
        (
            pack(f">{count}Q", *tasks.ids),
            pack(f">{count}q", *tasks.keys),
            pack(f">{count}I", *tasks.attempts),
            encode_payloads(tasks.payloads),
        )
    )


def _counts(stat: QueueStat) -> tuple[int, ...]:
    return (
        stat.count,
        stat.leased,
        stat.delayed,
        stat.size,
        stat.last_id,
        stat.enqueued,
        stat.delivered,
        stat.acked,
        stat.returned,
        stat.expired,
        stat.dead_lettered,
        0,  # reserved
    )


def _encode_stat(stat: QueueStat) -> bytes:
    options = stat.options
    return (
        encode_queue_name(stat.name)
        + encode_policy(stat.policy)
        + UINT32.pack(options.lease_ms)
        + UINT32.pack(options.attempts_max or 0)
        + encode_nullable(options.dead_letter, encode_queue_name)
        + _COUNTS.pack(*_counts(stat))
    )


_NODE: Final = Struct(">iiBqqqII")


def _encode_node(info: NodeInfo) -> bytes:
    leader = -1 if info.leader is None else info.leader
    numbers = (info.node, leader, info.generation, info.term, info.first, info.committed)
    return (
        _NODE.pack(*numbers, info.frame_size_max, info.payload_size_max)
        + encode_string(info.version)
        + UINT32.pack(len(info.addresses))
        + b"".join(map(encode_string, info.addresses))
    )


def decode_answer(kind: int, body: bytes) -> Answer:
    """Return the answer in a frame. Raises ``BadData``."""
    reader = Reader(body)
    try:
        answer = _decode_answer(kind, reader)
    except InvalidValue as error:
        raise CorruptData(str(error), offset=reader.offset) from None
    reader.finish("an answer")
    return answer


def _decode_answer(kind: int, reader: Reader) -> Answer:
    match kind:
        case Kind.ENQUEUED:
            return Enqueued(_runs(reader))
        case Kind.DELIVERED:
            token, lease_ms = reader.uint64(), reader.uint32()
            tasks = _tasks(reader)
            _check_last(token, len(tasks[0]), "token")
            return Delivered(token, lease_ms, *tasks)
        case Kind.SETTLED:
            return Settled(decode_tokens(reader))
        case Kind.PEEKED:
            return Peeked(*_tasks(reader))
        case Kind.PURGED:
            return Purged(reader.uint64())
        case Kind.STATS:
            return Stats([_stat(reader) for _ in range(decode_count(reader, 100))])
        case Kind.ENTRIES:
            generation, first, committed = reader.byte(), reader.uint64(), reader.int64()
            count = decode_count(reader, 12)
            terms = decode_column(reader, count, "q", 8)
            return Entries(generation, first, committed, terms, decode_payloads(reader, count))
        case Kind.NODE_INFO:
            return _node(reader)
        case Kind.CLUSTER_INFO:
            return decode_cluster(reader)
        case Kind.OK:
            return Ok()
        case Kind.FAILED:
            code, detail = _FAILED.unpack(reader.take(_FAILED.size, "a failure"))
            return Failed(code, reader.string("a text"), detail)
        case _:
            raise CorruptData("unknown answer", offset=0, found=f"{kind:02X}")


def _runs(reader: Reader) -> list[Run]:
    """Return runs that a request can have had: who unrolls them builds no more than a batch."""
    offset = reader.offset
    count = decode_count(reader, _RUN.size)
    runs = [Run(*_RUN.unpack(reader.take(_RUN.size, "a run"))) for _ in range(count)]
    tasks = sum([run.count for run in runs])
    if tasks > BATCH_MAX:
        raise CorruptData(
            "impossible number of tasks",
            offset=offset,
            expected=f"at most {BATCH_MAX}",
            found=str(tasks),
        )
    for run in runs:
        _check_last(run.first, run.count, "id")
    return runs


def _check_last(first: int, count: int, what: str) -> None:
    if first + count > UINT64_MAX + 1:
        raise CorruptData(
            f"the last {what} is beyond 64 bits", found=f"{first} and {count - 1} more"
        )


_Tasks = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[bytes]]


def _tasks(reader: Reader) -> _Tasks:
    count = decode_count(reader, 24)
    ids = decode_column(reader, count, "Q", 8)
    keys = decode_column(reader, count, "q", 8)
    attempts = decode_column(reader, count, "I", 4)
    return ids, keys, attempts, decode_payloads(reader, count)


def _stat(reader: Reader) -> QueueStat:
    name, policy = reader.queue_name(), decode_policy(reader)
    lease_ms, attempts_max = reader.uint32(), reader.uint32()
    options = QueueOptions(
        lease_ms=lease_ms,
        attempts_max=attempts_max or None,
        dead_letter=reader.nullable(reader.queue_name),
    )
    counts = _COUNTS.unpack(reader.take(_COUNTS.size, "counts"))
    return QueueStat(
        name=name,
        policy=policy,
        options=options,
        count=counts[0],
        leased=counts[1],
        delayed=counts[2],
        size=counts[3],
        last_id=counts[4],
        enqueued=counts[5],
        delivered=counts[6],
        acked=counts[7],
        returned=counts[8],
        expired=counts[9],
        dead_lettered=counts[10],
    )


def _node(reader: Reader) -> NodeInfo:
    numbers = _NODE.unpack(reader.take(_NODE.size, "a node"))
    version = reader.string("a version")
    addresses = tuple(reader.string("an address") for _ in range(decode_count(reader, 4)))
    return NodeInfo(
        node=numbers[0],
        leader=None if numbers[1] < 0 else numbers[1],
        generation=numbers[2],
        term=numbers[3],
        first=numbers[4],
        committed=numbers[5],
        frame_size_max=numbers[6],
        payload_size_max=numbers[7],
        version=version,
        addresses=addresses,
    )


_SINGLE: Final = Struct(">IBIIBIQ")
_ENQUEUED: Final = int(Kind.ENQUEUED)
_ACCEPTED: Final = int(Outcome.ACCEPTED)


def encode_single_answers(numbers: Sequence[int], first: int) -> bytes:
    """Return the frames that tell each of some requests that its one task got the next id from ``first`` on."""
    count = len(numbers)
    if count == 1:
        return _SINGLE.pack(_SINGLE.size - 4, _ENQUEUED, numbers[0], 1, _ACCEPTED, 1, first)
    return b"".join(
        map(
            _SINGLE.pack,
            repeat(_SINGLE.size - 4, count),
            repeat(_ENQUEUED),
            numbers,
            repeat(1),
            repeat(_ACCEPTED),
            repeat(1),
            range(first, first + count),
        )
    )
