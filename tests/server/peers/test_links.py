"""Links between nodes: which packets are sent and taken where, what proves a link, and what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.peers import Packet, Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind
from penstock.server.peers import links
from penstock.server.peers.proofs import PROOFS_MAX
from protocol.peers.samples import ALL
from server.peers.wired import (
    INCARNATIONS,
    PAYLOAD,
    Node,
    Wire,
    address,
    greeting_of,
    introduce,
    message,
    packets_in,
)

CONNECT = encode_packet(p.Connect(node=1, nonce=bytes(16)))


def wired(*, piece: int = 2**20) -> tuple[Node, Node, Wire]:
    one, two = Node(1), Node(2)
    introduce(one, two)
    wire = Wire(one, two)
    wire.carry(piece=piece)
    return one, two, wire


def greeted() -> tuple[Node, links.Incoming]:
    """Return a node and a proven link that node 1 opened to it."""
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(greeting_of(Node(1), node))
    assert link.is_ready
    return node, link


# --- the handshake ---


@pytest.mark.parametrize("piece", [1, 7, 2**20])
def test_two_nodes_greet_each_other(piece: int) -> None:
    one, two, wire = wired(piece=piece)
    assert wire.outgoing.is_ready
    assert wire.incoming.is_ready
    assert wire.incoming.claims == 1
    assert one.heard == [(2, INCARNATIONS[2], None)]
    assert two.heard == [(1, INCARNATIONS[1], None)]
    assert one.addresses == {2: "client2:2602"}
    assert two.addresses == {1: "client1:2602"}


def test_two_nodes_that_open_links_to_each_other_prove_both() -> None:
    one, two = Node(1), Node(2)
    there, back = Wire(one, two), Wire(two, one)
    for _ in range(3):
        there.carry()
        back.carry()
        there.outgoing.prove()  # as their owner does when a link claims to be the peer's
        back.outgoing.prove()
    for wire in (there, back):
        assert wire.outgoing.is_ready
        assert wire.incoming.is_ready


def test_a_link_that_is_opened_again_is_proven_at_once() -> None:
    one, two = Node(1), Node(2)
    there, back = Wire(one, two), Wire(two, one)
    there.carry()
    back.carry()
    there.outgoing.prove()
    there.carry()
    back.outgoing.prove()
    back.carry()
    assert back.incoming.is_proven
    there.close()
    back.close()
    again = Wire(one, two)
    again.carry()
    assert again.outgoing.is_ready


def test_a_node_that_was_started_again_is_proven_by_its_new_nonce() -> None:
    one, two, wire = wired()
    wire.close()
    two_again = Node(2)
    two_again.own.proofs = type(two.own.proofs)(lambda size: b"2" * size)
    introduce(one, two_again)
    again = Wire(one, two_again)
    again.carry()
    assert again.outgoing.is_ready


def test_a_claim_brings_nothing_but_the_number_and_the_same_nonce_back() -> None:
    said = bytearray()
    node = Node(2)
    link = node.incoming(said.extend)
    link.receive(CONNECT)
    assert packets_in(bytes(said)) == [p.Connected(node=2, nonce=bytes(16))]
    assert node.claimed == [1]
    assert not link.is_proven
    assert node.heard == []


def test_a_nonce_is_sent_only_to_the_address_that_it_is_for() -> None:
    node = Node(1)
    first = node.own.proofs.nonce(2, address(2))
    assert node.own.proofs.nonce(2, address(2)) == first
    assert node.own.proofs.is_right(2, first)
    assert not node.own.proofs.is_right(3, first)
    moved = node.own.proofs.nonce(2, "elsewhere:2702")
    assert moved != first
    assert not node.own.proofs.is_right(2, first)
    node.own.proofs.forget(2)
    assert not node.own.proofs.is_right(2, moved)


def test_a_link_with_a_wrong_nonce_is_not_proven_and_closed_after_some() -> None:
    node = Node(2)
    node.own.proofs.nonce(1, address(1))
    link = node.incoming(lambda _: None)
    link.receive(CONNECT)
    for number in range(PROOFS_MAX):
        link.receive(encode_packet(p.Proof(nonce=number.to_bytes(16, "big"))))
    assert not link.is_broken
    link.receive(encode_packet(p.Proof(nonce=bytes(16))))
    assert link.is_broken
    assert not link.is_proven


def test_wrong_proofs_before_and_behind_the_right_one_do_no_harm() -> None:
    one, two = Node(1), Node(2)
    for number in range(5):
        one.own.proofs.claim(object(), 2, bytes((number,) * 16))
    introduce(one, two)
    for number in range(5, 10):
        one.own.proofs.claim(object(), 2, bytes((number,) * 16))
    wire = Wire(one, two)
    wire.carry()
    assert wire.outgoing.is_ready
    assert wire.incoming.is_ready


def test_an_opener_returns_each_claimed_nonce_once_and_not_too_many() -> None:
    one, said = Node(1), bytearray()
    link = one.outgoing(2, said.extend)
    link.begin()
    (connect,) = packets_in(bytes(said))
    assert isinstance(connect, p.Connect)
    link.receive(encode_packet(p.Connected(node=2, nonce=connect.nonce)))
    said.clear()
    for number in range(PROOFS_MAX):
        one.own.proofs.claim(object(), 2, number.to_bytes(16, "big"))
        link.prove()
        link.prove()
    assert len(packets_in(bytes(said))) == PROOFS_MAX
    one.own.proofs.claim(object(), 2, b"one too many    ")
    link.prove()
    assert link.is_broken


def test_what_a_link_claimed_is_forgotten_with_it() -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(CONNECT)
    assert node.own.proofs.candidates(1) == [bytes(16)]
    link.close()
    assert node.own.proofs.candidates(1) == []


def test_another_nonce_than_was_sent_breaks_the_link() -> None:
    link = Node(1).outgoing(2, lambda _: None)
    link.begin()
    link.receive(encode_packet(p.Connected(node=2, nonce=bytes(16))))
    assert link.is_broken


def test_each_says_by_which_incarnation_it_knows_the_other() -> None:
    one, two = Node(1), Node(2)
    one.known[2], two.known[1] = INCARNATIONS[7], INCARNATIONS[8]
    introduce(one, two)
    Wire(one, two).carry()
    assert one.heard == [(2, INCARNATIONS[2], INCARNATIONS[8])]
    assert two.heard == [(1, INCARNATIONS[1], INCARNATIONS[7])]


def test_what_is_known_is_what_was_known_before_this_greeting() -> None:
    # A node that learns another's incarnation from a greeting must not claim in the same one that it knew it.
    one, two = Node(1), Node(2)
    one.own.hear = lambda peer, incarnation, _: one.known.__setitem__(peer, incarnation)
    introduce(one, two)
    Wire(one, two).carry()
    assert one.known == {2: INCARNATIONS[2]}
    assert two.heard == [(1, INCARNATIONS[1], None)]


def test_another_node_at_the_address_is_not_talked_to() -> None:
    one, two = Node(1), Node(2)
    wire = Wire(one, two, peer=3)
    wire.carry()
    assert wire.outgoing.is_broken
    assert one.heard == []


@pytest.mark.parametrize("node", [2, 0, -1, -(2**31)])
def test_a_number_that_no_peer_has_is_sent_away(node: int) -> None:
    said = bytearray()
    link = Node(2).incoming(said.extend)
    link.receive(encode_packet(p.Connect(node=node, nonce=bytes(16))))
    assert link.is_broken
    assert not said


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


def test_a_link_that_is_ready_is_never_too_late() -> None:
    one, two, wire = wired()
    one.clock.seconds = two.clock.seconds = 10_000.0
    wire.outgoing.tick()
    wire.incoming.tick()
    assert not wire.outgoing.is_broken
    assert not wire.incoming.is_broken


def test_a_packet_that_never_becomes_whole_breaks_the_link() -> None:
    node, link = greeted()
    whole = encode_packet(p.TimeoutNow(term=3))
    link.receive(whole[:5])
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


# --- members ---


def test_where_members_listen_is_told_with_the_greeting_and_when_it_changes() -> None:
    one, two = Node(1), Node(2)
    one.members = first = p.Members(index=7, addresses={1: address(1), 2: address(2)})
    introduce(one, two)
    wire = Wire(one, two)
    wire.outgoing.tell_members()  # too early: the link is not proven
    wire.carry()
    one.members = replace(first, index=8)
    wire.outgoing.tell_members()
    wire.carry()
    assert two.heard_members == [first]
    one.members = later = p.Members(index=9, addresses={1: address(1), 3: address(3)})
    wire.outgoing.tell_members()
    wire.carry()
    assert two.heard_members == [first, later]


# --- messages ---


def test_all_that_a_node_says_comes_in_order_on_the_link_that_it_opened() -> None:
    _, two, wire = wired(piece=3)
    said = [
        message(Kind.APPEND, index=1, log_term=1, commit=1, entries=(Entry(2, 3, PAYLOAD),)),
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

MESSAGE_TYPES = {
    Type(kind)
    for kind in b"VvAWwPpkLlNQqOM"  # each of these is a message, offers a snapshot, or tells of members
}
SAMPLES = [
    replace(packet, payloads=[PAYLOAD]) if isinstance(packet, p.Append) and packet.terms else packet
    for packet in ALL
]


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_on_a_new_link_only_a_connect_is_taken(packet: Packet) -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(encode_packet(packet))
    assert link.is_broken != isinstance(packet, p.Connect)
    assert node.stepped == []


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_on_a_link_that_is_not_proven_every_other_packet_than_a_proof_closes_it(
    packet: Packet,
) -> None:
    node = Node(2)
    link = node.incoming(lambda _: None)
    link.receive(CONNECT + encode_packet(packet))
    assert link.is_broken != isinstance(packet, p.Proof)
    assert not link.is_proven
    assert node.stepped == []
    assert node.heard == []
    assert node.heard_members == []


@pytest.mark.parametrize("packet", SAMPLES, ids=lambda one: type(one).__name__)
def test_behind_the_greeting_only_messages_are_taken(packet: Packet) -> None:
    node, link = greeted()
    data = encode_packet(packet)
    link.receive(data)
    is_message = data[0] in MESSAGE_TYPES and not isinstance(packet, p.Offer)  # its group is none
    assert link.is_broken != is_message
    assert len(node.stepped) + len(node.heard_members) == is_message


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_an_opener_takes_only_answers_to_a_snapshot(packet: Packet) -> None:
    one, _, wire = wired()
    wire.outgoing.receive(encode_packet(packet))
    assert wire.outgoing.is_broken != isinstance(packet, p.OfferReply | p.ChunkReply)
    assert one.stepped == []


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_an_opener_takes_nothing_before_its_nonce_came_back(packet: Packet) -> None:
    one = Node(1)
    link = one.outgoing(2, lambda _: None)
    link.begin()
    link.receive(encode_packet(packet))
    assert link.is_broken
    assert one.stepped == []
    assert one.heard == []


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


def test_an_entry_that_cannot_be_decoded_breaks_the_link_before_it_is_stepped() -> None:
    node, link = greeted()
    bad = p.Append(
        commit=-1,
        term=3,
        previous_term=1,
        previous_index=-1,
        leader=1,
        terms=[3],
        payloads=[b"no entry"],
    )
    link.receive(encode_packet(bad))
    assert link.is_broken
    assert node.stepped == []


def test_nothing_behind_a_bad_packet_is_taken() -> None:
    node, link = greeted()
    bad = bytearray(encode_packet(p.TimeoutNow(term=3)))
    bad[-1] ^= 1
    link.receive(bytes(bad) + encode_packet(p.TimeoutNow(term=3)))
    link.receive(encode_packet(p.TimeoutNow(term=3)))
    assert link.is_broken
    assert node.stepped == []


@given(st.binary(max_size=300), st.booleans())
def test_garbage_breaks_nothing_but_its_own_link(data: bytes, is_greeted: bool) -> None:
    node = Node(2)
    link, other = node.incoming(lambda _: None), node.incoming(lambda _: None)
    greeting = greeting_of(Node(1), node)
    link.receive((greeting if is_greeted else b"") + data)
    other.receive(greeting + encode_packet(p.TimeoutNow(term=3)))
    assert other.is_ready
    assert node.stepped[-1:] == [message(Kind.TIMEOUT_NOW)]
