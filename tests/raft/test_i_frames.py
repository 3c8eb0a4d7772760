"""I: frames of peers that are no frames: refused before anything changes."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.protocol.peers import encode_packet
from penstock.protocol.peers import packets as p
from penstock.server.peers.links import Incoming, Own
from penstock.server.peers.proofs import Proofs
from raft.stepping import Stepped
from server.peers.wired import INCARNATIONS, PAYLOAD, Clock, Tray

NONCE = b"sixteen bytes..."
GREETING = b"".join(
    encode_packet(packet)
    for packet in (
        p.Connect(node=2, nonce=bytes(16)),
        p.Proof(nonce=NONCE),
        p.Hello(incarnation=INCARNATIONS[2], knows="", client_address=""),
    )
)

TERMS = [1, 1, 2]  # of the entries that the member has


class Peered:
    """A member of a group, and a link that member 2 opened to it."""

    def __init__(self) -> None:
        self.member = Stepped(log=TERMS, term=2, commit=2)
        self.member.pump()
        self.own = Own(
            node=1,
            incarnation=INCARNATIONS[1],
            client_address="",
            known=lambda _: None,
            hear=lambda *_: None,
            note_client_address=lambda *_: None,
            members=lambda: p.Members(index=-1, addresses={}),
            hear_members=lambda _: None,
            claimed=lambda _: None,
            proofs=Proofs(lambda _: NONCE),
        )
        self.own.proofs.nonce(2, "host2:2702")
        self.link = self.opened()

    def opened(self) -> Incoming:
        link = Incoming(
            self.own, lambda _: None, step=self.member.core.step, sink=Tray(), now=Clock()
        )
        link.receive(GREETING)
        assert link.is_ready
        return link

    @property
    def is_untouched(self) -> bool:
        core = self.member.core
        return (core.term, core.vote, core.leader, self.member.terms, core.log.committed) == (
            2,
            0,
            0,
            TERMS,
            2,
        ) and not core.has_ready


def append(**fields: object) -> p.Append:
    known: dict[str, object] = {
        "commit": 2,
        "term": 3,
        "previous_term": 2,
        "previous_index": 2,
        "leader": 2,
        "terms": [3, 3],
        "payloads": [PAYLOAD, PAYLOAD],
    }
    return p.Append(**(known | fields))  # type: ignore[arg-type]


def sealed(kind: str, payload: bytes) -> bytes:
    return kind.encode() + payload + pack(">I", checksum(payload))


def raw_append(entries: bytes, *, count: int, length: int | None = None) -> bytes:
    body = pack(">qqqqii", 2, 3, 2, 2, 2, count) + entries
    return sealed("A", pack(">i", len(body) if length is None else length) + body)


def entry(term: int, data: bytes, *, size: int | None = None) -> bytes:
    size = len(data) if size is None else size
    return pack(">qi", term, size) + data + bytes(len(data) % 8)


GOOD = entry(3, PAYLOAD)
VOTE = p.Vote(candidate=2, term=3, last_term=2, last_index=2)

MALFORMED = {
    "a length beyond the limit": b"A" + pack(">i", 2**31 - 1),
    "a negative length": b"A" + pack(">i", -1),
    "a length below the head": b"A" + pack(">i", 39),
    "a negative count": raw_append(GOOD, count=-1),
    "a count of too few": raw_append(GOOD, count=0),
    "a count of too many": raw_append(GOOD, count=2),
    "a count of very many": raw_append(GOOD, count=2**31 - 1),
    "a negative size of an entry": raw_append(entry(3, b"payload", size=-8), count=1),
    "a size beyond the packet": raw_append(entry(3, b"payload", size=2**30), count=1),
    "an entry cut short": raw_append(GOOD[:-1], count=1),
    "an entry cut in its head": raw_append(GOOD + GOOD[:5], count=2),
    "padding that is not zero": raw_append(GOOD[:-1] + b"\1", count=1),
    "bytes left over": raw_append(GOOD + b"\0", count=1),
    "a wrong checksum": encode_packet(append())[:-1] + b"\0",
    "a wrong checksum of a vote": encode_packet(VOTE)[:-1] + b"\0",
    "an unknown type": b"Z" + encode_packet(VOTE)[1:],
    "a type that is not for this link": encode_packet(p.Connected(node=2, nonce=NONCE)),
    "a greeting again": encode_packet(p.Connect(node=2, nonce=NONCE)),
    "the last 64-bit term": encode_packet(p.Heartbeat(term=2**63 - 1, commit=-1, context=0)),
    "an entry that is none": encode_packet(append(payloads=[PAYLOAD, b"no entry"])),
    "falling terms": encode_packet(append(terms=[3, 2])),
    "terms below the one before": encode_packet(append(terms=[1, 3])),
    "terms beyond the leader's": encode_packet(append(terms=[3, 4])),
    "a term of zero": encode_packet(append(previous_term=1, previous_index=-1, terms=[0, 1])),
    "a negative term of an entry": encode_packet(append(terms=[-1, 3])),
    "a negative term": encode_packet(append(term=-3)),
    "an index before the first": encode_packet(append(previous_index=-2)),
    "a commit before the first": encode_packet(append(commit=-2)),
    "a place before all entries with a term": encode_packet(append(previous_index=-1)),
    "an append in another's name": encode_packet(append(leader=3)),
    "a vote in another's name": encode_packet(
        p.Vote(candidate=3, term=3, last_term=2, last_index=2)
    ),
    "a vote of a negative term": encode_packet(
        p.Vote(candidate=2, term=-3, last_term=2, last_index=2)
    ),
    "a vote of a log that cannot be": encode_packet(
        p.Vote(candidate=2, term=3, last_term=2, last_index=-2)
    ),
    "an answer of a negative term": encode_packet(p.VoteReply(term=-1, is_granted=True)),
    "a snapshot for no group": encode_packet(
        p.Offer(leader_term=3, index=9, term=3, size=1, checksum=0, configuration=b"nothing")
    ),
    "a chunk of what was not offered": encode_packet(
        p.Chunk(leader_term=3, index=9, term=3, offset=0, size=1, data=b"x")
    ),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_i20_malformed_peer_frames(data: bytes) -> None:
    peered = Peered()
    peered.link.receive(data)
    assert peered.link.is_broken
    assert peered.is_untouched
    # The process lives, and so does every other link.
    other = peered.opened()
    other.receive(encode_packet(append()))
    assert not other.is_broken
    assert peered.member.terms == [*TERMS, 3, 3]
    assert peered.member.core.leader == 2


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_i20_a_bad_frame_that_arrives_byte_by_byte_is_refused_as_well(data: bytes) -> None:
    peered = Peered()
    for place in range(len(data)):
        peered.link.receive(data[place : place + 1])
    assert peered.link.is_broken
    assert peered.is_untouched


@pytest.mark.parametrize("packet", [append(), VOTE], ids=["append", "vote"])
def test_i20_a_frame_is_not_taken_before_its_last_byte(packet: p.Append | p.Vote) -> None:
    peered, data = Peered(), encode_packet(packet)
    for place in range(len(data) - 1):
        peered.link.receive(data[place : place + 1])
        assert peered.is_untouched
    peered.link.receive(data[-1:])
    assert peered.member.core.term == 3


@given(st.sampled_from([append(), VOTE]), st.data())
def test_i20_no_damage_behind_the_type_is_taken_for_a_frame(
    packet: p.Append | p.Vote, data: st.DataObject
) -> None:
    peered, raw = Peered(), bytearray(encode_packet(packet))
    place = data.draw(st.integers(1, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    peered.link.receive(bytes(raw))
    assert peered.is_untouched  # a greater length waits for more, all else is refused


@given(st.binary(max_size=120), st.sampled_from("AVvWwPpkLlNQqOM"))
def test_i20_no_payload_changes_anything_and_is_refused_then(body: bytes, kind: str) -> None:
    peered = Peered()
    has_length = kind not in "Vv"
    payload = pack(">i", len(body)) + body if has_length else body
    peered.link.receive(sealed(kind, payload))
    assert peered.is_untouched or not peered.link.is_broken


def test_i20_what_the_core_refuses_closes_the_link() -> None:
    peered = Peered()
    peered.link.receive(encode_packet(append(terms=[3, 2])))
    assert "does not follow" in str(peered.link.reason)
    assert peered.is_untouched
