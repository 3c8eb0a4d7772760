"""Commands: the payloads of log records in variants 1a, 1b and 1d (docs/formats/commands.md).

A command is a request that replay decides anew. Its integers are big-endian in every variant, also
in files whose framing is little-endian.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

from penstock.binary import (
    INT64,
    UINT32,
    Bytes,
    Reader,
    encode_buffer,
    encode_queue_name,
)
from penstock.errors import BadData, CorruptData
from penstock.formats.taskflux.deltas import PAGED, decode_policy, encode_policy
from penstock.model import (
    Command,
    CountTasks,
    CreateCommand,
    CreateWithPolicy,
    DeleteCommand,
    Dequeue,
    Enqueue,
    ListQueues,
)

ENQUEUE: Final = 0x45  # 'E'
DEQUEUE: Final = 0x44  # 'D'
COUNT: Final = 0x43  # 'C'
CREATE: Final = 0x51  # 'Q'
DELETE: Final = 0x52  # 'R'
LIST: Final = 0x4C  # 'L'

LIMIT_SIZE: Final = 4
"""Bytes behind the name of a creation in variants 1a and 1b. A policy, as in 1d, has 13 or 29."""


def decode_command(data: Bytes) -> Command:
    """Return the command that ``data`` holds, all of it. Raises ``BadData``."""
    reader = Reader(data)
    command = _decode(reader)
    reader.finish("a command")
    return command


def _decode(reader: Reader) -> Command:
    kind = reader.byte("a command")
    if kind == LIST:
        return ListQueues()
    if kind not in (ENQUEUE, DEQUEUE, COUNT, CREATE, DELETE):
        raise CorruptData(
            "unknown command", offset=0, expected="45, 44, 43, 51, 52 or 4C", found=f"{kind:02X}"
        )
    queue = reader.queue_name()
    if kind == ENQUEUE:
        return Enqueue(queue=queue, key=reader.int64("a key"), payload=reader.buffer("a payload"))
    if kind == DEQUEUE:
        return Dequeue(queue=queue)
    if kind == COUNT:
        return CountTasks(queue=queue)
    if kind == CREATE and reader.remaining != LIMIT_SIZE:
        return CreateWithPolicy(queue=queue, policy=decode_policy(reader))
    if kind == CREATE:
        # 0 means unlimited in this generation; None says so everywhere else.
        return CreateCommand(queue=queue, size_max=reader.uint32("a size limit") or None)
    return DeleteCommand(queue=queue)


def encode_command(command: Command) -> bytes:
    """Return the bytes of a command."""
    match command:
        case Enqueue():
            return (
                bytes((ENQUEUE,))
                + encode_queue_name(command.queue)
                + INT64.pack(command.key)
                + encode_buffer(command.payload)
            )
        case Dequeue():
            return bytes((DEQUEUE,)) + encode_queue_name(command.queue)
        case CountTasks():
            return bytes((COUNT,)) + encode_queue_name(command.queue)
        case CreateCommand():
            limit = UINT32.pack(command.size_max or 0)
            return bytes((CREATE,)) + encode_queue_name(command.queue) + limit
        case CreateWithPolicy():
            name = encode_queue_name(command.queue)
            return bytes((CREATE,)) + name + encode_policy(command.policy)
        case DeleteCommand():
            return bytes((DELETE,)) + encode_queue_name(command.queue)
        case ListQueues():
            return bytes((LIST,))
        case _:
            assert_never(command)


def is_command(data: Bytes) -> bool:
    """Return whether ``data`` is a whole command."""
    try:
        decode_command(data)
    except BadData:
        return False
    return True


# --- in columns ----------------------------------------------------------------------------------


def command_kernel(
    data: Any,
    offset: Any,
    header_size: Any,
    length: Any,
    status: Any,
    by_id: Any,  # noqa: ARG001 - both kernels are called alike
    rows: Any,
) -> None:
    """Decode a command per row as ``decode_command`` does; see ``entries.ChangeColumns`` for the rows.

    A row of bad status or without bytes gets 0; one whose bytes are no command gets BAD_OP.
    """
    for row in range(len(offset)):
        for column in range(7):
            rows[column, row] = 0
        start = offset[row] + header_size
        end = start + length[row]
        if status[row] != 0 or start == end:
            continue
        op = data[start]
        rows[0, row] = 0xFF
        if op == LIST:
            if end - start == 1:
                rows[0, row] = op
            continue
        if end - start < 2:
            continue
        body = start + 2 + data[start + 1]
        if body > end:
            continue
        good = True
        for i in range(start + 2, body):
            if data[i] < 33 or data[i] > 126:
                good = False
        left = end - body
        key = 0
        payload = 0
        if op == ENQUEUE:
            inner = 0
            if left >= 12:
                high = 0
                low = 0
                for i in range(body, body + 4):
                    high = high * 256 + data[i]
                for i in range(body + 4, body + 8):
                    low = low * 256 + data[i]
                for i in range(body + 8, body + 12):
                    inner = inner * 256 + data[i]
                key = ((high - ((high >> 31) << 32)) << 32) | low
            good = good and left >= 12 and inner == left - 12
            payload = body + 12
        elif op == CREATE:
            good = good and (left == 4 or left == 13 or left == 29)
            if good and left > 4:
                # A policy, read as ``delta_kernel`` does: a kernel calls no other function.
                kind = 0
                for i in range(body, body + 4):
                    kind = kind * 256 + data[i]
                for at in (body + 4, body + 8):
                    limit = 0
                    for i in range(at, at + 4):
                        limit = limit * 256 + data[i]
                    good = good and (limit < 0x80000000 or limit == 0xFFFFFFFF)
                ranged = data[body + 12] != 0
                good = good and ranged == (left == 29)
                good = good and (kind == 1 or kind == PAGED or (kind == 2 and ranged))
                if good and ranged:
                    order = (data[body + 13] + 128) % 256 - (data[body + 21] + 128) % 256
                    for i in range(1, 8):
                        if order == 0:
                            order = data[body + 13 + i] * 1 - data[body + 21 + i] * 1
                    good = order <= 0
        elif op == DEQUEUE or op == COUNT or op == DELETE:
            good = good and left == 0
        else:
            good = False
        if good:
            rows[0, row] = op
            rows[1, row] = start + 2
            rows[2, row] = body - start - 2
            rows[3, row] = key
            rows[4, row] = payload
            rows[5, row] = end - payload if payload else 0
