"""Which node to talk to next. Pure: time comes in; faces dial, and leave, one at a time.

A cluster's nodes all listen, and one of them leads. A node that does not lead says which does, as far as it knows;
what it says can be old, and the node that it names can be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final

from penstock.client.addresses import ADDRESSES_MAX, Address, parse_addresses
from penstock.errors import InvalidValue

GONE_SECONDS: Final = 1.0
"""For how long a node that did not answer is not asked again just because another one takes it for the leader:
the others need about a second to notice that a leader is gone."""

CONNECT_SECONDS_MAX: Final = 2.0
"""How long one of several nodes may take to greet: a machine that is gone does not even refuse."""


class Way(Enum):
    """Where a client goes whose node does not lead."""

    LEADER = auto()  # to a node that is said to lead
    NEXT = auto()  # to the next one
    NOWHERE = auto()  # it waits where it is


class Nodes:
    """The nodes that a client knows: those it was given, and those it heard of."""

    def __init__(self, addresses: tuple[Address, ...], *, clock: Callable[[], float]) -> None:
        assert addresses
        self._addresses = list(addresses)
        self._clock = clock
        self._next = 0  # whose turn it is
        self._leader: Address | None = None  # to be asked before any other
        self._gone: dict[Address, float] = {}  # when a node last did not answer
        # The node that is talked to, and the one whose answer is being waited for.
        self._current: Address | None = None

    def learn(self, texts: Iterable[str]) -> None:
        """Take in addresses that a node told; those that mean nothing are passed over."""
        for text in texts:
            self._known(text)

    def _known(self, text: str) -> Address | None:
        try:
            (address,) = parse_addresses(text)
        except (InvalidValue, ValueError):
            return None
        if address not in self._addresses:
            if len(self._addresses) >= ADDRESSES_MAX:
                return None
            self._addresses.append(address)
        return address

    def turn(self, leader: str | None) -> Way:
        """Say where to go from a node that does not lead and says that ``leader`` does."""
        address = self._known(leader) if leader else None
        if address is not None and address == self._current:
            return Way.NOWHERE  # it is about to lead
        if address is not None and not self._is_gone(address):
            self._leader = address
            return Way.LEADER
        return Way.NEXT if len(self._addresses) > 1 else Way.NOWHERE

    def _is_gone(self, address: Address) -> bool:
        return self._clock() - self._gone.get(address, -GONE_SECONDS) < GONE_SECONDS

    def candidates(self) -> Iterator[Address]:
        """Yield each node once: the one that is said to lead, then the others in turns.

        Whoever asks for another one has found that the last one does not answer.
        """
        leader, self._leader = self._leader, None
        if leader is not None:
            self._current = leader
            yield leader
            self.note_gone()
        for _ in range(len(self._addresses)):
            self._next %= len(self._addresses)
            address = self._addresses[self._next]
            self._next += 1
            if address != leader:
                self._current = address
                yield address
                self.note_gone()

    def note_gone(self) -> None:
        """Remember that the node that is talked to does not answer."""
        if self._current is not None:
            self._gone[self._current] = self._clock()

    def patience(self, timeout: float) -> float:
        """Return for how many seconds a node may be silent that is only one of several."""
        return min(timeout, CONNECT_SECONDS_MAX) if len(self._addresses) > 1 else timeout


def learn_nothing(_texts: Iterable[str]) -> None:
    """Pass over what a node says of others that a client cannot go to."""
