"""Original TaskFlux nodes at the other end, played by plain bytes."""

from __future__ import annotations

import pytest

from penstock.protocol.peers import encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Entry, Kind, Message, Snapshot
from penstock.server.peers import originals
from server.peers.wired import (
    THREE,
    Node,
    Original,
    Shelf,
    message,
    packets_in,
    snapshot_message,
)

CONNECTED = "63 01 4A C9 A2 03"
TAKEN = "61 01 00 00 00 00 00 00 00 03 75 94 E3 27"
GO_ON = "62 FF FF FF FF"
AGAIN = "52 FF FF FF FF"
INSTALLED = "73 00 00 00 00 00 00 00 03 64 47 9D 80"
GRANTED = "76 00 00 00 00 00 00 00 03 01 FC FD 2D FC"


def original(node: Node) -> Original:
    """Return an original node that a node of ours has connected to."""
    peer = Original(node)
    # What an original hears first is a ConnectRequest as any other but for a checksum that it does not look at.
    assert peer.taken()[:5] == bytes.fromhex("43 00 00 00 01")
    peer.says(CONNECTED)
    assert peer.link.is_ready
    assert peer.link.is_original
    return peer


def refusal(term: int) -> str:
    return encode_packet(p.AppendResult(is_taken=False, term=term)).hex()


def append(index: int, count: int) -> Message:
    entries = tuple(Entry(index + place, 3, b"hi") for place in range(1, count + 1))
    return message(Kind.APPEND, index=index, log_term=2, commit=7, entries=entries)


# --- our requests ---


def test_an_append_has_the_bytes_that_an_original_reads() -> None:
    node = Node(1)
    peer = original(node)
    assert peer.link.send(append(8, 1))
    assert peer.taken() == bytes.fromhex(
        "41 00 00 00 38 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02"
        "00 00 00 00 00 00 00 07 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 02"
        "68 69 00 00 FE 42 80 8E"
    )
    peer.says(TAKEN)
    assert node.stepped == [message(Kind.APPEND_REPLY, sender=2, to=1, index=9)]


def test_a_refused_append_is_looked_for_one_entry_earlier() -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    peer.says(refusal(3))
    reply = message(Kind.APPEND_REPLY, sender=2, to=1, index=8, is_rejected=True, hint=7)
    assert node.stepped == [reply]


def test_a_later_term_is_told_to_the_group() -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    peer.says(refusal(9))
    assert [reply.term for reply in node.stepped] == [9]


def test_one_request_is_under_way_and_answers_are_paired_in_order() -> None:
    node = Node(1)
    peer = original(node)
    for index in (8, 10, 13):
        assert peer.link.send(append(index, 2))
    assert len(packets_in(peer.taken())) == 1
    peer.says(TAKEN)
    assert len(packets_in(peer.taken())) == 1
    peer.says(refusal(3))
    assert len(packets_in(peer.taken())) == 1
    peer.says(TAKEN)
    assert peer.taken() == b""
    assert [(reply.index, reply.is_rejected) for reply in node.stepped] == [
        (10, False),
        (10, True),
        (15, False),
    ]


def test_a_heartbeat_is_an_empty_append_where_the_logs_agree() -> None:
    node = Node(1)
    peer = original(node)
    heartbeat = message(Kind.HEARTBEAT, commit=7, context=5)
    peer.link.send(heartbeat)
    assert packets_in(peer.taken()) == [
        p.Append(
            commit=6, term=3, previous_term=1, previous_index=-1, leader=1, terms=[], payloads=[]
        )
    ]
    peer.says(TAKEN)
    peer.link.send(append(8, 1))
    peer.says(TAKEN)
    peer.taken()
    peer.link.send(heartbeat)
    (packet,) = packets_in(peer.taken())
    assert isinstance(packet, p.Append)
    assert (packet.previous_index, packet.previous_term, list(packet.terms)) == (8, 3, [])
    peer.says(refusal(3))
    replies = [reply for reply in node.stepped if reply.kind is Kind.HEARTBEAT_REPLY]
    assert replies == [message(Kind.HEARTBEAT_REPLY, sender=2, to=1, context=5)] * 2


def test_of_heartbeats_that_wait_only_the_last_is_said() -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    for context in range(1000):
        assert peer.link.send(message(Kind.HEARTBEAT, context=context))
    peer.taken()
    peer.says(TAKEN + TAKEN)
    assert len(packets_in(peer.taken())) == 1
    assert [reply.context for reply in node.stepped[1:]] == [999]


def test_votes_are_asked_for_and_given() -> None:
    node = Node(1)
    peer = original(node)
    for is_transfer in (False, True):
        peer.link.send(
            message(Kind.VOTE, index=8, log_term=2, is_transfer=is_transfer),
        )
        assert packets_in(peer.taken()) == [p.Vote(candidate=1, term=3, last_term=2, last_index=7)]
        peer.says(GRANTED)
    assert node.stepped == [message(Kind.VOTE_REPLY, sender=2, to=1)] * 2


@pytest.mark.parametrize(
    "kind",
    [
        Kind.PRE_VOTE,
        Kind.TIMEOUT_NOW,
        Kind.READ,
        Kind.READ_REPLY,
        Kind.APPEND_REPLY,
        Kind.HEARTBEAT_REPLY,
        Kind.PRE_VOTE_REPLY,
        Kind.VOTE_REPLY,
    ],
)
def test_what_an_original_has_no_packet_for_is_not_said(kind: Kind) -> None:
    peer = original(Node(1))
    assert peer.link.send(message(kind))
    assert peer.taken() == b""


def test_too_much_that_waits_is_not_kept() -> None:
    peer = original(Node(1))
    sent = [peer.link.send(append(8, 1)) for _ in range(originals.WAITING_MAX + 2)]
    assert sent == [True] * (originals.WAITING_MAX + 1) + [False]
    peer = original(Node(1))
    large = Entry(9, 3, bytes(originals.WAITING_SIZE_MAX))
    sent = [
        peer.link.send(message(Kind.APPEND, index=8, log_term=2, entries=(large,)))
        for _ in range(3)
    ]
    assert sent == [True, True, False]


def test_a_packet_is_said_again_when_asked_to_but_not_for_ever() -> None:
    peer = original(Node(1))
    peer.link.send(append(8, 1))
    first = peer.taken()
    for _ in range(originals.RETRANSMITS_MAX):
        peer.says(AGAIN)
        assert peer.taken() == first
    peer.says(AGAIN)
    assert peer.link.is_broken
    assert peer.taken() == b""


def test_an_answer_that_was_not_asked_for_breaks_the_link() -> None:
    for text in (TAKEN, GRANTED, GO_ON, INSTALLED, AGAIN):
        peer = original(Node(1))
        peer.says(text)
        assert peer.link.is_broken, text


@pytest.mark.parametrize("text", [GRANTED, GO_ON, INSTALLED, CONNECTED])
def test_an_answer_to_another_request_breaks_the_link(text: str) -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    peer.says(text)
    assert peer.link.is_broken
    assert node.stepped == []


def test_an_answer_has_its_time() -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    node.clock.seconds = originals.ANSWER_SECONDS - 0.1
    peer.link.tick()
    assert not peer.link.is_broken
    node.clock.seconds = originals.ANSWER_SECONDS
    peer.link.tick()
    assert peer.link.is_broken


def test_a_new_connection_knows_nothing_of_what_waited_on_the_old_one() -> None:
    node = Node(1)
    peer = original(node)
    peer.link.send(append(8, 1))
    peer.link.send(append(9, 1))
    peer.link.close()
    again = original(node)
    assert again.taken() == b""
    again.says(TAKEN)
    assert again.link.is_broken
    assert node.stepped == []


# --- snapshots ---

SNAPSHOT = Snapshot(8, 2, THREE)


def test_a_snapshot_is_sent_chunk_by_chunk() -> None:
    data = bytes(range(256)) * 400
    node = Node(1, plain=Shelf((SNAPSHOT, data)))
    peer = original(node)
    peer.link.send(snapshot_message(SNAPSHOT))
    assert peer.taken() == bytes.fromhex(
        "53 00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 02"
        "EB CA DD F2"
    )
    found = bytearray()
    while True:
        peer.says(GO_ON)
        (chunk,) = packets_in(peer.taken())
        assert isinstance(chunk, p.PlainChunk)
        if not chunk.data:
            break
        found += chunk.data
    assert bytes(found) == data
    assert node.ended == []
    peer.says(INSTALLED)
    assert node.ended == [(2, True)]
    assert peer.link.send(append(8, 1))
    assert len(packets_in(peer.taken())) == 1


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_snapshot_that_is_refused_has_failed(chunks: int) -> None:
    node = Node(1, plain=Shelf((SNAPSHOT, bytes(200_000))))
    peer = original(node)
    peer.link.send(snapshot_message(SNAPSHOT))
    peer.says(GO_ON * chunks)
    peer.says(INSTALLED)
    assert node.ended == [(2, False)]
    assert not peer.link.is_broken


def test_an_end_that_is_answered_as_if_more_were_to_come_breaks_the_link() -> None:
    node = Node(1, plain=Shelf((SNAPSHOT, b"")))
    peer = original(node)
    peer.link.send(snapshot_message(SNAPSHOT))
    peer.says(GO_ON + GO_ON)
    assert peer.link.is_broken
    assert node.ended == [(2, False)]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_snapshot_fails_with_its_link(is_waiting: bool) -> None:
    node = Node(1, plain=Shelf((SNAPSHOT, bytes(200_000))))
    peer = original(node)
    if is_waiting:
        peer.link.send(append(8, 1))
    peer.link.send(snapshot_message(SNAPSHOT))
    peer.link.close()
    assert node.ended == [(2, False)]


def test_without_a_state_that_an_original_reads_it_is_sent_none() -> None:
    node = Node(1, Shelf((SNAPSHOT, b"ours")))
    peer = original(node)
    peer.link.send(snapshot_message(SNAPSHOT))
    assert node.ended == [(2, False)]
    assert peer.taken() == b""


# --- its requests ---


class Caller:
    """An original node that has connected to a node of ours."""

    def __init__(self, node: Node) -> None:
        self.heard = bytearray()
        self.link = node.incoming(self.heard.extend)
        self.says("43 00 00 00 01 C3 C5 C0 CC")
        assert self.taken() == bytes.fromhex(CONNECTED)
        assert (self.link.peer, self.link.is_ready, self.link.is_original) == (1, True, True)

    def says(self, text: str) -> None:
        self.link.receive(bytes.fromhex(text))

    def taken(self) -> bytes:
        data = bytes(self.heard)
        self.heard.clear()
        return data


VOTE = (
    "56 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 07"
    "63 6F EF D2"
)
APPEND = (
    "41 00 00 00 38 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02"
    "00 00 00 00 00 00 00 07 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 02"
    "68 69 00 00 FE 42 80 8E"
)


def test_its_requests_are_messages_and_our_replies_its_answers() -> None:
    node = Node(2)
    caller = Caller(node)
    caller.says(VOTE)
    assert node.stepped == [message(Kind.VOTE, index=8, log_term=2)]
    assert caller.taken() == b""
    caller.link.reply(message(Kind.VOTE_REPLY, sender=2, to=1))
    assert caller.taken() == bytes.fromhex(GRANTED)
    caller.says(APPEND)
    assert node.stepped[1:] == [append(8, 1)]
    caller.link.reply(message(Kind.APPEND_REPLY, sender=2, to=1, index=9))
    assert caller.taken() == bytes.fromhex(TAKEN)


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"index": 9}, True),
        ({"index": 12}, True),
        ({"index": 8}, False),  # some of it is missing
        ({"index": 8, "is_rejected": True, "hint": 3}, False),
        ({"index": 0, "term": 4}, False),  # what a stale leader is told
        ({"index": 9, "term": 4}, False),
    ],
)
def test_taken_means_all_of_it_in_this_term(fields: dict[str, int], is_taken: bool) -> None:
    caller = Caller(Node(2))
    caller.says(APPEND)
    caller.link.reply(message(Kind.APPEND_REPLY, sender=2, to=1, **fields))
    term = fields.get("term", 3)
    assert packets_in(caller.taken()) == [p.AppendResult(is_taken=is_taken, term=term)]


def test_a_reply_that_was_not_asked_for_is_not_said() -> None:
    caller = Caller(Node(2))
    taken = message(Kind.APPEND_REPLY, sender=2, to=1, index=9)
    caller.link.reply(taken)
    caller.says(VOTE)
    caller.link.reply(taken)
    caller.link.reply(message(Kind.PRE_VOTE_REPLY, sender=2, to=1))
    assert caller.taken() == b""
    caller.link.reply(message(Kind.VOTE_REPLY, sender=2, to=1))
    assert caller.taken() == bytes.fromhex(GRANTED)


def test_a_request_that_is_said_again_is_answered_once() -> None:
    node = Node(2)
    caller = Caller(node)
    caller.says(APPEND)
    caller.says(APPEND)
    assert len(node.stepped) == 2
    for _ in range(2):
        caller.link.reply(message(Kind.APPEND_REPLY, sender=2, to=1, index=9))
    assert caller.taken() == bytes.fromhex(TAKEN)


def test_an_original_that_is_no_member_is_sent_away() -> None:
    node = Node(2)
    node.own.takes_original = lambda peer: peer == 3
    said = bytearray()
    link = node.incoming(said.extend)
    link.receive(bytes.fromhex("43 00 00 00 01 C3 C5 C0 CC"))
    assert link.is_broken
    assert packets_in(bytes(said)) == [p.Connected(is_accepted=False)]


@pytest.mark.parametrize(
    "packet",
    [
        p.Hello(incarnation="", knows="", client_address=""),
        p.Install(term=3, leader=1, last_index=7, last_term=2),
        p.PlainChunk(data=b""),
        p.AppendReply(term=3, is_rejected=False, index=1, hint_index=-1, hint_term=1),
        p.Heartbeat(term=3, commit=1, context=0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_original_says_only_what_it_can(packet: p.Original) -> None:
    node = Node(2)
    caller = Caller(node)
    caller.link.receive(encode_packet(packet))
    assert caller.link.is_broken
    assert node.stepped == []
