"""Who a spool is to a node: the file ``penstock.producer`` beside its segments.

Its first line is the producer's id, 32 hexadecimal digits; Beats passes the file over. A producer lives as long as the
rounds that it began: where none is under way, a spool that is opened takes a new id, so that whatever was done to its
files meanwhile, no new task can be taken for one that the node knows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import InvalidValue, SpoolFull
from penstock.formats.beats.state import Position
from penstock.model import QueueName
from penstock.protocol.version2 import PRODUCER_SIZE
from penstock.spooling.rounds import RULE
from penstock.storage.files import NO_ROOM, Files, read_whole, replace_file

FILE_NAME: Final = "penstock.producer"

SIZE_MAX: Final = 2**16
"""Bytes of the file: more than the numbers of all requests of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What must be the same when a round is sent again."""

    producer: bytes
    rule: int = RULE  # by which its rounds are cut
    others: QueueName | None = None  # where events of somebody else go
    # Requests that were refused whole, and go task by task: those of the round that ends there.
    end: Position | None = None
    divided: frozenset[int] = frozenset()

    @property
    def single_producer(self) -> bytes:
        """The producer of tasks that go one by one: their numbers stand beside those of requests."""
        return hashlib.blake2b(self.producer, digest_size=PRODUCER_SIZE, person=b"single").digest()

    def is_divided(self, number: int, end: Position) -> bool:
        """Return whether a request of the round that ends at ``end`` goes task by task."""
        return self.end == end and number in self.divided

    def with_divided(self, number: int, end: Position) -> Identity:
        before = self.divided if self.end == end else frozenset[int]()
        return replace(self, end=end, divided=before | {number})


def encode_identity(identity: Identity) -> bytes:
    lines = [identity.producer.hex(), f"rule {identity.rule}"]
    if identity.others is not None:
        lines.append(f"others {identity.others}")
    if identity.end is not None:
        end = identity.end
        numbers = " ".join(map(str, sorted(identity.divided)))
        lines.append(f"divided {end.segment} {end.offset} {end.index} {numbers}")
    return "".join(line + "\n" for line in lines).encode("ascii")


def decode_identity(data: bytes) -> Identity | None:
    """Return what the file says, ``None`` for one that was not written by us."""
    try:
        first, *lines = data.decode("ascii").removesuffix("\n").split("\n")
        identity = Identity(producer=bytes.fromhex(first))
        for line in lines:
            what, _, rest = line.partition(" ")
            if what == "rule":
                identity = replace(identity, rule=int(rest))
            elif what == "others":
                identity = replace(identity, others=QueueName(rest))
            elif what == "divided":
                segment, offset, index, *numbers = map(int, rest.split())
                end = Position(segment, offset, index)
                identity = replace(identity, end=end, divided=frozenset(numbers))
            else:
                return None
    except (ValueError, InvalidValue):
        return None
    return identity if len(identity.producer) == PRODUCER_SIZE else None


class IdentityFile:
    """The file, and what it holds."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME
        self.identity = Identity(producer=bytes(PRODUCER_SIZE))

    def read(self, tell: Callable[[str], None]) -> bool:
        """Take up what a round that is under way was begun with. Return whether it is known."""
        data = read_whole(self._files, self._path, size_max=SIZE_MAX)
        identity = None if data is None else decode_identity(data)
        if identity is None or identity.rule != RULE:
            tell(f"{self._path}: is missing, not ours, or of another version")
            return False
        self.identity = identity
        return True

    def renew(self, others: QueueName | None) -> None:
        """Begin a new producer. Raises ``SpoolFull``, and ``OSError`` for any other failure of the disk."""
        self._replace(Identity(producer=os.urandom(PRODUCER_SIZE), others=others))

    def divide(self, number: int, end: Position) -> None:
        """Note that a request goes task by task from now on. Raises as ``renew``."""
        self._replace(self.identity.with_divided(number, end))

    def _replace(self, identity: Identity) -> None:
        try:
            replace_file(self._files, self._path, [encode_identity(identity)])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise SpoolFull(f"{self._path}: {error.strerror}; make room") from None
        self.identity = identity
