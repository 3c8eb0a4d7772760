"""Which links speak for which member: nonces that this node sent to its peers, and nonces that links claim (docs/peers.md).

A node sends its nonce for a peer only over links that it opened itself to that peer's configured address. An incoming link
that returns this nonce is therefore the peer's. The other way round, an incoming link brings a nonce of its own; this node
returns it over its own link to the node that the incoming link claims to be.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Final

from penstock.protocol.peers.packets import NONCE_SIZE

PROOFS_MAX: Final = 64
"""Nonces that an opener returns on one link before it gives the link up: as many links may claim to be one node."""


class Proofs:
    """The nonces of one process. Everything here is bounded by the peers and by the open incoming links."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        """``draw(n)`` returns n random bytes that cannot be guessed."""
        self._draw = draw
        self._sent: dict[int, tuple[str, bytes]] = {}  # by peer: its address and the nonce for it
        self._claims: dict[object, tuple[int, bytes]] = {}  # by incoming link
        self._confirmed: dict[int, bytes] = {}  # by peer: the nonce on its last proven link

    def nonce(self, peer: int, address: str) -> bytes:
        """Return the nonce for a link to a peer's address. It stays the same until the address changes.

        A constant nonce lets a link that is opened again be proven at once.
        """
        known = self._sent.get(peer)
        if known is None or known[0] != address:
            known = self._sent[peer] = (address, self._draw(NONCE_SIZE))
        return known[1]

    def is_right(self, peer: int, nonce: bytes) -> bool:
        """Return whether a nonce is the one that was sent to a peer's present address."""
        known = self._sent.get(peer)
        return known is not None and compare_digest(known[1], nonce)

    def forget(self, peer: int) -> None:
        """Forget a node that is no peer any more, or has another address."""
        self._sent.pop(peer, None)
        self._confirmed.pop(peer, None)

    def claim(self, link: object, peer: int, nonce: bytes) -> None:
        """Note the nonce on an incoming link that claims to be a peer's."""
        self._claims[link] = peer, nonce

    def confirm(self, link: object) -> None:
        """Note that an incoming link is the peer's that it claims to be."""
        peer, nonce = self._claims[link]
        self._confirmed[peer] = nonce

    def drop(self, link: object) -> None:
        """Forget what a link that has ended claimed."""
        self._claims.pop(link, None)

    def candidates(self, peer: int) -> list[bytes]:
        """Return the nonces that may be the peer's: the confirmed one first, then those of the newest links."""
        claimed = [nonce for number, nonce in self._claims.values() if number == peer]
        confirmed = self._confirmed.get(peer)
        first = [] if confirmed is None else [confirmed]
        return list(dict.fromkeys((*first, *reversed(claimed))))
