"""Messages to packets and back: nothing is lost, and the two ways to count do not mix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData
from penstock.formats.taskflux.deltas import encode_delta, encode_removals
from penstock.model import DEFAULT_QUEUE, TERM_MAX, AddTask, DeleteQueue, QueueName
from penstock.protocol.peers import PacketReader, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.configuration import Change, Step, encode_change
from penstock.raft.messages import Entry, EntryKind, Kind, Message
from penstock.server.entry_store import EMPTY, stored_payload
from penstock.server.peers.translation import message_of, packet_of

TERMS = st.integers(1, TERM_MAX)
INDEXES = st.integers(0, 2**62)
PLACES = st.just((0, 0)) | st.tuples(st.integers(1, 2**62), TERMS)
HINTS = PLACES | st.tuples(st.integers(1, 2**62), st.just(0))
CONTEXTS = st.integers(0, 2**63 - 1)
CHANGE = encode_change(Change(((Step.LEARNER, 4),), labels=((4, "host:5000#"),)))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from([kind for kind in Kind if kind is not Kind.SNAPSHOT]))
    fields: dict[str, Any] = {}
    if kind not in (Kind.READ, Kind.READ_REPLY):
        fields["term"] = draw(TERMS)
    if kind in (Kind.VOTE, Kind.PRE_VOTE, Kind.APPEND):
        fields["index"], fields["log_term"] = draw(PLACES)
    if kind is Kind.VOTE:
        fields["is_transfer"] = draw(st.booleans())
    if kind is Kind.APPEND:
        fields["commit"] = draw(INDEXES)
        fields["entries"] = draw(entries(fields["index"]))
    if kind in (Kind.VOTE_REPLY, Kind.PRE_VOTE_REPLY, Kind.APPEND_REPLY):
        fields["is_rejected"] = draw(st.booleans())
        fields["hint"], fields["hint_term"] = draw(HINTS)
    if kind in (Kind.APPEND_REPLY, Kind.READ_REPLY):
        fields["index"] = draw(INDEXES)
    if kind is Kind.HEARTBEAT:
        fields["commit"] = draw(INDEXES)
    if kind in (Kind.HEARTBEAT, Kind.HEARTBEAT_REPLY, Kind.READ, Kind.READ_REPLY):
        fields["context"] = draw(CONTEXTS)
    return Message(kind=kind, sender=1, to=2, **fields)


@st.composite
def entries(draw: st.DrawFn, index: int) -> tuple[Entry, ...]:
    found = []
    for place in range(draw(st.integers(0, 5))):
        term = draw(TERMS)
        if draw(st.integers(0, 4)) == 0:
            found.append(Entry(index + place + 1, term, CHANGE, EntryKind.CONFIGURATION))
        else:
            task = AddTask(queue=DEFAULT_QUEUE, key=1, payload=draw(st.binary(max_size=30)))
            found.append(Entry(index + place + 1, term, encode_delta(task)))
    return tuple(found)


@given(messages())
def test_every_message_says_the_same_at_the_other_side(message: Message) -> None:
    reader = PacketReader()
    reader.feed(encode_packet(packet_of(message)))
    packet = reader.next()
    assert packet is not None
    assert reader.held == 0
    assert message_of(packet, sender=1, to=2) == message


def test_nothing_is_minus_one_of_term_one_on_the_wire() -> None:
    vote = Message(kind=Kind.VOTE, sender=1, to=2, term=3)
    assert packet_of(vote) == p.Vote(candidate=1, term=3, last_term=1, last_index=-1)
    append = Message(kind=Kind.APPEND, sender=1, to=2, term=3)
    assert packet_of(append) == p.Append(
        commit=-1, term=3, previous_term=1, previous_index=-1, leader=1, terms=[], payloads=[]
    )


def test_the_first_entry_is_zero_on_the_wire() -> None:
    vote = Message(kind=Kind.VOTE, sender=1, to=2, term=3, index=1, log_term=2)
    assert packet_of(vote) == p.Vote(candidate=1, term=3, last_term=2, last_index=0)


def test_entries_travel_as_files_hold_them() -> None:
    change = Entry(2, 3, CHANGE, EntryKind.CONFIGURATION)
    append = Message(kind=Kind.APPEND, sender=1, to=2, term=3, entries=(Entry(1, 3, EMPTY), change))
    packet = packet_of(append)
    assert isinstance(packet, p.Append)
    assert list(packet.payloads) == [EMPTY, stored_payload(change)]
    assert list(packet.terms) == [3, 3]


def test_a_vote_that_says_no_more_than_taskflux_can_is_its_packet() -> None:
    reply = Message(kind=Kind.VOTE_REPLY, sender=1, to=2, term=3, is_rejected=True)
    assert packet_of(reply) == p.VoteReply(term=3, is_granted=False)


def test_a_read_that_is_passed_on_keeps_who_asked() -> None:
    read = Message(kind=Kind.READ, sender=5, to=2, context=9)
    assert message_of(packet_of(read), sender=1, to=2) == read


@pytest.mark.parametrize(
    "packet",
    [
        p.Append(commit=-2, term=3, previous_term=1, previous_index=-1, leader=1),
        p.Append(commit=-1, term=3, previous_term=2, previous_index=-1, leader=1),
        p.Append(commit=-1, term=3, previous_term=1, previous_index=-2, leader=1),
        p.Append(commit=-1, term=-3, previous_term=1, previous_index=-1, leader=1),
        p.Append(commit=-1, term=3, previous_term=-1, previous_index=0, leader=1),
        p.Append(commit=-1, term=3, previous_term=1, previous_index=-1, leader=3),
        p.Vote(candidate=2, term=3, last_term=1, last_index=-1),
        p.Vote(candidate=1, term=-1, last_term=1, last_index=-1),
        p.PreVote(term=1, last_term=0, last_index=-1),
        p.Heartbeat(term=1, commit=-2, context=0),
        p.Heartbeat(term=1, commit=0, context=-1),
        p.HeartbeatReply(term=1, context=-1),
        p.AppendReply(term=1, is_rejected=False, index=-2, hint_index=-1, hint_term=1),
        p.AppendReply(term=1, is_rejected=False, index=-1, hint_index=-1, hint_term=0),
        p.VoteReply(term=-1, is_granted=True),
        p.TimeoutNow(term=-1),
        p.Read(origin=-1, context=0),
        p.ReadReply(context=0, index=-2),
        p.Proof(nonce=bytes(16)),
    ],
    ids=str,
)
def test_what_nobody_can_mean_is_refused(packet: Any) -> None:
    with pytest.raises(CorruptData):
        message_of(packet, sender=1, to=2)


ADD = encode_delta(AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"task"))
REMOVALS = encode_removals(QueueName("mail"), [1, 2])
DELETE = encode_delta(DeleteQueue(queue=QueueName("mail")))


def append_with(*payloads: bytes) -> p.Append:
    terms = [3] * len(payloads)
    return p.Append(
        commit=-1,
        term=3,
        previous_term=1,
        previous_index=-1,
        leader=1,
        terms=terms,
        payloads=payloads,
    )


def test_entries_of_every_kind_are_taken() -> None:
    change = stored_payload(Entry(1, 3, CHANGE, EntryKind.CONFIGURATION))
    payloads = [EMPTY, b"", change, ADD, ADD, *REMOVALS, DELETE, ADD, REMOVALS[0]]
    message = message_of(append_with(*payloads), sender=1, to=2)
    assert [stored_payload(entry) for entry in message.entries] == payloads


@pytest.mark.parametrize(
    "payload",
    [
        b"A",
        b"no entry",
        ADD[:-1],
        ADD + b"!",
        REMOVALS[0][:-1],
        REMOVALS[0] + b"!",
        DELETE + b"!",
        stored_payload(Entry(1, 3, b"{}", EntryKind.CONFIGURATION)),
        stored_payload(Entry(1, 3, b"", EntryKind.CONFIGURATION)),
    ],
    ids=repr,
)
def test_an_entry_that_cannot_be_decoded_is_refused_with_its_append(payload: bytes) -> None:
    for before in ((), (ADD,), (REMOVALS[0],), (DELETE,)):
        with pytest.raises(BadData):
            message_of(append_with(*before, payload, ADD), sender=1, to=2)
