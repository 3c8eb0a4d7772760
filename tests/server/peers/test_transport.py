"""Real sockets between nodes whose groups only note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from penstock.errors import Unreachable
from penstock.protocol.peers import Packet, PacketReader, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind, Message, Snapshot
from penstock.raft.refusals import BadMessage
from penstock.server.peers import links, transport
from penstock.server.peers.transport import PeerTransport, bind
from penstock.server.settings import GroupSettings
from server.peers.wired import (
    INCARNATIONS,
    PAYLOAD,
    THREE,
    Shelf,
    Tray,
    message,
    snapshot_message,
)

PATIENCE_SECONDS = 30
SNAPSHOT = Snapshot(8, 2, THREE)


class Replica:
    """What a transport tells a group."""

    def __init__(self) -> None:
        self.transmit: Callable[[Message], None] = lambda _: None
        self.flush_messages: Callable[[], None] = lambda: None
        self.soon: Callable[[Callable[[], None]], object] | None = None
        self.offers = Shelf((SNAPSHOT, bytes(range(256)) * 10_000))
        self.receipt = Tray()
        self.stepped: list[Message] = []
        self.lost: list[int] = []
        self.sent: list[tuple[int, bool]] = []
        self.refuses = False

    def step(self, message: Message) -> None:
        if self.refuses:
            raise BadMessage("not taken")
        self.stepped.append(message)

    def unreachable(self, peer: int) -> None:
        self.lost.append(peer)

    def snapshot_sent(self, peer: int, ok: bool) -> None:
        self.sent.append((peer, ok))


@dataclass
class Members:
    """Who the peers of a node are."""

    node: int
    addresses: dict[int, str]
    when_changed: list[Callable[[], None]] = field(default_factory=list)
    heard: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.incarnation = INCARNATIONS[self.node]

    @property
    def own_address(self) -> str:
        return self.addresses[self.node]

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None:
        assert knows in (None, self.incarnation)
        self.heard[peer] = incarnation

    def known(self, peer: int) -> str | None:
        return self.heard.get(peer)

    def address(self, peer: int) -> str | None:
        return self.addresses.get(peer)

    def peers(self) -> list[int]:
        return sorted(self.addresses.keys() - {self.node})

    def change(self, peer: int, address: str | None) -> None:
        if address is None:
            del self.addresses[peer]
        else:
            self.addresses[peer] = address
        for call in list(self.when_changed):
            call()


class Node:
    """A node that has peers and nothing else."""

    def __init__(self, number: int, addresses: dict[int, str]) -> None:
        self.membership = Members(number, dict(addresses))
        self.replica = Replica()
        self.client_addresses: dict[int, str] = {}
        self.note_client_address = self.client_addresses.__setitem__
        self.settings = GroupSettings(
            node=number, peers=dict(addresses), client_address=f"client{number}:2602"
        )
        self.said: list[tuple[int, str]] = []
        self.strangers: list[dict[str, object]] = []  # lines of the log about them
        self.heard_members: list[p.Members] = []
        self.transport = PeerTransport(self, asyncio.get_running_loop(), self.say)

    def say(self, event: str, fields: dict[str, object]) -> None:
        if event == "stranger":
            self.strangers.append(fields)
            return
        assert event == "peer"
        number, text = fields["peer"], fields["text"]
        assert isinstance(number, int)
        self.said.append((number, str(text)))

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None:
        self.membership.hear(peer, incarnation, knows)

    def members(self) -> p.Members:
        return p.Members(index=1, addresses=dict(sorted(self.membership.addresses.items())))

    def hear_members(self, members: p.Members) -> None:
        self.heard_members.append(members)

    def heard_of(self, kind: Kind) -> list[Message]:
        return [message for message in self.replica.stepped if message.kind is kind]


def listening() -> tuple[socket.socket, str]:
    """Return a socket at an address that nobody else has."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    bound.setblocking(False)
    return bound, f"127.0.0.1:{bound.getsockname()[1]}"


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def group(count: int) -> AsyncIterator[list[Node]]:
    """Start nodes that know each other; wait until all are connected."""
    sockets = {number: listening() for number in range(1, count + 1)}
    addresses = {number: address for number, (_, address) in sockets.items()}
    nodes = [Node(number, addresses) for number in addresses]
    try:
        for number, node in enumerate(nodes, 1):
            await node.transport.start(sockets[number][0])
        await until(lambda: all(len(n.transport.connected) == count - 1 for n in nodes))
        yield nodes
    finally:
        for node in nodes:
            node.transport.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def alone(*peers: tuple[int, str]) -> AsyncIterator[tuple[Node, int]]:
    """Start one node, with peers that a test plays; return it with its port."""
    bound, address = listening()
    node = Node(1, {1: address, **dict(peers)})
    await node.transport.start(bound)
    try:
        yield node, bound.getsockname()[1]
    finally:
        node.transport.close()
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await test()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        await asyncio.sleep(0)  # what was closed is let go in the next turn

    asyncio.run(whole())


# --- two nodes ---


def test_nodes_find_each_other_and_messages_arrive_in_order() -> None:
    async def test() -> None:
        async with group(3) as nodes:
            one, two, three = nodes
            assert one.client_addresses == {2: "client2:2602", 3: "client3:2602"}
            assert two.membership.heard == {1: INCARNATIONS[1], 3: INCARNATIONS[3]}
            sent = [
                message(
                    Kind.APPEND, index=place, log_term=1, entries=(Entry(place + 1, 3, PAYLOAD),)
                )
                for place in range(1, 500)
            ]
            for each in sent:
                one.transport.transmit(each)
            one.transport.transmit(message(Kind.HEARTBEAT, to=3, context=4))
            await until(lambda: len(two.replica.stepped) == len(sent) and three.replica.stepped)
            assert two.replica.stepped == sent
            assert three.replica.stepped == [message(Kind.HEARTBEAT, to=3, context=4)]
            two.replica.transmit(message(Kind.HEARTBEAT_REPLY, sender=2, to=1, context=4))
            await until(lambda: one.replica.stepped)
            assert one.replica.lost == []
            assert not [text for node in nodes for _, text in node.said if "closed" in text]
            assert not [line for node in nodes for line in node.strangers]

    run(test)


def test_messages_of_one_turn_leave_in_one_write() -> None:
    async def test() -> None:
        async with group(2) as (one, two):
            peer = one.transport._peers[2]._dialled
            assert peer is not None
            inner: Any = peer.line._transport
            writes: list[int] = []

            class Counting:
                def writelines(self, pieces: list[bytes]) -> None:
                    writes.append(len(pieces))
                    inner.writelines(pieces)

                def __getattr__(self, name: str) -> Any:
                    return getattr(inner, name)

            peer.line._transport = Counting()  # type: ignore[assignment]
            for context in range(50):
                one.transport.transmit(message(Kind.HEARTBEAT, context=context))
            await until(lambda: len(two.replica.stepped) == 50)
            assert writes == [50]
            one.transport.transmit(message(Kind.HEARTBEAT))
            one.replica.flush_messages()
            assert writes == [50, 1], "what was to leave before the disk is asked did not"
            await until(lambda: len(two.replica.stepped) == 51)
            assert writes == [50, 1]

    run(test)


def test_a_snapshot_travels() -> None:
    async def test() -> None:
        async with group(2) as (one, two):
            one.transport.transmit(snapshot_message(SNAPSHOT))
            await until(lambda: one.replica.sent)
            assert one.replica.sent == [(2, True)]
            assert two.replica.stepped == [snapshot_message(SNAPSHOT)]
            assert bytes(two.replica.receipt.held) == one.replica.offers.kept[SNAPSHOT]

    run(test)


def test_a_peer_that_went_away_is_told_of_and_found_again() -> None:
    async def test() -> None:
        async with group(2) as (one, two):
            address = two.membership.own_address
            two.transport.close()
            await until(lambda: one.replica.lost)
            assert one.replica.lost == [2]
            assert one.transport.connected == []
            one.transport.transmit(message(Kind.HEARTBEAT))  # is lost, and that is all
            one.transport.transmit(snapshot_message(SNAPSHOT))
            await until(lambda: one.replica.sent)
            assert one.replica.sent == [(2, False)]
            again = Node(2, one.membership.addresses)
            await again.transport.start(bind(address))
            await until(lambda: one.transport.connected and again.transport.connected)
            one.transport.transmit(message(Kind.HEARTBEAT))
            await until(lambda: again.replica.stepped)
            again.transport.close()

    run(test)


def test_a_peer_that_moves_is_followed_and_one_that_leaves_is_let_go() -> None:
    async def test() -> None:
        async with group(3) as (one, two, three):
            moved, address = listening()
            other = Node(2, {1: one.membership.own_address, 2: address})
            await other.transport.start(moved)
            one.membership.change(2, address)
            assert 2 not in one.transport._incoming, "what was proven at the old address is heard"
            await until(lambda: 2 in one.replica.lost and 2 in one.transport.connected)
            one.transport.transmit(message(Kind.HEARTBEAT))
            await until(lambda: other.replica.stepped)
            assert two.replica.stepped == []
            one.membership.change(3, None)
            assert one.transport.connected == [2]
            one.transport.transmit(message(Kind.HEARTBEAT, to=3))
            one.transport.transmit(message(Kind.HEARTBEAT, context=1))
            await until(lambda: len(other.replica.stepped) == 2)
            assert three.replica.stepped == []
            other.transport.close()

    run(test)


def test_an_address_that_is_taken_is_an_error_of_ours() -> None:
    async def test() -> None:
        bound, address = listening()
        node = Node(1, {1: address, 2: "127.0.0.1:1"})
        with pytest.raises(Unreachable, match="cannot listen for peers"):
            await node.transport.start()
        bound.close()
        node.transport.close()

    run(test)


# --- peers that a test plays ---


class Played:
    """A socket to a node, or from one, and the packets on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._packets = PacketReader()

    @classmethod
    async def open(cls, port: int) -> Played:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(map(encode_packet, packets)))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def next(self) -> object:
        """Return the next packet, ``None`` at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (packet := self._packets.next()) is None:
                try:
                    data = await self._reader.read(2**16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._packets.feed(data)
        return packet

    async def end(self) -> None:
        """Wait until the node closes it."""
        while await self.next() is not None:
            pass

    def close(self) -> None:
        self._writer.close()


class PlayedPeer:
    """A peer that a test plays: it listens where the node looks for it, and keeps the nonces that it gets."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nonces: list[bytes] = []
        self.proofs: list[bytes] = []  # that the node sent it
        self.links: list[Played] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**12)

    @property
    def place(self) -> tuple[int, str]:
        return self.number, f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Played(reader, writer)
        self.links.append(link)
        connect = await link.next()
        if isinstance(connect, p.Connect):
            link.send(p.Connected(node=self.number, nonce=connect.nonce))
            self.nonces.append(connect.nonce)
        while isinstance(proof := await link.next(), p.Proof):
            self.proofs.append(proof.nonce)

    def welcome(self) -> None:
        """Greet the node on the link that it opened, as if it had proven to be itself; then read nothing more."""
        self.links[-1].send(
            p.Hello(incarnation=INCARNATIONS[self.number], knows="", client_address="")
        )

    async def open(self, port: int) -> Played:
        """Open a link to the node and prove it."""
        await until(lambda: self.nonces)
        link = await Played.open(port)
        link.send(p.Connect(node=self.number, nonce=bytes(16)), p.Proof(nonce=self.nonces[-1]))
        assert isinstance(await link.next(), p.Connected)
        assert isinstance(await link.next(), p.Hello)
        link.send(p.Hello(incarnation=INCARNATIONS[self.number], knows="", client_address=""))
        return link

    def close(self) -> None:
        self._server.close()
        for link in self.links:
            link.close()


@asynccontextmanager
async def played(*numbers: int) -> AsyncIterator[tuple[Node, int, list[PlayedPeer]]]:
    """Start one node, with peers that are played; return it with its port."""
    peers = [PlayedPeer(number) for number in numbers]
    for peer in peers:
        await peer.start()
    async with alone(*(peer.place for peer in peers)) as (node, port):
        yield node, port, peers
    for peer in peers:
        peer.close()


NOBODY = (2, "127.0.0.1:1")


@pytest.mark.parametrize("piece", [1, 100])
def test_a_peer_that_breaks_the_protocol_loses_its_connection_and_no_other(piece: int) -> None:
    async def test() -> None:
        async with played(2, 3) as (node, port, (two, three)):
            good, bad = await two.open(port), await three.open(port)
            garbage = bytearray(encode_packet(p.TimeoutNow(term=3)))
            garbage[6] ^= 1
            for offset in range(0, len(garbage), piece):
                bad.send_bytes(bytes(garbage[offset : offset + piece]))
            await bad.end()
            good.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            assert [one.sender for one in node.replica.stepped] == [2]
            assert len([text for peer, text in node.said if peer == 3]) == 1
            good.close()
            bad.close()

    run(test)


def test_what_the_group_refuses_costs_the_connection() -> None:
    async def test() -> None:
        async with played(3) as (node, port, (three,)):
            node.replica.refuses = True
            bad = await three.open(port)
            bad.send(p.TimeoutNow(term=3))
            await bad.end()
            assert (3, "its connection was closed: not taken") in node.said
            bad.close()

    run(test)


def test_a_newer_proven_connection_of_a_peer_replaces_the_older_one() -> None:
    async def test() -> None:
        async with played(2) as (node, port, (two,)):
            older = await two.open(port)
            older.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            newer = await two.open(port)
            await older.end()
            newer.send(p.TimeoutNow(term=4))
            await until(lambda: len(node.replica.stepped) == 2)
            assert [one.term for one in node.replica.stepped] == [3, 4]
            older.close()
            newer.close()

    run(test)


def test_a_stranger_that_claims_to_be_a_peer_does_not_displace_it() -> None:
    async def test() -> None:
        async with played(2) as (node, port, (two,)):
            good = await two.open(port)
            await until(lambda: node.transport._incoming)
            strangers = [await Played.open(port) for _ in range(2 * transport.UNPROVEN_MAX)]
            for number, stranger in enumerate(strangers):
                stranger.send(p.Connect(node=2, nonce=number.to_bytes(16, "big")))
                stranger.send(p.Proof(nonce=bytes(16)), p.TimeoutNow(term=9))
                await stranger.end()
            good.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            assert [one.term for one in node.replica.stepped] == [3]
            for link in (good, *strangers):
                link.close()

    run(test)


def test_the_oldest_unproven_connection_makes_room_for_a_new_one() -> None:
    async def test() -> None:
        async with played(2) as (node, port, (two,)):
            strangers = [await Played.open(port) for _ in range(transport.UNPROVEN_MAX)]
            await until(lambda: len(node.transport._unproven) == transport.UNPROVEN_MAX)
            good = await two.open(port)
            await strangers[0].end()
            assert len(node.transport._unproven) == transport.UNPROVEN_MAX - 1
            good.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            for link in (good, *strangers):
                link.close()

    run(test)


def test_unproven_connections_have_their_time() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            now = [0.0]
            node.transport.now = lambda: now[0]
            strangers = [await Played.open(port) for _ in range(3)]
            strangers[0].send(p.Connect(node=2, nonce=bytes(16)))
            assert isinstance(await strangers[0].next(), p.Connected)
            await until(lambda: len(node.transport._unproven) == 3)
            now[0] = links.HANDSHAKE_SECONDS
            for stranger in strangers:
                assert await stranger.next() is None
                stranger.close()

    run(test)


def test_strangers_cost_one_line_of_the_log_in_a_while() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            now = [0.0]
            node.transport.now = lambda: now[0]
            for number in range(20):
                stranger = await Played.open(port)
                stranger.send(p.Connect(node=100 + number, nonce=bytes(16)), p.TimeoutNow(term=3))
                await stranger.end()
                stranger.close()
            assert [line["claims"] for line in node.strangers] == [100]
            now[0] = transport.STRANGER_LOG_SECONDS
            stranger = await Played.open(port)
            stranger.send(p.TimeoutNow(term=3))
            await stranger.end()
            stranger.close()
            assert [line["suppressed"] for line in node.strangers] == [0, 19]
            assert node.transport._said.keys() <= {2}
            assert node.transport.own.proofs._claims == {}

    run(test)


def test_claims_do_not_set_the_pace_of_dialling() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            peer = node.transport._peers[2]
            tries = 0
            first = peer._connect

            async def counted() -> bool:
                nonlocal tries
                tries += 1
                return await first()

            peer._connect = counted  # type: ignore[method-assign]
            begun = asyncio.get_running_loop().time()
            for number in range(200):
                stranger = await Played.open(port)
                stranger.send(p.Connect(node=2, nonce=number.to_bytes(16, "big")))
                assert isinstance(await stranger.next(), p.Connected)
                stranger.close()
            spent = asyncio.get_running_loop().time() - begun
            assert tries <= spent / (transport.RETRY_SECONDS_MIN * 0.75) + 1

    run(test)


def test_the_nonce_of_every_link_that_claims_to_be_a_peer_goes_to_that_peer_alone() -> None:
    async def test() -> None:
        async with played(2, 3) as (node, port, (two, three)):
            await until(lambda: two.nonces and three.nonces)
            assert two.nonces != three.nonces
            claims = [number.to_bytes(16, "big") for number in range(1, 4)]
            strangers = [await Played.open(port) for _ in claims]
            for stranger, nonce in zip(strangers, claims, strict=True):
                stranger.send(p.Connect(node=2, nonce=nonce))
                assert await stranger.next() == p.Connected(node=1, nonce=nonce)
            await until(lambda: len(two.proofs) == 3)
            assert sorted(two.proofs) == claims
            assert three.proofs == []
            assert node.transport.connected == []
            for stranger in strangers:
                stranger.close()

    run(test)


def test_nodes_find_each_other_although_strangers_claim_to_be_them() -> None:
    async def test() -> None:
        async with group(3) as nodes:
            ports = [int(node.membership.own_address.rsplit(":", 1)[1]) for node in nodes]
            chance = Random(7)
            is_over = False

            async def claim() -> None:
                opened: list[Played] = []
                while not is_over:
                    for place, port in enumerate(ports):
                        try:
                            stranger = await Played.open(port)
                        except ConnectionError:
                            continue  # the node is gone
                        claimed = chance.choice(
                            [number for number in (1, 2, 3) if number != place + 1]
                        )
                        stranger.send(p.Connect(node=claimed, nonce=chance.randbytes(16)))
                        opened.append(stranger)
                    for stranger in opened[:-30]:
                        stranger.close()
                    del opened[:-30]
                for stranger in opened:
                    stranger.close()

            claiming = asyncio.create_task(claim())
            for _ in range(5):
                await until(lambda: all(len(node.transport._unproven) > 5 for node in nodes))
                one, two = chance.sample(nodes, 2)
                for accepted in list(one.transport._incoming.values()):
                    accepted.close()
                two.transport._peers[one.membership.node]._hang_up()
                await until(lambda: all(len(node.transport.connected) == 2 for node in nodes))
                await until(lambda: all(len(node.transport._incoming) == 2 for node in nodes))
            gone = nodes.pop()
            gone.transport.close()
            await until(
                lambda: all(
                    node.transport.connected == [3 - node.membership.node] for node in nodes
                )
            )
            again = Node(3, gone.membership.addresses)
            nodes.append(again)
            await again.transport.start(bind(again.membership.own_address))
            await until(lambda: all(len(node.transport.connected) == 2 for node in nodes))
            is_over = True
            await claiming

    run(test)


def test_a_peer_that_takes_nothing_is_sent_nothing_more_and_the_group_is_told_once() -> None:
    async def test() -> None:
        async with played(2) as (node, _, (two,)):
            await until(lambda: two.nonces)
            two.welcome()
            await until(lambda: node.transport.connected)
            entry = Entry(2, 3, bytes(2**20))
            append = message(Kind.APPEND, index=1, log_term=1, entries=(entry,))
            dialled = node.transport._peers[2]._dialled
            assert dialled is not None
            for _ in range(200):
                node.transport.transmit(append)
                assert dialled.line.unsent <= transport.UNSENT_MAX + 2 * 2**20
                await asyncio.sleep(0)
            assert dialled.line.unsent > transport.UNSENT_MAX // 2
            assert node.replica.lost == [2]
            node.transport.transmit(snapshot_message(SNAPSHOT))
            await until(lambda: node.replica.sent)
            assert node.replica.sent == [(2, False)]

    run(test)


def test_a_peer_that_cannot_be_reached_is_said_once() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, _):
            peer = node.transport._peers[2]
            await until(lambda: node.said)
            tries = 0
            first = peer._connect

            async def counted() -> bool:
                nonlocal tries
                tries += 1
                return await first()

            peer._connect = counted  # type: ignore[method-assign]
            await until(lambda: tries >= 2)
            assert len(node.said) == 1
            assert "cannot be reached at 127.0.0.1:1" in node.said[0][1]

    run(test)


@pytest.mark.parametrize("turns", range(5))
def test_a_transport_that_is_closed_while_a_peer_comes_back_dials_no_more(turns: int) -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, _):
            peer = node.transport._peers[2]
            await until(lambda: node.said and peer._dialled is None)
            peer.prove()
            for _ in range(turns):
                await asyncio.sleep(0)
            node.transport.close()
            await until(peer._task.done)

    run(test)
