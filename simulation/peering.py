"""The links of one simulated node to its peers: the production links over the simulated network.

What ``server.peers`` does with sockets is done here with simulated connections: keep one open to every member, take the
ones that others open, tell the node what got lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from penstock.raft.messages import Kind, Message
from penstock.server.group import Group
from penstock.server.group_replica import GroupReplica
from penstock.server.peers.links import Incoming, Outgoing, Own
from penstock.server.peers.proofs import Proofs
from simulation.clock import MILLISECOND, SECOND, NodeClock, Timeline
from simulation.network import End, Network

RETRY: Final = 100 * MILLISECOND
"""About how long a node waits before it opens a link anew."""

ECHO_MAX: Final = 2 * SECOND
"""Within this a message that was said is said once more, if echoes are among the faults."""

Guard = Callable[[Callable[[], None]], None]


class _Line:
    """The link to one peer, as often as it has to be opened."""

    def __init__(self, peering: Peering, peer: int) -> None:
        self.peer = peer
        self._peering = peering
        self._end: End | None = None
        self._link: Outgoing | None = None
        self._is_closed = False
        self._address = ""  # where it was last looked for
        self.open()

    def open(self) -> None:
        peering = self._peering
        address = peering.group.membership.address(self.peer)
        if self._is_closed or peering.is_ended:
            return
        if address is None:
            self._open_later()
            return
        self._address = address
        peering.network.connect(peering.host, address, self._opened, self._open_later)

    def _open_later(self) -> None:
        delay = self._peering.random.randrange(RETRY // 2, 2 * RETRY)
        self._peering.timeline.after(delay, self._open_again)

    def _open_again(self) -> None:
        self._peering.guard(self.open)

    def _opened(self, end: End) -> None:
        peering = self._peering
        if self._is_closed or peering.is_ended:
            end.close()
            return
        replica = peering.replica
        link = Outgoing(
            peering.own,
            self.peer,
            self._address,
            end.write,
            snapshots=replica.offers,
            done=replica.snapshot_sent,
            now=peering.clock.seconds,
        )
        self._end, self._link = end, link
        end.on_data = lambda data: peering.guard(partial(self._receive, end, link, data))
        end.on_lost = lambda: peering.guard(partial(self._lost, end))
        peering.guard(link.begin)

    def _receive(self, end: End, link: Outgoing, data: bytes) -> None:
        link.receive(data)
        if link.is_broken:
            self._drop(end)

    def _drop(self, end: End) -> None:
        end.on_data, end.on_lost = _ignore, _nothing
        end.close()
        self._lost(end)

    def _lost(self, end: End) -> None:
        if end is not self._end:
            return
        link, self._end, self._link = self._link, None, None
        if link is not None:
            link.close()
        self._peering.replica.unreachable(self.peer)
        self._open_later()

    def prove(self) -> None:
        """Return the nonces that links claim to be the peer's."""
        if self._link is not None and self._end is not None:
            self._link.prove()
            if self._link.is_broken:
                self._drop(self._end)

    def tell_members(self) -> None:
        if self._link is not None:
            self._link.tell_members()

    def send(self, message: Message) -> bool:
        return self._link is not None and self._link.send(message)

    def tick(self) -> None:
        if self._link is not None:
            self._link.tick()
            if self._link.is_broken and self._end is not None:
                self._drop(self._end)

    def close(self) -> None:
        self._is_closed = True
        if self._end is not None:
            self._end.on_data, self._end.on_lost = _ignore, _nothing
            self._end.close()
        if self._link is not None:
            self._link.close()


class Peering:
    """All links of one life of a node."""

    def __init__(
        self,
        group: Group,
        network: Network,
        host: str,
        *,
        clock: NodeClock,
        timeline: Timeline,
        random: Random,
        guard: Guard,
        is_ended: Callable[[], bool],
        echo: float,
        detail: Callable[[str], None] | None,
    ) -> None:
        """``echo``: the chance of a message to be said once more, later. ``detail`` hears of every message."""
        self.group = group
        self.replica: GroupReplica = group.replica
        self.network = network
        self.host = host
        self.clock = clock
        self.timeline = timeline
        self.random = random
        self._guard = guard
        self._is_ended = is_ended
        self._echo = echo
        self._detail = detail
        self.echoes = 0
        membership = group.membership
        self.own = Own(
            node=group.settings.node,
            incarnation=membership.incarnation,
            client_address=group.settings.client_address,
            known=membership.known,
            hear=group.hear,
            note_client_address=group.note_client_address,
            members=group.members,
            hear_members=group.hear_members,
            claimed=self._note_claim,
            proofs=Proofs(random.randbytes),
        )
        self._lines: dict[int, _Line] = {}
        self._incoming: dict[End, Incoming] = {}
        self.replica.transmit = self._transmit
        membership.when_changed.append(self._follow_members)
        self._follow_members()

    @property
    def is_ended(self) -> bool:
        return self._is_ended()

    def guard(self, call: Callable[[], None]) -> None:
        if not self.is_ended:
            self._guard(call)

    def _follow_members(self) -> None:
        peers = self.group.membership.peers()
        for peer in [peer for peer in self._lines if peer not in peers]:
            self._lines.pop(peer).close()
            self.own.proofs.forget(peer)
            for end in [end for end, link in self._incoming.items() if link.claims == peer]:
                self._drop(end)
        for peer in peers:
            if peer not in self._lines:
                self._lines[peer] = _Line(self, peer)
            else:
                self._lines[peer].tell_members()

    def _note_claim(self, peer: int) -> None:
        if peer in self._lines:
            self._lines[peer].prove()

    def _transmit(self, message: Message) -> None:
        if self._detail is not None:
            self._detail(_shown(message))
        line = self._lines.get(message.to)
        if line is None or not line.send(message):
            # Not at once: the node is in the middle of handing messages out.
            lost = partial(self._note_lost, message)
            self.timeline.after(1, partial(self.guard, lost))
            return
        if self._echo and message.kind is not Kind.SNAPSHOT and self.random.random() < self._echo:
            self.echoes += 1
            delay = self.random.randrange(ECHO_MAX)
            self.timeline.after(delay, partial(self.guard, partial(self._say_again, message)))

    def _say_again(self, message: Message) -> None:
        line = self._lines.get(message.to)
        if line is not None:
            line.send(message)

    def _note_lost(self, message: Message) -> None:
        if message.kind is Kind.SNAPSHOT:
            self.replica.snapshot_sent(message.to, False)
        else:
            self.replica.unreachable(message.to)

    def accept(self, end: End) -> None:
        """Take a connection that a peer opened."""
        link = Incoming(
            self.own,
            end.write,
            step=self.replica.step,
            sink=self.replica.receipt,
            now=self.clock.seconds,
        )
        self._incoming[end] = link
        end.on_data = lambda data: self.guard(partial(self._receive, end, link, data))
        end.on_lost = lambda: self.guard(partial(self._lost, end))

    def _receive(self, end: End, link: Incoming, data: bytes) -> None:
        # An older link of the same peer stays: what is still on its way there arrives late, and out of order.
        link.receive(data)
        if link.is_broken:
            self._drop(end)

    def _drop(self, end: End) -> None:
        end.on_data, end.on_lost = _ignore, _nothing
        end.close()
        self._lost(end)

    def _lost(self, end: End) -> None:
        link = self._incoming.pop(end, None)
        if link is not None:
            link.close()

    def tick(self) -> None:
        """Look at the clock."""
        for line in list(self._lines.values()):
            line.tick()
        for end, link in list(self._incoming.items()):
            link.tick()
            if link.is_broken:
                self._drop(end)


def _shown(message: Message) -> str:
    """Return a message in a line."""
    words = [f"n{message.sender} > n{message.to} {message.kind.value}, term {message.term}"]
    words += [f"index {message.index} ({message.log_term})"] if message.index else []
    words += [f"{len(message.entries)} entries"] if message.entries else []
    words += [f"commit {message.commit}"] if message.commit else []
    words += [f"rejected, hint {message.hint} ({message.hint_term})"] if message.is_rejected else []
    words += [f"snapshot {message.snapshot.index}"] if message.snapshot is not None else []
    return ", ".join(words)


def _ignore(data: bytes) -> None:
    pass


def _nothing() -> None:
    pass
