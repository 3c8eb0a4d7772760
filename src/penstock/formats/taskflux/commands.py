"""Commands: the payloads of log records in variants 1a, 1b and 1d (docs/formats/commands.md).

A command is a request that replay decides anew. Its integers are big-endian in every variant, also
in files whose framing is little-endian.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, assert_never

from penstock.binary import (
    INT64,
    UINT32,
    Bytes,
    Reader,
    decode_queue_name,
    encode_buffer,
    encode_queue_name,
)
from penstock.errors import BadData, CorruptData, InvalidQueueName
from penstock.formats.taskflux.deltas import (
    BAD_OP,
    BAD_ROW,
    change_row,
    decode_policy,
    encode_policy,
    is_policy,
    task_row,
)
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

_LIST_ROW: Final = (LIST, 0, 0, 0, 0, 0, 0)

LIMIT_SIZE: Final = 4
"""Bytes behind the name of a creation in variants 1a and 1b. A policy, as in 1d, has 13 or 29."""


def decode_command(data: Bytes) -> Command:
    """Return the command that ``data`` holds, all of it. Raises ``BadData``."""
    kind, at, name_size, key, start, size, _ = command_row(data, 0, len(data))
    if kind == BAD_OP:
        _explain(data)
    if kind == LIST:
        return ListQueues()
    try:
        queue = decode_queue_name(bytes(data[at : at + name_size]))
    except InvalidQueueName as error:
        raise CorruptData(str(error), offset=1) from None
    if kind == ENQUEUE:
        return Enqueue(queue=queue, key=key, payload=bytes(data[start : start + size]))
    if kind == DEQUEUE:
        return Dequeue(queue=queue)
    if kind == COUNT:
        return CountTasks(queue=queue)
    if kind == DELETE:
        return DeleteCommand(queue=queue)
    reader = Reader(data, at + name_size)
    if reader.remaining != LIMIT_SIZE:
        return CreateWithPolicy(queue=queue, policy=decode_policy(reader))
    # 0 means unlimited in this generation; None says so everywhere else.
    return CreateCommand(queue=queue, size_max=reader.uint32("a size limit") or None)


def _explain(data: Bytes) -> NoReturn:
    """Raise what is wrong with bytes that are no command."""
    reader = Reader(data)
    kind = reader.byte("a command")
    if kind not in (ENQUEUE, DEQUEUE, COUNT, CREATE, DELETE, LIST):
        raise CorruptData(
            "unknown command", offset=0, expected="45, 44, 43, 51, 52 or 4C", found=f"{kind:02X}"
        )
    if kind != LIST:
        reader.queue_name()
    if kind == ENQUEUE:
        reader.int64("a key")
        reader.buffer("a payload")
    elif kind == CREATE and reader.remaining != LIMIT_SIZE:
        decode_policy(reader)
    reader.finish("a command")
    raise AssertionError("the bytes are a command")


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


def command_row(data: Any, start: Any, end: Any) -> Any:
    """Return the row of the command in ``data[start:end]``, as ``deltas.delta_row`` does."""
    if end - start < 2:
        return _LIST_ROW if end > start and data[start] == LIST else BAD_ROW
    op = data[start]
    body = start + 2 + data[start + 1]
    if op == ENQUEUE:
        return task_row(data, start, body, end)
    is_bare = op == DEQUEUE or op == COUNT or op == DELETE
    is_creation = op == CREATE and (end - body == LIMIT_SIZE or is_policy(data, body, end - body))
    if is_creation or (is_bare and body == end):
        return change_row(data, start, body, 0)
    return BAD_ROW
