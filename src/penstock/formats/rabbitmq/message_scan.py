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
    *,
    interpreted: bool = False,
) -> MessageColumns:
    """Return where the parts of the terms stand that begin at ``start``; each lies within the buffer.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """
    with bulk():
        import numpy as np

    rows = np.zeros((FIELD_COUNT, len(start)), dtype=np.int64)
    steps, names = _program()
    if interpreted:
        _message_kernel(bytes(data), start, length, steps, names.tobytes(), rows)
    else:
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
    stand. Bytes are multiplied, not shifted, into integers: a shifted byte is unsigned to numba, and
    mixing the signs makes it a float.
    """
    last = 0  # the last row that was read here
    last_length = 0
    address = 0
    marked = 0
    while steps[marked, 0] != _MARK:
        marked += 1
    for row in range(len(start)):
        position = start[row]
        end = position + length[row]
        good = position < end and data[position] == 131
        position += 1
        step = 0
        is_new = 1
        if last_length > 0 and length[row] > last_length:
            one = data[start[last] : start[last] + last_length]
            other = data[start[row] : start[row] + last_length]
            # Without an early end the compiler compares many bytes at once.
            differing = 0
            for i in range(last_length):
                differing |= one[i] ^ other[i]
            if differing == 0:
                position = start[row] + last_length
                step = marked
                is_new = 0
                for column in range(1, 7, 2):
                    rows[column, row] = rows[column, last] + start[row] - start[last]
                    rows[column + 1, row] = rows[column + 1, last]
                # The number of keys stands where others have a length, so it is copied as one.
        while good and step < len(steps):
            operation = steps[step, 0]
            value = steps[step, 1]
            column = steps[step, 2]
            step += 1
            if operation == _MARK:
                rows[column, row] = position - start[row]
                continue
            # No value of these is shorter than two bytes but the empty list, and that is never the last.
            if position + 2 > end:
                good = False
                break
            tag = data[position] * 1
            if operation == _TUPLE:
                if tag == 104:
                    good = data[position + 1] == value
                    position += 2
                elif tag == 105 and position + 5 <= end:
                    i = position + 1
                    count = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    good = count == value
                    position += 5
                else:
                    good = False
            elif operation == _ATOM or operation == _FLAG:
                size = data[position + 1] * 1
                if tag == 119 or tag == 115:
                    position += 2
                elif (tag == 100 or tag == 118) and position + 3 <= end:
                    size = size * 0x100 + data[position + 2]
                    position += 3
                else:
                    good = False
                if operation == _FLAG:
                    value = 0 if size == 4 else 4
                    rows[column, row] = 1 if size == 4 else 0
                    column = size if size == 4 else 5
                if good:
                    good = size == column and position + size <= end
                i = 0
                while good and i < size:
                    good = data[position + i] == names[value + i]
                    i += 1
                position += size
            elif operation == _INTEGER:
                good = tag == 97 and data[position + 1] == value
                position += 2
            else:
                # A binary, or a list of binaries: of keys, or of one fragment of a body.
                count = 1
                is_list = operation == _KEYS or operation == _BODY
                if is_list and tag == 106:
                    count = 0
                    position += 1
                elif is_list:
                    if tag == 108 and position + 5 <= end:
                        i = position + 1
                        count = (
                            data[i] * 0x1000000
                            + data[i + 1] * 0x10000
                            + data[i + 2] * 0x100
                            + data[i + 3]
                        )
                        good = count > 0 and count <= (KEYS_MAX if operation == _KEYS else 1)
                        position += 5
                    else:
                        good = False
                rows[column, row] = position + KEY_HEAD_SIZE if count > 0 else position
                if operation == _KEYS:
                    rows[column + 1, row] = count
                for _ in range(count if good else 0):
                    if position + 5 > end or data[position] != 109:
                        good = False
                        break
                    i = position + 1
                    size = (
                        data[i] * 0x1000000
                        + data[i + 1] * 0x10000
                        + data[i + 2] * 0x100
                        + data[i + 3]
                    )
                    position += 5 + size
                    if position > end or (operation == _ID and size != value):
                        good = False
                        break
                    if operation == _BINARY or operation == _BODY:
                        rows[column + 1, row] = size
                if good and is_list and count > 0:
                    good = position < end and data[position] == 106
                    position += 1
        if good and position == end:
            address += is_new
            rows[13, row] = address
            last = row
            last_length = rows[14, row]
        else:
            rows[:, row] = 0
            rows[0, row] = 1
