"""Extensions: entries of ours that plain readers of the format replay without effect (docs/formats/extensions.md).

Each is a DeleteQueue of a name that no queue can have; deleting a missing queue is ignored. The name
holds the extension's bytes in base64, so that it stays printable, as names must be. ``extension_scan``
has many of them in columns.
"""

from __future__ import annotations

from binascii import Error as BadBase64
from binascii import a2b_base64, b2a_base64
from struct import Struct, pack, unpack_from
from typing import Final, assert_never

from penstock.binary import Bytes
from penstock.errors import CorruptData, UnsupportedVersion
from penstock.formats.taskflux.deltas import DELETE
from penstock.model import (
    INT32_MAX,
    LEASE_MS_MAX,
    QUEUE_NAME_SIZE_MAX,
    RESERVED_PREFIX,
    Adding,
    Creating,
    Extension,
    Removing,
    Returning,
    Terms,
)

PREFIX: Final = (RESERVED_PREFIX + "1.").encode()
"""Version 1 of our extensions; a later one gets another number and is refused by this reader."""

ADDING: Final = 1
CREATING: Final = 2
RETURNING: Final = 3
REMOVING: Final = 4

NOT_BEFORE: Final = 1
EXPIRES: Final = 2
ATTEMPTS: Final = 4
PRODUCER: Final = 8

_HEAD: Final = Struct(">BIB")
_TIME: Final = Struct(">q")
_COUNT: Final = Struct(">I")
_PRODUCER_FIELDS: Final = Struct(">16sQI")
_OPTIONS: Final = Struct(">BIIQ")
_RETURN: Final = Struct(">BQq")

IDS_MAX: Final = 20
"""Ids in one extension: what base64 leaves of a name's 255 bytes."""

assert len(PREFIX) + -(-(_RETURN.size + 8 * IDS_MAX) // 3) * 4 <= QUEUE_NAME_SIZE_MAX


def is_extension(data: Bytes, offset: int, end: int) -> bool:
    """Return whether the entry in ``data[offset:end]`` is one of ours, of whatever version."""
    return (
        end - offset >= 12 and data[offset] == DELETE and data[offset + 2 : offset + 12] == RESERVED
    )


RESERVED: Final = RESERVED_PREFIX.encode()
assert len(RESERVED) == 10


def encode_extension(extension: Extension) -> bytes:
    """Return the payload of an entry."""
    name = PREFIX + b2a_base64(_encode(extension), newline=False)
    assert len(name) <= QUEUE_NAME_SIZE_MAX
    return bytes((DELETE, len(name))) + name


def _encode(extension: Extension) -> bytes:
    match extension:
        case Adding():
            return _encode_adding(extension)
        case Creating():
            dead_letter = 0 if extension.dead_letter is None else extension.dead_letter + 1
            attempts_max = extension.attempts_max or 0
            return _OPTIONS.pack(CREATING, extension.lease_ms, attempts_max, dead_letter)
        case Returning():
            time = -1 if extension.not_before_ms is None else extension.not_before_ms
            return _RETURN.pack(RETURNING, extension.queue, time) + _encode_ids(extension.ids)
        case Removing():
            return bytes((REMOVING,)) + _encode_ids(extension.ids)
        case _:
            assert_never(extension)


def _encode_adding(adding: Adding) -> bytes:
    flags, fields, terms = 0, b"", adding.terms
    if terms.not_before_ms is not None:
        flags |= NOT_BEFORE
        fields += _TIME.pack(terms.not_before_ms)
    if terms.expires_ms is not None:
        flags |= EXPIRES
        fields += _TIME.pack(terms.expires_ms)
    if terms.attempts:
        flags |= ATTEMPTS
        fields += _COUNT.pack(terms.attempts)
    if terms.producer is not None:
        flags |= PRODUCER
        fields += _PRODUCER_FIELDS.pack(terms.producer, terms.sequence, terms.total)
    return _HEAD.pack(ADDING, adding.count, flags) + fields


def _encode_ids(ids: tuple[int, ...]) -> bytes:
    assert len(ids) <= IDS_MAX
    return pack(f">{len(ids)}Q", *ids)


def decode_extension(data: Bytes, offset: int, end: int) -> Extension | None:
    """Return the extension in ``data[offset:end]``; ``None`` for a reserved name that says nothing.

    Raises ``CorruptData``, and ``UnsupportedVersion`` for one that a later version of Penstock wrote.
    """
    name = bytes(data[offset + 2 : end])
    if data[offset + 1] != len(name):
        raise CorruptData(
            "the name's length does not fit the delta",
            offset=offset + 1,
            expected=str(len(name)),
            found=str(data[offset + 1]),
        )
    if not name.startswith(PREFIX):
        if name[len(RESERVED) : len(RESERVED) + 1].isdigit():
            raise UnsupportedVersion(
                "an extension of a later version; open this directory with a newer Penstock",
                offset=offset,
                expected=PREFIX.decode(),
                found=name[: len(PREFIX)].decode("latin-1"),
            )
        return None
    try:
        return _decode(_decode_base64(name[len(PREFIX) :]))
    except (BadBase64, ValueError, IndexError) as error:
        raise CorruptData(f"an extension that means nothing: {error}", offset=offset) from None


def _decode_base64(text: bytes) -> bytes:
    """Return what ``text`` spells, if it is spelled as we do: versions of Python differ in what else they take.

    An entry that one node took and another refused would divide them.
    """
    body = a2b_base64(text, strict_mode=True)
    if b2a_base64(body, newline=False) != text:
        raise ValueError("another spelling than ours")
    return body


class _Fields:
    """Takes a body apart; running out of bytes is a ``ValueError``, as is having some left."""

    __slots__ = ("_body", "_offset")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._offset = 0

    def take(self, form: Struct) -> tuple[int, ...]:
        if self._offset + form.size > len(self._body):
            raise ValueError("it ends too early")
        values = form.unpack_from(self._body, self._offset)
        self._offset += form.size
        return values

    def ids(self) -> tuple[int, ...]:
        left = len(self._body) - self._offset
        if left % 8 or not left:
            raise ValueError("its ids are not whole")
        values = unpack_from(f">{left // 8}Q", self._body, self._offset)
        self._offset = len(self._body)
        if 0 in values:
            raise ValueError("no task has the id 0")
        return values

    def time(self) -> int:
        (value,) = self.take(_TIME)
        if value < 0:
            raise ValueError("a time before 1970")
        return value

    def finish(self) -> None:
        if self._offset != len(self._body):
            raise ValueError("bytes are left over")


def _decode(body: bytes) -> Extension:
    fields = _Fields(body)
    kind = body[0]
    extension: Extension
    if kind == ADDING:
        extension = _decode_adding(fields)
    elif kind == CREATING:
        _, lease_ms, attempts_max, dead_letter = fields.take(_OPTIONS)
        if not 1 <= lease_ms <= LEASE_MS_MAX or attempts_max > INT32_MAX:
            raise ValueError("options that no queue can have")
        extension = Creating(
            lease_ms=lease_ms,
            attempts_max=attempts_max or None,
            dead_letter=dead_letter - 1 if dead_letter else None,
        )
    elif kind == RETURNING:
        _, queue, time = fields.take(_RETURN)
        if time < -1:
            raise ValueError("a time before 1970")
        not_before_ms = None if time == -1 else time
        extension = Returning(queue=queue, ids=fields.ids(), not_before_ms=not_before_ms)
    elif kind == REMOVING:
        fields.take(Struct(">B"))
        extension = Removing(ids=fields.ids())
    else:
        raise ValueError(f"unknown kind {kind}")
    fields.finish()
    return extension


def _decode_adding(fields: _Fields) -> Adding:
    _, count, flags = fields.take(_HEAD)
    if flags & ~(NOT_BEFORE | EXPIRES | ATTEMPTS | PRODUCER):
        raise ValueError(f"unknown flags {flags}")
    if not count:
        raise ValueError("it speaks of no entries")
    not_before_ms = fields.time() if flags & NOT_BEFORE else None
    expires_ms = fields.time() if flags & EXPIRES else None
    attempts = fields.take(_COUNT)[0] if flags & ATTEMPTS else 0
    if flags & ATTEMPTS and not attempts:
        raise ValueError("no attempts need no flag")
    producer, sequence, total = None, 0, 0
    if flags & PRODUCER:
        raw, sequence, total = fields.take(_PRODUCER_FIELDS)
        assert isinstance(raw, bytes)
        producer = raw
        if total < count:
            raise ValueError("more tasks than its request has")
    terms = Terms(
        not_before_ms=not_before_ms,
        expires_ms=expires_ms,
        attempts=attempts,
        producer=producer,
        sequence=sequence,
        total=total,
    )
    return Adding(count=count, terms=terms)
