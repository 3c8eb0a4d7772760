"""Tasks as messages: what a paged queue stores (docs/formats/paged.md).

Such a message is one that a broker could have written, persistent, with the task's key and a checksum of
its payload in the headers. Everything before the payload has the same size, and so has everything behind it, so a
batch of them is made and read without a look at terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from penstock.binary import Bytes, checksum_of_one
from penstock.errors import CorruptData
from penstock.formats.rabbitmq.messages import Content, Message, encode_message
from penstock.formats.rabbitmq.properties import (
    Header,
    Kind,
    Properties,
    Value,
    encode_properties,
)
from penstock.model import QueueName

VHOST: Final = b"penstock"
KEY_HEADER: Final = b"key"
CHECKSUM_HEADER: Final = b"checksum"

_ID: Final = Struct(">qII")  # key, number of the queue, the low half of the task's id
_ID_LOW: Final = 2**32 - 1

# Values that are found again in an encoded message; no two bytes of them are alike.
_KEY_MARK: Final = 0x0102030405060708
_CHECKSUM_MARK: Final = 0x1112131415
_BODY_MARK: Final = bytes(range(0xA0, 0xB0))
_ID_MARK: Final = bytes(range(0xC0, 0xD0))


class TaskMessages:
    """Makes the messages of one queue's tasks, and reads them."""

    __slots__ = ("_behind", "_checksum_at", "_constants", "_head", "_number", "_tail")

    def __init__(self, queue: QueueName, number: int) -> None:
        """``number`` tells queues apart that have the same name one after the other."""
        sample = _sample(queue.encode("latin-1"))
        key_at = sample.index(_KEY_MARK.to_bytes(8, "big"))
        checksum_at = sample.index(_CHECKSUM_MARK.to_bytes(8, "big"))
        body_at = sample.index(_BODY_MARK)
        id_at = sample.index(_ID_MARK)
        before_key, before_checksum = sample[:key_at], sample[key_at + 8 : checksum_at]
        before_size = sample[checksum_at + 8 : body_at - 4]
        self._constants = before_key, before_checksum, before_size
        self._head = Struct(f">{len(before_key)}sq{len(before_checksum)}sQ{len(before_size)}sI")
        self._checksum_at = checksum_at
        self._behind = sample[body_at + len(_BODY_MARK) : id_at], sample[id_at + len(_ID_MARK) :]
        self._tail = len(sample) - body_at - len(_BODY_MARK)
        self._number = number

    def encode(
        self, first_id: int, keys: Sequence[int], payloads: Sequence[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the ids and the messages of consecutive tasks."""
        before_key, before_checksum, before_size = self._constants
        before_id, behind_id = self._behind
        assert len(keys) == len(payloads)
        # No step of the interpreter for a task: everything is mapped.
        low = (task_id & _ID_LOW for task_id in range(first_id, first_id + len(keys)))
        ids = list(map(_ID.pack, keys, repeat(self._number), low))
        heads = map(
            self._head.pack,
            repeat(before_key),
            keys,
            repeat(before_checksum),
            map(checksum_of_one, payloads),
            repeat(before_size),
            map(len, payloads),
        )
        parts = zip(heads, payloads, repeat(before_id), ids, repeat(behind_id), strict=False)
        return ids, list(map(b"".join, parts))

    def payload(self, message: bytes) -> bytes:
        """Return a task's payload. Raises ``CorruptData`` if it is not the one that was stored."""
        payload = message[self._head.size : len(message) - self._tail]
        at = self._checksum_at
        expected, found = int.from_bytes(message[at : at + 8], "big"), checksum_of_one(payload)
        if expected != found:
            raise CorruptData(
                "the payload of a stored task is damaged",
                expected=f"checksum {expected:08X}",
                found=f"checksum {found:08X}",
            )
        return payload


def key_of(message_id: Bytes) -> int:
    """Return the key of a task, which its message's id holds so that an index alone tells the order."""
    key: int = _ID.unpack(message_id)[0]
    return key


def _sample(queue: bytes) -> bytes:
    headers = (
        Header(KEY_HEADER, Value(Kind.INT64, _KEY_MARK)),
        Header(CHECKSUM_HEADER, Value(Kind.INT64, _CHECKSUM_MARK)),
    )
    block = encode_properties(Properties(headers=headers, delivery_mode=2))
    return encode_message(
        Message(
            vhost=VHOST,
            exchange=b"",
            routing_keys=(queue,),
            content=Content(stored_properties=block, fragments=(_BODY_MARK,)),
            id=_ID_MARK,
            is_persistent=True,
        )
    )
