"""Links between nodes of ours: who says what where, and what breaks a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.peers import Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind
from penstock.server.peers import links
from protocol.peers.samples import ALL
from server.peers.wired import INCARNATIONS, Node, Wire, message, packets_in

CONNECT = encode_packet(p.Connect(node=1, is_announcing=True))
HELLO = encode_packet(p.Hello(incarnation=INCARNATIONS[1], knows="", client_address=""))
GREETED = CONNECT + HELLO


def wired(*, piece: int = 2**20) -> tuple[Node, Node, Wire]:
    one, two = Node(1), Node(2)
    wire = Wire(one, two)
    wire.carry(piece=piece)
    return one, two, wire


# --- the handshake ---


@pytest.mark.parametrize("piece", [1, 7, 2**20])
def test_two_nodes_greet_each_other(piece: int) -> None:
    one, two, wire = wired(piece=piece)
    assert wire.outgoing.is_ready
    assert wire.incoming.is_ready
    assert wire.incoming.peer == 1
    assert one.heard == [(2, INCARNATIONS[2], None)]
    assert two.heard == [(1, INCARNATIONS[1], None)]
    assert one.addresses == {2: "client2:2602"}
    assert two.addresses == {1: "client1:2602"}
    assert not wire.outgoing.is_original
    assert not wire.incoming.is_original


def test_each_says_by_which_incarnation_it_knows_the_other() -> None:
    one, two = Node(1), Node(2)
    one.known[2], two.known[1] = INCARNATIONS[7], INCARNATIONS[8]
    Wire(one, two).carry()
    assert one.heard == [(2, INCARNATIONS[2], INCARNATIONS[8])]
    assert two.heard == [(1, INCARNATIONS[1], INCARNATIONS[7])]


def test_what_is_known_is_what_was_known_before_this_greeting() -> None:
    # A node that learns another's incarnation from a greeting must not claim in the same one that it knew it.
    one, two = Node(1), Node(2)
    one.own.hear = lambda peer, incarnation, _: one.known.__setitem__(peer, incarnation)
    Wire(one, two).carry()
    assert one.known == {2: INCARNATIONS[2]}
    assert two.heard == [(1, INCARNATIONS[1], None)]


def test_another_node_at_the_address_is_not_talked_to() -> None:
    one, two = Node(1), Node(2)
    wire = Wire(one, two, peer=3)
    wire.carry()
    assert wire.outgoing.is_broken
    assert "another node" in str(wire.outgoing.reason)
    assert one.heard == []
    assert wire.incoming.peer == 0


@pytest.mark.parametrize("node", [2, 0, -1, -(2**31)])
def test_a_number_that_no_peer_has_is_sent_away(node: int) -> None:
    said = bytearray()
    link = Node(2).incoming(said.extend)
    link.receive(encode_packet(p.Connect(node=node, is_announcing=True)))
    assert link.is_broken
    assert packets_in(bytes(said)) == [p.Connected(is_accepted=False)]


def test_an_opener_that_is_sent_away_gives_up() -> None:
    link = Node(1).outgoing(2, bytearray().extend)
    link.begin()
    link.receive(encode_packet(p.Connected(is_accepted=False)))
    assert link.is_broken


@pytest.mark.parametrize("is_outgoing", [True, False])
def test_a_handshake_has_its_time(is_outgoing: bool) -> None:
    node = Node(1)
    link = node.outgoing(2, lambda _: None) if is_outgoing else node.incoming(lambda _: None)
    node.clock.seconds = links.HANDSHAKE_SECONDS - 0.1
    link.tick()
    assert not link.is_broken
    node.clock.seconds = links.HANDSHAKE_SECONDS
    link.tick()
    assert link.is_broken
    assert "handshake" in str(link.reason)


def test_a_link_that_is_ready_is_never_too_late() -> None:
    one, two, wire = wired()
    one.clock.seconds = two.clock.seconds = 10_000.0
    wire.outgoing.tick()
    wire.incoming.tick()
    assert not wire.outgoing.is_broken
    assert not wire.incoming.is_broken


def test_a_packet_that_never_becomes_whole_breaks_the_link() -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    whole = encode_packet(p.TimeoutNow(term=3))
    link.receive(GREETED + whole[:5])
    node.clock.seconds = links.PACKET_SECONDS - 0.1
    link.tick()
    assert not link.is_broken
    link.receive(whole[5:] + whole[:5])  # it is whole, and another begins
    node.clock.seconds += links.PACKET_SECONDS - 0.1
    link.tick()
    assert not link.is_broken
    node.clock.seconds += 0.2
    link.tick()
    assert link.is_broken
    assert "not whole" in str(link.reason)


# --- messages ---


def test_all_that_a_node_says_comes_in_order_on_the_link_that_it_opened() -> None:
    _, two, wire = wired(piece=3)
    said = [
        message(Kind.APPEND, index=1, log_term=1, commit=1, entries=(Entry(2, 3, b"payload"),)),
        message(Kind.APPEND_REPLY, index=4, is_rejected=True, hint=2, hint_term=1),
        message(Kind.HEARTBEAT, commit=1, context=6),
        message(Kind.HEARTBEAT_REPLY, context=6),
        message(Kind.VOTE, index=2, log_term=3),
        message(Kind.VOTE, index=2, log_term=3, is_transfer=True),
        message(Kind.VOTE_REPLY),
        message(Kind.VOTE_REPLY, is_rejected=True, hint=3, hint_term=2),
        message(Kind.PRE_VOTE, index=2, log_term=3),
        message(Kind.PRE_VOTE_REPLY),
        message(Kind.TIMEOUT_NOW),
        message(Kind.READ, term=0, context=9),
        message(Kind.READ_REPLY, term=0, context=9, index=2),
    ]
    for one in said:
        assert wire.outgoing.send(one)
    wire.carry(piece=5)
    assert two.stepped == said
    assert not wire.back, "an answer came back on the same link"


def test_before_the_handshake_nothing_is_sent() -> None:
    one, two = Node(1), Node(2)
    wire = Wire(one, two)
    greeting = bytes(wire.there)
    assert not wire.outgoing.send(message(Kind.HEARTBEAT))
    assert bytes(wire.there) == greeting


def test_a_closed_link_sends_and_hears_nothing() -> None:
    _, two, wire = wired()
    wire.outgoing.send(message(Kind.TIMEOUT_NOW))
    wire.incoming.close()
    wire.incoming.receive(bytes(wire.there))
    assert two.stepped == []
    wire.outgoing.close()
    assert not wire.outgoing.send(message(Kind.TIMEOUT_NOW))


# --- what breaks a link ---

OPENING_TYPES = {Type.CONNECT}
MESSAGE_TYPES = {
    Type(kind)
    for kind in b"VvAWwPpkLlNQqO"  # each of these is a message, or offers a snapshot
}


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_before_the_greeting_only_a_connect_is_heard(packet: p.Original) -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(encode_packet(packet))
    assert link.is_broken != isinstance(packet, p.Connect)
    assert node.stepped == []


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_after_a_connect_only_a_hello_is_heard(packet: p.Original) -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(CONNECT + encode_packet(packet))
    assert link.is_broken != isinstance(packet, p.Hello)
    assert node.stepped == []


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_behind_the_greeting_only_messages_are_heard(packet: p.Original) -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    data = encode_packet(packet)
    link.receive(GREETED + data)
    is_message = data[0] in MESSAGE_TYPES and not isinstance(packet, p.Offer)  # its group is none
    assert link.is_broken != is_message
    assert len(node.stepped) == is_message


REPLY_TYPES = {Type(kind) for kind in b"vwpklq"}


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_an_opener_hears_only_answers(packet: p.Original) -> None:
    one, _, wire = wired()
    data = encode_packet(packet)
    wire.outgoing.receive(data)
    is_reply = data[0] in REPLY_TYPES
    is_answer = is_reply or isinstance(packet, p.OfferReply | p.ChunkReply)
    assert wire.outgoing.is_broken != is_answer
    assert len(one.stepped) == is_reply


def test_a_node_without_a_link_of_its_own_answers_where_it_was_asked() -> None:
    one, _, wire = wired()
    replies = [
        message(Kind.APPEND_REPLY, sender=2, to=1, index=4),
        message(Kind.HEARTBEAT_REPLY, sender=2, to=1, context=6),
        message(Kind.VOTE_REPLY, sender=2, to=1),
    ]
    for reply in replies:
        wire.incoming.reply(reply)
    wire.carry()
    assert one.stepped == replies
    wire.incoming.close()
    wire.incoming.reply(replies[0])
    assert not wire.back


def test_what_the_group_refuses_breaks_the_link() -> None:
    _, two, wire = wired()
    two.refuses = True
    wire.outgoing.send(message(Kind.TIMEOUT_NOW))
    wire.outgoing.send(message(Kind.TIMEOUT_NOW))
    wire.carry()
    assert wire.incoming.is_broken
    assert wire.incoming.reason == "not taken"


def test_a_node_that_speaks_for_another_breaks_its_link() -> None:
    _, two, wire = wired()
    wire.outgoing.send(message(Kind.APPEND, sender=3))
    wire.carry()
    assert wire.incoming.is_broken
    assert two.stepped == []


def test_nothing_behind_a_bad_packet_is_heard() -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    bad = bytearray(encode_packet(p.TimeoutNow(term=3)))
    bad[-1] ^= 1
    link.receive(GREETED + bytes(bad) + encode_packet(p.TimeoutNow(term=3)))
    link.receive(encode_packet(p.TimeoutNow(term=3)))
    assert link.is_broken
    assert node.stepped == []


@given(st.binary(max_size=300), st.booleans())
def test_garbage_breaks_nothing_but_its_own_link(data: bytes, is_greeted: bool) -> None:
    node = Node(2)
    link, other = node.incoming(lambda _: None), node.incoming(lambda _: None)
    link.receive((GREETED if is_greeted else b"") + data)
    other.receive(GREETED + encode_packet(p.TimeoutNow(term=3)))
    assert other.is_ready
    assert node.stepped[-1:] == [message(Kind.TIMEOUT_NOW)]
