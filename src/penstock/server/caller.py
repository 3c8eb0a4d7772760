"""Who asks things of a node: a connection of either version, or the program itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.protocol.version2 import Answer
from penstock.queues.leases import Owner

if TYPE_CHECKING:
    from penstock.server.consumers import Consumer


OUT_SIZE_MAX: Final = 2**20
"""Bytes of answers that are gathered for a caller; before they are sent it gets no more, and asks for no more."""


class Caller(Owner):
    """Somebody who is answered and may hold leases."""

    __slots__ = ("consumers", "is_gone")

    def __init__(self) -> None:
        super().__init__()
        self.consumers: dict[Consumer, None] = {}  # its dequeues that wait and its subscriptions
        self.is_gone = False  # an answer to it is dropped; it must not be given tasks any more

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether more has been sent than was read: nothing is delivered until that changes."""

    @abstractmethod
    def answer(self, number: int, answer: Answer) -> None:
        """Answer a request; the bytes leave when the batch is done."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was answered."""


class SinglesCaller(Caller):
    """A caller that may pipeline requests of one task each."""

    __slots__ = ()

    @abstractmethod
    def answer_singles(self, numbers: Sequence[int], first: int) -> None:
        """Tell each of some requests that its one task was taken; the ids follow each other."""
