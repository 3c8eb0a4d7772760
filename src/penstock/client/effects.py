"""What an operation asks its face to do.

An operation (``operations``) is a generator: it yields one of these, and is sent the result or thrown
the exception. They are tuples because two of them are made for every request. So retries, batching and settling are written once; the blocking face carries the
effects out by waiting, the asyncio face by awaiting.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.protocol.version2 import Request

T = TypeVar("T")


class Ticket(Protocol):
    """A request that was sent and whose answer is to be collected."""

    @property
    def connection(self) -> int:
        """The number of the connection that it was sent by."""

    def abandon(self) -> None:
        """Wait for the answer no longer. Harmless when it was collected."""


class Ask(NamedTuple):
    """Send a request and wait for its answer; the result is an ``Exchange``.

    Thrown: ``Unreachable`` if it was not sent at all, ``ConnectionLost`` if the outcome is unknown.
    With ``connection``, only that connection will do: if it has ended, the result is ``None``.
    """

    request: Request
    connection: int | None = None


class Send(NamedTuple):
    """Send a request; the result is its ``Ticket``. Thrown: as by ``Ask``.

    With ``connection``, only that connection will do: if it has ended, the result is ``None``.
    """

    request: Request
    connection: int | None = None


class Collect(NamedTuple):
    """Wait for the answer to a request that was sent; the result is an ``Exchange``."""

    ticket: Ticket


class Pause(NamedTuple):
    """Let some seconds pass."""

    seconds: float


class TakeSequence(NamedTuple):
    """Wait until the producer may make another request; the result is its number."""


class LeaveConnection(NamedTuple):
    """Ask another node from now on: the one of this connection does not lead, or is stopping.

    ``leader`` is where it says that the leader is. What is under way there may still be answered. The result is
    whether it is known whom to ask now. Nothing happens if the connection was left before.
    """

    connection: int
    leader: str | None = None


class Exchange(NamedTuple):
    """An answer, and by which connection and when (monotonic) it came."""

    answer: Any  # one of ``Answer``; operations take it apart by ``expect``
    connection: int
    received: float


Effect = Ask | Send | Collect | Pause | TakeSequence | LeaveConnection
Operation = Generator[Effect, Any, T]
