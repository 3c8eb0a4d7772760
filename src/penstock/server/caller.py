"""Who asks things of a node: a connection of either version, or the program itself."""

from __future__ import annotations

from abc import abstractmethod

from penstock.protocol.version2 import Answer
from penstock.queues.leases import Owner


class Caller(Owner):
    """Somebody who is answered and may hold leases."""

    __slots__ = ("is_gone",)

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False  # an answer to it is dropped; it must not be given tasks any more

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether more has been sent than was read: nothing is delivered until that changes."""

    @abstractmethod
    def answer(self, number: int, answer: Answer) -> None:
        """Answer a request; the bytes leave when the batch is done."""
