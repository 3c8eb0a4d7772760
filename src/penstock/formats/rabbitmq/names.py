"""Names of vhosts and queues, and the small text files beside them.

The layout is in docs/formats/rabbitmq-messages.md. A directory's name is a hash and cannot be turned
back; ``.vhost`` and ``.queue_name`` say what it stands for. Names are bytes: nobody checks that they
are UTF-8, and a sub-queue's name ends in a byte that may well be a line feed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import md5
from typing import Final

from penstock.binary import Bytes
from penstock.errors import CorruptData, InvalidValue, TruncatedData
from penstock.formats.rabbitmq.terms import Atom, encode_term

ENTRY_COUNT_DEFAULT: Final = 16384
"""Entries a segment where ``.config`` is missing, and the most that there can be: 14 bits number them."""

ENTRY_COUNT_NEW: Final = 2048
"""What a broker from 3.8.17 on writes for a vhost without queues."""

PRIORITY_MAX: Final = 0xFF

_VHOST: Final = b"VHOST: "
_QUEUE: Final = b"\nQUEUE: "
_END: Final = b"\n"
_VERSION_2: Final = b"\nINDEX: v2\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQueue:
    """A queue with a directory of its own: a whole queue, or one priority of a priority queue."""

    vhost: bytes
    queue: bytes
    priority: int | None = None  # of a sub-queue; the highest is delivered first
    version: int = 1  # of the index: 1 has a journal, 2 has ``.qi`` files

    def __post_init__(self) -> None:
        if self.priority is not None and not 0 <= self.priority <= PRIORITY_MAX:
            raise InvalidValue(f"a priority is 0 to {PRIORITY_MAX}")
        if self.version not in {1, 2}:
            raise InvalidValue("an index has version 1 or 2")

    @property
    def stored_name(self) -> bytes:
        """The queue's name, and for a sub-queue a zero byte and the priority behind it."""
        if self.priority is None:
            return self.queue
        return self.queue + bytes((0, self.priority))

    @property
    def directory(self) -> str:
        return queue_directory(self.vhost, self.stored_name)


# --- directories ---------------------------------------------------------------------------------


def vhost_directory(vhost: bytes) -> str:
    """Return the name of a vhost's directory below ``msg_stores/vhosts``."""
    return _hashed(vhost)


def queue_directory(vhost: bytes, stored_name: bytes) -> str:
    """Return the name of a queue's directory below ``queues``, from 3.7 on."""
    return _hashed(b"queue" + vhost + stored_name)


def old_queue_directory(vhost: bytes, stored_name: bytes) -> str:
    """Return the name of a queue's directory before 3.7, when a node had one store for all vhosts."""
    return _hashed(encode_term((Atom("resource"), vhost, Atom("queue"), stored_name)))


def _hashed(data: bytes) -> str:
    number = int.from_bytes(md5(data, usedforsecurity=False).digest(), "big")
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits or "0"


# --- .queue_name ---------------------------------------------------------------------------------


def decode_queue_name(data: Bytes, *, directory: str | None = None) -> StoredQueue:
    """Return what the file ``.queue_name`` says. Raises ``BadData``.

    A vhost's name may itself look like the start of the next line. Where the bytes can be read in
    several ways, the one that ``directory`` is the hash of is right; without it, the first.
    """
    raw = bytes(data)
    if not raw.startswith(_VHOST):
        error = TruncatedData if _VHOST.startswith(raw) else CorruptData
        raise error("not the name of a queue", offset=0, expected="VHOST: ")
    if not raw.endswith(_END):
        raise TruncatedData("the name of a queue ends without a line feed", offset=len(raw))
    version = 2 if raw.endswith(_VERSION_2) else 1
    end = len(raw) - len(_VERSION_2 if version == 2 else _END)
    found = [
        _stored_queue(raw[len(_VHOST) : match.start()], raw[match.end() : end], version)
        for match in re.finditer(re.escape(_QUEUE), raw)
        if match.end() <= end
    ]
    if not found:
        raise TruncatedData("a vhost without a queue", offset=len(raw), expected="QUEUE: ")
    fitting = [queue for queue in found if queue.directory == directory]
    return (fitting or found)[0]


def _stored_queue(vhost: bytes, stored_name: bytes, version: int) -> StoredQueue:
    if len(stored_name) > 2 and stored_name[-2] == 0:
        return StoredQueue(
            vhost=vhost, queue=stored_name[:-2], priority=stored_name[-1], version=version
        )
    return StoredQueue(vhost=vhost, queue=stored_name, version=version)


def encode_queue_name(queue: StoredQueue) -> bytes:
    """Return the file ``.queue_name`` of a queue."""
    end = _VERSION_2 if queue.version == 2 else _END
    return _VHOST + queue.vhost + _QUEUE + queue.stored_name + end


# --- .config -------------------------------------------------------------------------------------

_COMMENT: Final = re.compile(rb"%[^\n]*")
_ENTRY_COUNT: Final = re.compile(rb"\{\s*segment_entry_count\s*,\s*([0-9]{1,20})\s*\}")


def decode_config(data: Bytes) -> int:
    """Return the entries a segment that the file ``.config`` sets. Raises ``CorruptData``.

    A file that does not mention them means ``ENTRY_COUNT_DEFAULT``, as a missing one does.
    """
    match = _ENTRY_COUNT.search(_COMMENT.sub(b"", bytes(data)))
    count = ENTRY_COUNT_DEFAULT if match is None else int(match[1])
    if 1 <= count <= ENTRY_COUNT_DEFAULT:
        return count
    raise CorruptData(
        "an impossible number of entries a segment",
        expected=f"1 to {ENTRY_COUNT_DEFAULT}",
        found=str(count),
    )


def encode_config(entry_count: int) -> bytes:
    """Return the file ``.config``, as brokers write it: without a line feed at its end."""
    assert 1 <= entry_count <= ENTRY_COUNT_DEFAULT
    return (
        b"%% This file is auto-generated! Edit at your own risk!\n"
        b"{segment_entry_count, " + str(entry_count).encode("ascii") + b"}."
    )
