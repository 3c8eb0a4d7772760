"""Messages in bulk: where the parts of many message terms stand, in columns.

``decode_message`` makes an object of every value in a term; this kernel walks over the one shape that nearly all
messages have and notes offsets. What has any other shape, and all that is damaged, is marked for
``decode_message``: nothing is accepted here that it would refuse or read otherwise (a property test holds the
two together; docs/formats/rabbitmq-messages.md, "In bulk").
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import u16, u32
from penstock.formats.rabbitmq.messages import BASIC_CLASS, ID_SIZE, NONE, PROTOCOL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEYS_MAX: Final = 4096
"""Routing keys of a message that is read here. Its values together stay far below what a term may hold."""

KEY_HEAD_SIZE: Final = 5
"""A tag and a length stand before every routing key, so the second begins this far behind the first."""


class Status(IntEnum):
    """Who reads a message."""

    FAST = 0
    SCALAR = 1  # only ``decode_message`` can tell what it is, if it is one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageColumns:
    """Where the parts of messages stand in a buffer; a message that is not ``FAST`` has zeros.

    The routing keys of a message follow each other, ``KEY_HEAD_SIZE`` bytes apart. The address is the term from its
    first byte to its properties. Messages with one number of an address have the same vhost, exchange and routing
    keys; it rises by one where the address is not that of the last message that was read here.
    """

    status: NDArray[np.int64]
    vhost_offset: NDArray[np.int64]
    vhost_length: NDArray[np.int64]
    exchange_offset: NDArray[np.int64]
    exchange_length: NDArray[np.int64]
    keys_offset: NDArray[np.int64]  # of the first key's first byte
    key_count: NDArray[np.int64]
    properties_offset: NDArray[np.int64]
    properties_length: NDArray[np.int64]
    body_offset: NDArray[np.int64]
    body_length: NDArray[np.int64]
    id_offset: NDArray[np.int64]
    is_persistent: NDArray[np.int64]  # 0 or 1
    address: NDArray[np.int64]  # from 1 on
    address_length: NDArray[np.int64]  # it begins where the term does

    def __len__(self) -> int:
        return len(self.status)

    @classmethod
    def of_rows(cls, rows: NDArray[np.int64]) -> MessageColumns:
        """Return what the kernel wrote."""
        return cls(**dict(zip((field.name for field in fields(cls)), rows, strict=True)))

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> MessageColumns:
        """Return some of the messages."""
        return MessageColumns(
            **{field.name: getattr(self, field.name)[rows] for field in fields(self)}
        )


FIELD_COUNT: Final = 15


def scan_messages(
    data: Bytes | NDArray[np.uint8],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
) -> MessageColumns:
    """Return where the parts of the terms stand that begin at ``start``; each lies within the buffer.

    Needs numpy and numba, which the ``tables`` extra brings.
    """
    with bulk():
        import numpy as np

    rows = np.zeros((FIELD_COUNT, len(start)), dtype=np.int64)
    steps, names = _program()
    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    compiled(_message_kernel)(buffer, start, length, steps, names, rows)
    return MessageColumns.of_rows(rows)


def routing_keys(data: NDArray[np.uint8], messages: MessageColumns, row: int) -> tuple[bytes, ...]:
    """Return the routing keys of one message."""
    keys = []
    offset = int(messages.keys_offset[row])
    for _ in range(int(messages.key_count[row])):
        length = int.from_bytes(data[offset - 4 : offset].tobytes(), "big")
        keys.append(data[offset : offset + length].tobytes())
        offset += length + KEY_HEAD_SIZE
    return tuple(keys)


# --- the shape -----------------------------------------------------------------------------------

_TUPLE, _ATOM, _BINARY, _KEYS, _INTEGER, _BODY, _ID, _FLAG, _MARK = range(9)


@cache
def _program() -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return what must follow what in a message, and the names of the atoms in it.

    A step is what must stand there, a number that it must have (of a tuple its size, of an atom the
    place of its name), and where its offset goes, or the length of an atom's name.
    """
    import numpy as np

    names = bytearray(b"truefalse")

    def atom(name: str) -> tuple[int, int, int]:
        place = len(names)
        names.extend(name.encode("ascii"))
        return _ATOM, place, len(name)

    steps = [
        (_TUPLE, 6, 0),
        atom("basic_message"),
        (_TUPLE, 4, 0),
        atom("resource"),
        (_BINARY, 0, 1),
        atom("exchange"),
        (_BINARY, 0, 3),
        (_KEYS, 0, 5),
        (_TUPLE, 6, 0),
        atom("content"),
        (_INTEGER, BASIC_CLASS, 0),
        atom(NONE.name),
        (_MARK, 0, 14),
        (_BINARY, 0, 7),
        atom(PROTOCOL.name),
        (_BODY, 0, 9),
        (_ID, ID_SIZE, 11),
        (_FLAG, 0, 12),
    ]
    return np.array(steps, dtype=np.int64), np.frombuffer(bytes(names), dtype=np.uint8)


def _message_kernel(data: Any, start: Any, length: Any, steps: Any, names: Any, rows: Any) -> None:
    """Walk over the terms by ``steps``; a term that leaves them is left to ``decode_message``.

    A term with the address of the one before is not walked over up to there: its parts stand where that one's
    stand.
    """
    last = 0  # the last row that was read here
    last_length = 0
    address = 0
    marked = 0
    while steps[marked, 0] != _MARK:
        marked += 1
    for row in range(len(start)):
        begin = start[row]
        end = begin + length[row]
        position = begin + 1 if begin < end and data[begin] == 131 else _NOT_SO
        step = 0
        is_new = 1
        if length[row] > last_length > 0 and _is_same(data, start[last], begin, last_length):
            position = begin + last_length
            step = marked
            is_new = 0
            for column in range(1, 7, 2):
                rows[column, row] = rows[column, last] + begin - start[last]
                rows[column + 1, row] = rows[column + 1, last]
            # The number of keys stands where others have a length, so it is copied as one.
        while position >= 0 and step < len(steps):
            if steps[step, 0] == _MARK:
                rows[steps[step, 2], row] = position - begin
            else:
                position = _after(data, position, end, steps, step, names, rows, row)
            step += 1
        if position == end:
            address += is_new
            rows[13, row] = address
            last = row
            last_length = rows[14, row]
        else:
            rows[:, row] = 0
            rows[0, row] = 1


_NOT_SO: Final = -1
"""The place behind what is not there, or is not as it must be."""


def _is_same(data: Any, one: Any, other: Any, size: Any) -> Any:
    """Return whether the same bytes stand at two places. Without an early end the compiler compares many at once."""
    first = data[one : one + size]
    second = data[other : other + size]
    differing = 0
    for i in range(size):
        differing |= first[i] ^ second[i]
    return differing == 0


def _after(
    data: Any, position: Any, end: Any, steps: Any, step: Any, names: Any, rows: Any, row: Any
) -> Any:
    """Return the place behind the value that a step wants at ``position``; note in the row where that stands."""
    operation = steps[step, 0]
    value = steps[step, 1]
    column = steps[step, 2]
    # No value of these is shorter than two bytes but the empty list, and that is never the last.
    if position + 2 > end:
        return _NOT_SO
    if operation == _TUPLE:
        return _after_tuple(data, position, end, value)
    if operation == _ATOM:
        return _after_atom(data, position, end, names, value, column)
    if operation == _FLAG:
        after = _after_atom(data, position, end, names, 0, 4)
        rows[column, row] = 1 if after >= 0 else 0
        return after if after >= 0 else _after_atom(data, position, end, names, 4, 5)
    if operation == _INTEGER:
        return position + 2 if data[position] == 97 and data[position + 1] == value else _NOT_SO
    return _after_binaries(data, position, end, operation, value, rows, column, row)


def _after_tuple(data: Any, position: Any, end: Any, arity: Any) -> Any:
    """Return the place behind the head of a tuple of so many elements."""
    if data[position] == 104 and data[position + 1] == arity:
        return position + 2
    if data[position] == 105 and position + 5 <= end and u32(data, position + 1) == arity:
        return position + 5
    return _NOT_SO


def _after_atom(data: Any, position: Any, end: Any, names: Any, place: Any, size: Any) -> Any:
    """Return the place behind the atom whose name is ``names[place:place + size]``."""
    tag = data[position]
    if tag == 119 or tag == 115:
        found, first = data[position + 1] * 1, position + 2
    elif (tag == 100 or tag == 118) and position + 3 <= end:
        found, first = u16(data, position + 1), position + 3
    else:
        return _NOT_SO
    if found != size or first + size > end:
        return _NOT_SO
    for i in range(size):
        if data[first + i] != names[place + i]:
            return _NOT_SO
    return first + size


def _after_binaries(
    data: Any, position: Any, end: Any, operation: Any, size: Any, rows: Any, column: Any,
    row: Any,
) -> Any:  # fmt: skip
    """Return the place behind a binary, or a list of binaries: of keys, or of one fragment of a body."""
    count = 1
    is_list = operation == _KEYS or operation == _BODY
    if is_list and data[position] == 106:
        count = 0
        position += 1
    elif is_list:
        if data[position] != 108 or position + 5 > end:
            return _NOT_SO
        count = u32(data, position + 1)
        if count < 1 or count > (KEYS_MAX if operation == _KEYS else 1):
            return _NOT_SO
        position += 5
    rows[column, row] = position + KEY_HEAD_SIZE if count > 0 else position
    if operation == _KEYS:
        rows[column + 1, row] = count
    for _ in range(count):
        if position + KEY_HEAD_SIZE > end or data[position] != 109:
            return _NOT_SO
        found = u32(data, position + 1)
        position += KEY_HEAD_SIZE + found
        if position > end or (operation == _ID and found != size):
            return _NOT_SO
        if operation == _BINARY or operation == _BODY:
            rows[column + 1, row] = found
    if is_list and count > 0:
        return position + 1 if position < end and data[position] == 106 else _NOT_SO
    return position
