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
from penstock.formats.kernel_bytes import emit
from penstock.formats.taskflux.deltas import (
    BAD_ROW,
    EMPTY_ROW,
    change_row,
    decode_policy,
    encode_policy,
    is_policy,
    name_end,
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
        start = offset[row] + header_size
        if status[row] != 0 or length[row] == 0:
            emit(rows, row, EMPTY_ROW)
        else:
            emit(rows, row, _command_row(data, start, start + length[row]))


def _command_row(data: Any, start: Any, end: Any) -> Any:
    """Return the row of the command in ``data[start:end]``."""
    op = data[start]
    if op == LIST:
        return _LIST_ROW if end - start == 1 else BAD_ROW
    body = name_end(data, start, end)
    left = end - body
    if body < 0:
        return BAD_ROW
    if op == ENQUEUE:
        return task_row(data, start, body, end)
    is_bare = op == DEQUEUE or op == COUNT or op == DELETE
    is_creation = op == CREATE and (left == LIMIT_SIZE or is_policy(data, body, left))
    if is_creation or (is_bare and left == 0):
        return change_row(data, start, body, 0)
    return BAD_ROW
