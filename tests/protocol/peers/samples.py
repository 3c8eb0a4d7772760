"""Packets of every kind, and the bytes of those that are TaskFlux's."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.model import TERM_MAX
from penstock.protocol.peers import Packet, Standing
from penstock.protocol.peers import packets as p

# Section 8.1 of the compatibility specification, byte for byte.
VECTORS: list[tuple[Packet, str]] = [
    (
        p.Vote(candidate=1, term=3, last_term=2, last_index=7),
        (
            "56 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 07"
            "63 6F EF D2"
        ),
    ),
    (
        p.VoteReply(term=3, is_granted=True),
        "76 00 00 00 00 00 00 00 03 01 FC FD 2D FC",
    ),
    (
        p.Append(
            commit=-1, term=3, previous_term=1, previous_index=-1, leader=1, terms=[], payloads=[]
        ),
        (
            "41 00 00 00 28 FF FF FF FF FF FF FF FF 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01"
            "FF FF FF FF FF FF FF FF 00 00 00 01 00 00 00 00 C9 3C F3 9C"
        ),
    ),
    (
        p.Append(
            commit=6,
            term=3,
            previous_term=2,
            previous_index=7,
            leader=1,
            terms=[3],
            payloads=[b"hi"],
        ),
        (
            "41 00 00 00 38 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02"
            "00 00 00 00 00 00 00 07 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 02"
            "68 69 00 00 FE 42 80 8E"
        ),
    ),
]

OURS: list[Packet] = [
    p.Connect(node=1, nonce=bytes(range(16))),
    p.Connected(node=2, nonce=bytes(range(16))),
    p.Proof(nonce=bytes(range(16, 32))),
    p.Members(index=7, addresses={1: "host1:2702", 4: "host4:2702"}),
    p.Hello(incarnation="0123456789abcdef", knows="fedcba9876543210", client_address=""),
    p.TransferVote(term=3, last_term=2, last_index=7),
    p.HintedVoteReply(term=3, is_granted=False, hint_index=7, hint_term=2),
    p.PreVote(term=4, last_term=2, last_index=7),
    p.PreVoteReply(term=4, is_granted=True, hint_index=-1, hint_term=1),
    p.AppendReply(term=3, is_rejected=True, index=9, hint_index=7, hint_term=2),
    p.Heartbeat(term=3, commit=7, context=5),
    p.HeartbeatReply(term=3, context=5),
    p.TimeoutNow(term=3),
    p.Read(origin=3, context=5),
    p.ReadReply(context=5, index=7),
    p.Offer(leader_term=3, index=7, term=2, size=5, checksum=0x3610A686, configuration=b"{}"),
    p.OfferReply(leader_term=3, index=7, term=2, offset=2, standing=Standing.GOES_ON),
    p.Chunk(leader_term=3, index=7, term=2, offset=2, size=5, data=b"llo"),
    p.ChunkReply(leader_term=3, index=7, term=2, offset=5, standing=Standing.IS_WHOLE),
]

ALL: list[Packet] = [packet for packet, _ in VECTORS] + OURS

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TERMS = st.integers(-(2**63), TERM_MAX)
UINT32 = st.integers(0, 2**32 - 1)
INCARNATIONS = st.just("") | st.text("0123456789abcdef", min_size=16, max_size=16)
ADDRESSES = st.text(max_size=60)
NONCES = st.binary(min_size=16, max_size=16)
STANDINGS = st.sampled_from(Standing)


@st.composite
def appends(draw: st.DrawFn) -> p.Append:
    payloads = draw(st.lists(st.binary(max_size=40), max_size=8))
    return p.Append(
        commit=draw(INT64),
        term=draw(TERMS),
        previous_term=draw(TERMS),
        previous_index=draw(INT64),
        leader=draw(INT32),
        terms=draw(st.lists(TERMS, min_size=len(payloads), max_size=len(payloads))),
        payloads=payloads,
    )


@st.composite
def chunks(draw: st.DrawFn) -> p.Chunk:
    data, offset = draw(st.binary(min_size=1, max_size=60)), draw(st.integers(0, 2**40))
    return p.Chunk(
        leader_term=draw(TERMS),
        index=draw(INT64),
        term=draw(TERMS),
        offset=offset,
        size=offset + len(data) + draw(st.integers(0, 2**40)),
        data=data,
    )


PACKETS: st.SearchStrategy[Packet] = st.one_of(
    appends(),
    chunks(),
    st.builds(p.Connect, node=INT32, nonce=NONCES),
    st.builds(p.Connected, node=INT32, nonce=NONCES),
    st.builds(p.Proof, nonce=NONCES),
    st.builds(
        p.Members,
        index=INT64,
        addresses=st.dictionaries(st.integers(1, 2**31 - 1), ADDRESSES, max_size=6).map(
            lambda found: dict(sorted(found.items()))
        ),
    ),
    st.builds(p.Vote, candidate=INT32, term=TERMS, last_term=TERMS, last_index=INT64),
    st.builds(p.VoteReply, term=TERMS, is_granted=st.booleans()),
    st.builds(p.Hello, incarnation=INCARNATIONS, knows=INCARNATIONS, client_address=ADDRESSES),
    st.builds(p.TransferVote, term=TERMS, last_term=TERMS, last_index=INT64),
    st.builds(
        p.HintedVoteReply, term=TERMS, is_granted=st.booleans(), hint_index=INT64, hint_term=TERMS
    ),
    st.builds(p.PreVote, term=TERMS, last_term=TERMS, last_index=INT64),
    st.builds(
        p.PreVoteReply, term=TERMS, is_granted=st.booleans(), hint_index=INT64, hint_term=TERMS
    ),
    st.builds(
        p.AppendReply,
        term=TERMS,
        is_rejected=st.booleans(),
        index=INT64,
        hint_index=INT64,
        hint_term=TERMS,
    ),
    st.builds(p.Heartbeat, term=TERMS, commit=INT64, context=INT64),
    st.builds(p.HeartbeatReply, term=TERMS, context=INT64),
    st.builds(p.TimeoutNow, term=TERMS),
    st.builds(p.Read, origin=INT32, context=INT64),
    st.builds(p.ReadReply, context=INT64, index=INT64),
    st.builds(
        p.Offer,
        leader_term=TERMS,
        index=INT64,
        term=TERMS,
        size=st.integers(0, 2**63 - 1),
        checksum=UINT32,
        configuration=st.binary(max_size=80),
    ),
    st.builds(
        p.OfferReply,
        leader_term=TERMS,
        index=INT64,
        term=TERMS,
        offset=INT64,
        standing=STANDINGS,
    ),
    st.builds(
        p.ChunkReply,
        leader_term=TERMS,
        index=INT64,
        term=TERMS,
        offset=INT64,
        standing=STANDINGS,
    ),
)
