"""What proves a publish record in an index, which has neither checksum nor marker: the message that it embeds.

The record's id stands again in its message, behind all but its last atom. A record whose message ends so is where it
seems to be and has the length that it says (docs/formats/rabbitmq.md, "Behind damage").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.binary import Bytes
from penstock.errors import BadData
from penstock.formats.rabbitmq.journal import (
    MESSAGE_ID_SIZE,
    PUBLISH_FIELDS,
    TERM_MARKER,
    TERM_TAGS,
    PieceColumns,
    Status,
    begins_like_message,
)
from penstock.formats.rabbitmq.terms import decode_term

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLAG_SIZES: Final = (6, 7, 8)
"""Bytes of the atom ``true`` or ``false`` that ends a message, in all of its encodings."""

ID_HEAD: Final = b"m" + MESSAGE_ID_SIZE.to_bytes(4, "big")

FOUND_MAX: Final = 2**20
"""Bytes of a message that is searched for. Brokers embed messages below 4096 bytes unless configured otherwise."""

TRIES_MAX: Final = 8
"""Places of an id that are tried as the end of its message: a body may hold the id, but not often."""

_FLAGS: Final = tuple(
    head + name
    for name in (b"true", b"false")
    for head in (
        b"d\x00" + bytes((len(name),)),
        b"v\x00" + bytes((len(name),)),
        b"s" + bytes((len(name),)),
        b"w" + bytes((len(name),)),
    )
)
_ENDS: Final = (b"true", b"alse")
_STARTS: Final = tuple(bytes((TERM_MARKER, tag)) for tag in TERM_TAGS)


def ends_with_id(data: Bytes, end: int, message_id: bytes) -> bool:
    """Return whether a message that ends at ``end`` has this id."""
    return data[end - 4 : end] in _ENDS and any(
        data[end - size - MESSAGE_ID_SIZE : end - size] == message_id
        for size in FLAG_SIZES
        if end >= size + MESSAGE_ID_SIZE
    )


def is_whole_term(data: Bytes) -> bool:
    """Return whether the bytes are one term and nothing else, whatever it says: then its record has the right length."""
    try:
        decode_term(data, views=True)
    except BadData:
        return False
    return True


def find_proven(data: Bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield start and length of each embedded message from ``start`` on that proves the publish fields before it."""
    raw = bytes(data)
    place = start
    while (place := raw.find(TERM_MARKER, place + 1)) >= 0:
        fields = place - PUBLISH_FIELDS.size
        if fields < start or raw[place : place + 2] not in _STARTS:
            continue
        message_id, _, _, length = PUBLISH_FIELDS.unpack_from(raw, fields)
        if 2 <= length <= min(FOUND_MAX, len(raw) - place) and ends_with_id(
            raw, place + length, message_id
        ):
            yield place, length


def true_length(data: Bytes, body: int) -> int | None:
    """Return how long the message at ``body`` is by its own id, whatever the fields before it say."""
    raw = bytes(data[: body + FOUND_MAX])
    if body < PUBLISH_FIELDS.size or not begins_like_message(raw, body, len(raw) - body):
        return None
    message_id = PUBLISH_FIELDS.unpack_from(raw, body - PUBLISH_FIELDS.size)[0]
    place = raw.find(ID_HEAD + message_id, body)
    for _ in range(TRIES_MAX):
        if place < 0:
            break
        end = place + len(ID_HEAD) + MESSAGE_ID_SIZE
        for flag in _FLAGS:
            if raw.startswith(flag, end) and is_whole_term(raw[body : end + len(flag)]):
                return end + len(flag) - body
        place = raw.find(ID_HEAD + message_id, place + 1)
    return None


def unproven(data: NDArray[np.uint8], pieces: PieceColumns) -> NDArray[np.int64]:
    """Return the rows of publish records whose embedded message does not end with their id."""
    import numpy as np

    rows = np.flatnonzero((pieces.length > 0) & (pieces.status <= Status.BAD_MESSAGE))
    if not len(rows):
        return rows
    end = pieces.offset[rows] + pieces.size[rows]
    ids = np.ndarray(
        (max(0, len(data) - MESSAGE_ID_SIZE + 1),),
        dtype=f"V{MESSAGE_ID_SIZE}",
        buffer=data,
        strides=(1,),
    )
    own = ids[end - pieces.length[rows] - PUBLISH_FIELDS.size]
    is_proven = np.zeros(len(rows), dtype=bool)
    for size in FLAG_SIZES:
        # What is before the message are its fields, so this never leaves the buffer.
        is_proven |= ids[end - size - MESSAGE_ID_SIZE] == own
    ends = np.ndarray((len(data) - 3,), dtype="V4", buffer=data, strides=(1,))[end - 4]
    is_flag = np.isin(ends.view(">u4"), [int.from_bytes(each, "big") for each in _ENDS])
    return rows[~(is_proven & is_flag)]
