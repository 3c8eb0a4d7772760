"""Who enqueues: an id and a growing number on every request, so that a retry counts once.

The node remembers the last 1024 requests of a producer. A number may therefore only be used while it is
close to the oldest one whose answer is still open; ``Sequences`` holds that back.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import uuid4

from penstock.errors import InvalidValue
from penstock.protocol.version2 import PRODUCER_SIZE

SPREAD_MAX: Final = 256
"""How far a number may be ahead of the oldest unanswered one: a quarter of what the node remembers.

It bounds the requests in flight too. Counting those alone would not do: one that is being repeated
after a broken connection could be overtaken by thousands of new ones, and so be forgotten.
"""


def producer_id(name: str | None) -> bytes:
    """Return 16 bytes: always the same for a name, never the same without. Raises ``InvalidValue``."""
    if name is None:
        return uuid4().bytes
    if not name or type(name) is not str:
        raise InvalidValue(f'a producer is named by a str such as "billing-1", not {name!r}')
    return hashlib.blake2b(name.encode(), digest_size=PRODUCER_SIZE).digest()


def first_sequence(name: str | None, *, now_ns: int) -> int:
    """Return the number to begin with.

    A named producer may have lived before, so it begins at the microsecond of the clock: as long as it
    makes fewer than a million requests a second, no number comes twice.
    """
    return 1 if name is None else now_ns // 1000


class Sequences:
    """The numbers of a producer's requests."""

    __slots__ = ("_next", "_open")

    def __init__(self, first: int) -> None:
        self._next = first
        self._open: dict[int, None] = {}  # unanswered, oldest first

    def take(self) -> int | None:
        """Return the next number, or ``None`` while it would be too far ahead of the oldest open one."""
        oldest = next(iter(self._open), self._next)
        if self._next - oldest >= SPREAD_MAX:
            return None
        number = self._next
        self._next += 1
        self._open[number] = None
        return number

    def release(self, number: int) -> None:
        """Say that a number will not be sent again: it was answered, or given up."""
        self._open.pop(number, None)
