"""Packets between nodes: every byte, both ways, in any pieces."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import BadData
from penstock.model import TERM_MAX
from penstock.protocol.peers import Packet, PacketReader, Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.protocol.peers.layouts import BOUNDS
from protocol.peers.samples import ALL, OURS, PACKETS, VECTORS


def read(data: bytes, *, size: int | None = None) -> list[Packet]:
    """Return the packets in ``data``, which arrives in pieces of this size."""
    reader, found = PacketReader(), []
    for offset in range(0, len(data), size or max(1, len(data))):
        reader.feed(data[offset : offset + (size or len(data))])
        while (packet := reader.next()) is not None:
            found.append(packet)
    assert reader.held == 0
    return found


def sealed(kind: int, payload: bytes) -> bytes:
    """Return a packet of any payload, with the right checksum."""
    return bytes((kind,)) + payload + pack(">I", checksum(payload))


def refused(data: bytes) -> BadData:
    """Return why a reader does not take these bytes; nothing is made of them."""
    reader = PacketReader()
    reader.feed(data)
    with pytest.raises(BadData) as caught:
        reader.next()
    return caught.value


# --- bytes ---


@pytest.mark.parametrize(("packet", "text"), VECTORS, ids=lambda v: str(v)[:40])
def test_a_packet_of_taskflux_has_exactly_these_bytes(packet: Packet, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_packet(packet).hex(" ") == data.hex(" ")
    assert read(data) == [packet]


def test_the_samples_have_every_type() -> None:
    assert {encode_packet(packet)[0] for packet in ALL} == set(Type)


@given(PACKETS)
def test_every_packet_is_read_as_it_was_written(packet: Packet) -> None:
    assert read(encode_packet(packet)) == [packet]


@given(st.lists(PACKETS, max_size=6), st.integers(1, 40))
def test_any_split_of_a_stream_gives_the_same_packets(sent: list[Packet], size: int) -> None:
    assert read(b"".join(map(encode_packet, sent)), size=size) == sent


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_a_packet_cut_at_any_byte_is_waited_for(packet: Packet) -> None:
    data = encode_packet(packet)
    for place in range(len(data)):
        reader = PacketReader()
        reader.feed(data[:place])
        assert reader.next() is None
        assert reader.held == place
        reader.feed(data[place:])
        assert reader.next() == packet


def test_ours_have_a_length_behind_their_type_by_which_they_can_be_skipped() -> None:
    for packet in OURS:
        data = encode_packet(packet)
        assert int.from_bytes(data[1:5], "big") == len(data) - 9


def test_a_connect_of_taskflux_is_refused_at_its_first_byte() -> None:
    assert refused(bytes.fromhex("43 00 00 00 01 C3 C5 C0 CC")).found == "43 (C)"


def test_any_byte_but_zero_is_true() -> None:
    assert read(sealed(Type.VOTE_REPLY, bytes(8) + b"\x02")) == [
        p.VoteReply(term=0, is_granted=True)
    ]


# --- what is refused ---


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_a_flipped_bit_behind_the_type_is_never_taken_for_another_packet(packet: Packet) -> None:
    data = encode_packet(packet)
    for place, bit in itertools.product(range(1, len(data)), range(8)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << bit
        reader = PacketReader()
        reader.feed(bytes(flipped))
        try:
            # A longer length is not an error yet; then the packet waits for bytes that do not come.
            assert reader.next() is None, (place, bit)
        except BadData:
            continue


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    reader = PacketReader()
    reader.feed(data)
    try:
        while (packet := reader.next()) is not None:
            assert read(encode_packet(packet)) == [packet]
    except BadData:
        return
    assert reader.held <= len(data)


@given(PACKETS, st.data())
def test_garbage_inside_a_packet_with_a_right_checksum_is_refused_or_read(
    packet: Packet, data: st.DataObject
) -> None:
    raw = bytearray(encode_packet(packet)[1:-4])
    kind = encode_packet(packet)[0]
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reader = PacketReader()
    reader.feed(sealed(kind, bytes(raw)))
    try:
        found = reader.next()
    except BadData:
        return
    assert found is None or encode_packet(found)[0] == kind


def test_an_unknown_type_is_refused_at_its_first_byte() -> None:
    for kind in sorted(set(range(256)) - set(Type)):
        assert "type" in str(refused(bytes((kind,))))


@pytest.mark.parametrize("kind", sorted(Type))
def test_a_type_that_is_not_allowed_is_refused_at_its_first_byte(kind: Type) -> None:
    reader = PacketReader()
    reader.feed(bytes((kind,)))
    with pytest.raises(BadData):
        reader.next(frozenset(Type) - {kind})


@pytest.mark.parametrize("kind", sorted(BOUNDS))
@pytest.mark.parametrize("beyond", [False, True])
def test_an_impossible_length_is_refused_when_it_is_there(kind: int, beyond: bool) -> None:
    least, most = BOUNDS[kind]
    length = most + 1 if beyond else least - 1
    assert "length" in str(refused(bytes((kind,)) + pack(">i", length)))
    reader = PacketReader()
    reader.feed(bytes((kind,)) + pack(">i", most if beyond else least))
    assert reader.next() is None


def test_a_length_of_two_gibibytes_costs_nothing() -> None:
    reader = PacketReader()
    tracemalloc.start()
    reader.feed(b"A" + pack(">i", 2**31 - 1) + bytes(1000))
    with pytest.raises(BadData):
        reader.next()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_packet_that_is_not_whole_costs_what_has_arrived_of_it() -> None:
    reader = PacketReader()
    head = b"A" + pack(">i", p.APPEND_SIZE_MAX)
    tracemalloc.start()
    reader.feed(head)
    for _ in range(100):
        reader.feed(bytes(1000))
        assert reader.next() is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reader.held == 100_005
    assert peak < 400_000


HEAD = pack(">qqqqi", 6, 3, 2, 7, 1)


def append_of(count: int, entries: bytes) -> bytes:
    body = HEAD + pack(">i", count) + entries
    return sealed(Type.APPEND, pack(">i", len(body)) + body)


def members_of(count: int, members: bytes) -> bytes:
    body = pack(">qi", 7, count) + members
    return sealed(Type.MEMBERS, pack(">i", len(body)) + body)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (append_of(-1, b""), "number of entries"),
        (append_of(1, b""), "number of entries"),
        (append_of(2**31 - 1, pack(">qi", 3, 0)), "number of entries"),
        (append_of(1, pack(">qi", 3, 1)), "length of an entry"),
        (append_of(1, pack(">qi", 3, -1) + bytes(8)), "length of an entry"),
        (append_of(1, pack(">qi", 3, 2**31 - 1)), "length of an entry"),
        (append_of(1, pack(">qi", 3, 2) + b"hi"), "length of an entry"),
        (append_of(1, pack(">qi", 3, 2) + b"hi\x00\x01"), "padding"),
        (append_of(1, pack(">qi", 3, 2) + b"hi\x00\x00\x00"), "left over"),
        (append_of(0, pack(">qi", 3, 0)), "left over"),
        (append_of(2, pack(">qi", 3, 9) + bytes(10) + bytes(3)), "inside an entry's head"),
        (members_of(-1, b""), "number of members"),
        (members_of(2**31 - 1, b""), "number of members"),
        (members_of(1, b""), "end inside"),
        (members_of(1, pack(">ii", 0, 0)), "numbered from 1"),
        (members_of(2, pack(">iiii", 2, 0, 1, 0)), "in order"),
        (members_of(2, pack(">iiii", 1, 0, 1, 0)), "in order"),
        (members_of(0, b"\0"), "left over"),
        (members_of(1, pack(">ii", 1, 256) + bytes(256)), "too long"),
        (sealed(Type.CHUNK, pack(">i", 43) + pack(">qqqqq", 1, 1, 1, 0, 2) + b"abc"), "inside"),
        (sealed(Type.CHUNK, pack(">i", 41) + pack(">qqqqq", 1, 1, 1, -1, 2) + b"a"), "inside"),
        (sealed(Type.OFFER, pack(">i", 36) + pack(">qqqqI", 1, 1, 1, -1, 2)), "negative size"),
        (sealed(Type.CHUNK_REPLY, pack(">i", 33) + pack(">qqqqB", 1, 1, 1, 1, 3)), "standing"),
        (sealed(Type.HELLO, pack(">i", 13) + b"\x00" + bytes(12)), "version"),
        (sealed(Type.HELLO, pack(">i", 14) + b"\x01" + bytes(13)), "left over"),
        (sealed(Type.HELLO, pack(">i", 14) + b"\x01" + pack(">i", 1) + b"a" + bytes(8)), "none"),
        (sealed(Type.HELLO, pack(">i", 13) + b"\x01" + pack(">i", -1) + bytes(8)), "negative"),
        (sealed(Type.HELLO, pack(">i", 13) + b"\x01" + pack(">i", 99) + bytes(8)), "end inside"),
        (
            sealed(Type.HELLO, pack(">i", 15) + b"\x01" + bytes(8) + pack(">i", 2) + b"\xff\xff"),
            "UTF-8",
        ),
        (
            sealed(Type.HELLO, pack(">i", 269) + b"\x01" + bytes(8) + pack(">i", 256) + bytes(256)),
            "too long",
        ),
    ],
)
def test_contents_that_cannot_be_are_refused(data: bytes, word: str) -> None:
    assert word in str(refused(data))


@pytest.mark.parametrize("packet", ALL, ids=lambda one: type(one).__name__)
def test_a_wrong_checksum_is_refused(packet: Packet) -> None:
    data = bytearray(encode_packet(packet))
    data[-1] ^= 1
    assert "checksum" in str(refused(bytes(data)))


def with_term(packet: Any, term: int) -> Iterator[Any]:
    """Give the packet with each of its terms replaced."""
    for field in fields(packet):
        if field.name.endswith("term"):
            yield replace(packet, **{field.name: term})
        elif field.name == "terms" and packet.terms:
            yield replace(packet, terms=[term])


TERMED = [packet for packet in ALL if list(with_term(packet, 1))]


@pytest.mark.parametrize("packet", TERMED, ids=lambda one: type(one).__name__)
def test_a_term_beyond_the_last_one_is_refused_in_every_packet(packet: Packet) -> None:
    for changed in with_term(packet, TERM_MAX):
        assert read(encode_packet(changed)) == [changed]
    for term in (TERM_MAX + 1, 2**63 - 1):
        for changed in with_term(packet, term):
            assert refused(encode_packet(changed)).found == str(term)


def test_a_later_version_may_say_more_in_its_greeting() -> None:
    body = b"\x02" + bytes(12) + b"more"
    found = read(sealed(Type.HELLO, pack(">i", len(body)) + body))
    assert found == [p.Hello(incarnation="", knows="", client_address="", version=2)]


def test_the_largest_append_fits_and_a_larger_one_is_not_made() -> None:
    def sized(size: int) -> p.Append:
        return p.Append(
            commit=0,
            term=1,
            previous_term=1,
            previous_index=0,
            leader=1,
            terms=[1],
            payloads=[bytes(size)],
        )

    room = p.APPEND_SIZE_MAX - 40 - 12
    assert read(encode_packet(sized(room - room % 8)))
    with pytest.raises(AssertionError):
        encode_packet(sized(room + 1))
