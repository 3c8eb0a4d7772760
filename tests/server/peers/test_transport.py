"""Real sockets between nodes whose groups only note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.errors import Unreachable
from penstock.protocol.peers import PacketReader, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind, Message, Snapshot
from penstock.raft.refusals import BadMessage
from penstock.server.peers import links, transport
from penstock.server.peers.transport import PeerTransport, bind
from penstock.server.settings import GroupSettings
from server.peers.wired import INCARNATIONS, THREE, Shelf, Tray, message, snapshot_message

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
        self.settings = GroupSettings(
            node=number, peers=dict(addresses), client_address=f"client{number}:2602"
        )
        self.said: list[tuple[int, str]] = []
        self.transport = PeerTransport(self, asyncio.get_running_loop(), self.say)

    def say(self, event: str, fields: dict[str, object]) -> None:
        assert event == "peer"
        number, text = fields["peer"], fields["text"]
        assert isinstance(number, int)
        self.said.append((number, str(text)))

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None:
        self.membership.hear(peer, incarnation, knows)

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
                message(Kind.APPEND, index=place, log_term=1, entries=(Entry(place + 1, 3, b"x"),))
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

    def send(self, *packets: p.Original | p.Extension) -> None:
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

    async def greet(self, number: int) -> None:
        self.send(p.Connect(node=number, is_announcing=True))
        assert isinstance(await self.next(), p.Welcome)
        self.send(p.Hello(incarnation=INCARNATIONS[number], knows="", client_address=""))

    def close(self) -> None:
        self._writer.close()


NOBODY = (2, "127.0.0.1:1")


@pytest.mark.parametrize("piece", [1, 100])
def test_a_peer_that_breaks_the_protocol_loses_its_connection_and_nobody_else(piece: int) -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            good, bad = await Played.open(port), await Played.open(port)
            await good.greet(2)
            await bad.greet(3)
            garbage = bytearray(encode_packet(p.TimeoutNow(term=3)))
            garbage[6] ^= 1
            for offset in range(0, len(garbage), piece):
                bad.send_bytes(bytes(garbage[offset : offset + piece]))
            assert await bad.next() is None
            good.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            assert [one.sender for one in node.replica.stepped] == [2]
            assert len([text for peer, text in node.said if peer == 3]) == 1
            good.close()
            bad.close()

    run(test)


def test_what_the_group_refuses_costs_the_connection() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            node.replica.refuses = True
            bad = await Played.open(port)
            await bad.greet(3)
            bad.send(p.TimeoutNow(term=3))
            assert await bad.next() is None
            assert (3, "its connection was closed: not taken") in node.said
            bad.close()

    run(test)


def test_a_newer_connection_of_a_peer_replaces_the_older_one() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            older, newer = await Played.open(port), await Played.open(port)
            await older.greet(2)
            older.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            await newer.greet(2)
            assert await older.next() is None
            newer.send(p.TimeoutNow(term=4))
            await until(lambda: len(node.replica.stepped) == 2)
            assert [one.term for one in node.replica.stepped] == [3, 4]
            older.close()
            newer.close()

    run(test)


def test_strangers_are_few_and_have_their_time() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            now = [0.0]
            node.transport.now = lambda: now[0]
            strangers = [await Played.open(port) for _ in range(transport.STRANGERS_MAX)]
            await until(lambda: len(node.transport._accepted) == transport.STRANGERS_MAX)
            turned_away = await Played.open(port)
            turned_away.send(p.Connect(node=2, is_announcing=True))
            assert await turned_away.next() is None
            now[0] = links.HANDSHAKE_SECONDS
            for stranger in strangers:
                assert await stranger.next() is None
            welcome = await Played.open(port)
            await welcome.greet(2)
            welcome.send(p.TimeoutNow(term=3))
            await until(lambda: node.replica.stepped)
            for one in (*strangers, turned_away, welcome):
                one.close()

    run(test)


def test_connections_of_all_peers_together_are_bounded() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            opened: list[Played] = []

            def all_are_known() -> bool:
                return len(node.transport._incoming) == len(opened)

            for number in range(2, transport.INCOMING_MAX + 2):
                played = await Played.open(port)
                played.send(p.Connect(node=number, is_announcing=True))
                assert isinstance(await played.next(), p.Welcome)
                played.send(p.Hello(incarnation="", knows="", client_address=""))
                opened.append(played)
                await until(all_are_known)
            turned_away = await Played.open(port)
            turned_away.send(p.Connect(node=2, is_announcing=True))
            assert await turned_away.next() is None
            for one in (*opened, turned_away):
                one.close()

    run(test)


def test_a_peer_that_takes_nothing_is_sent_nothing_more_and_the_group_is_told_once() -> None:
    async def test() -> None:
        taken: list[Played] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            played = Played(reader, writer)
            assert isinstance(await played.next(), p.Connect)
            played.send(p.Welcome(node=2, incarnation="", knows="", client_address=""))
            taken.append(played)  # and reads nothing any more

        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**12)
        port = server.sockets[0].getsockname()[1]
        async with alone((2, f"127.0.0.1:{port}")) as (node, _):
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
        for played in taken:
            played.close()
        server.close()

    run(test)


def test_an_original_peer_is_asked_and_answered_where_it_asks() -> None:
    async def test() -> None:
        asked: list[object] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            played = Played(reader, writer)
            assert isinstance(await played.next(), p.Connect)
            played.send(p.Connected(is_accepted=True))
            asked.append(await played.next())
            played.send(p.AppendResult(is_taken=True, term=3))
            assert await played.next() is None
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with alone((2, address)) as (node, port):
            await until(lambda: node.transport.connected)
            caller = await Played.open(port)
            caller.send(p.Connect(node=2))
            assert await caller.next() == p.Connected(is_accepted=True)
            caller.send(p.Vote(candidate=2, term=3, last_term=1, last_index=-1))
            await until(lambda: node.heard_of(Kind.VOTE))
            node.transport.transmit(message(Kind.VOTE_REPLY, sender=1, to=2))
            assert await caller.next() == p.VoteReply(term=3, is_granted=True)
            node.transport.transmit(message(Kind.APPEND, entries=(Entry(1, 3, b"x"),)))
            await until(lambda: node.heard_of(Kind.APPEND_REPLY))
            assert [type(one) for one in asked] == [p.Append]
            caller.close()
        server.close()

    run(test)


def test_an_original_that_is_no_member_is_sent_away() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (_, port):
            caller = await Played.open(port)
            caller.send(p.Connect(node=9))
            assert await caller.next() == p.Connected(is_accepted=False)
            assert await caller.next() is None
            caller.close()

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


def test_a_node_that_does_not_know_its_leader_answers_where_it_was_asked() -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            leader = await Played.open(port)
            await leader.greet(3)  # which is no peer that the node knows of
            leader.send(p.Heartbeat(term=3, commit=-1, context=7))
            await until(lambda: node.replica.stepped)
            node.transport.transmit(message(Kind.HEARTBEAT_REPLY, to=3, context=7))
            assert await leader.next() == p.HeartbeatReply(term=3, context=7)
            node.transport.transmit(
                message(Kind.VOTE, to=3)
            )  # not an answer: there is no way for it
            node.transport.transmit(message(Kind.HEARTBEAT_REPLY, to=3, context=8))
            assert await leader.next() == p.HeartbeatReply(term=3, context=8)
            leader.close()

    run(test)


def test_replies_to_one_that_does_not_read_them_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, port):
            caller = await Played.open(port)
            await caller.greet(3)
            await until(lambda: node.transport._incoming)
            line = node.transport._incoming[3].line
            monkeypatch.setattr(transport, "UNSENT_MAX", 10_000)
            reply = message(Kind.HEARTBEAT_REPLY, to=3)
            for _ in range(1000):  # in one turn: nothing can leave meanwhile
                node.transport.transmit(reply)
            assert 10_000 < line.unsent < 10_100
            caller.close()

    run(test)


@pytest.mark.parametrize("turns", range(5))
def test_a_transport_that_is_closed_while_a_peer_comes_back_dials_no_more(turns: int) -> None:
    async def test() -> None:
        async with alone(NOBODY) as (node, _):
            peer = node.transport._peers[2]
            await until(lambda: node.said and peer._dialled is None)
            peer.wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            node.transport.close()
            await until(peer._task.done)

    run(test)
