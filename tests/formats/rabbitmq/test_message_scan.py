"""Messages in bulk: the kernel says what ``decode_message`` says, or leaves the message to it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData
from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.message_scan import (
    FIELD_COUNT,
    KEYS_MAX,
    MessageColumns,
    Status,
    routing_keys,
    scan_messages,
)
from penstock.formats.rabbitmq.messages import Content, Message, decode_message, encode_message
from penstock.formats.rabbitmq.properties import Properties
from penstock.formats.rabbitmq.terms import Atom, AtomEncoding, Map
from support.damage import cuts, flipped
from support.rabbitmq_directories import NAMES
from support.rabbitmq_golden import Files, snapshot

ID = bytes(range(16))
BLOCK = bytes.fromhex("100002")


def usual(**changes: Any) -> Message:
    fields: dict[str, Any] = {
        "vhost": b"/",
        "exchange": b"topics",
        "routing_keys": (b"orders",),
        "content": Content(stored_properties=BLOCK, fragments=(b"the body",)),
        "id": ID,
        "is_persistent": True,
    }
    return Message(**fields | changes)


def scanned(terms: list[bytes]) -> tuple[MessageColumns, bytes]:
    """Return what the kernel says of terms in one buffer, with other bytes between them."""
    data = b"\x83h"
    starts = []
    for term in terms:
        starts.append(len(data))
        data += term + b"\x6d\x83"
    found = scan_messages(
        data,
        np.array(starts, dtype=np.int64),
        np.array([len(term) for term in terms], dtype=np.int64),
    )
    return found, data


def message_at(found: MessageColumns, data: bytes, row: int) -> Message:
    """Return the message that the columns speak of."""

    def stretch(name: str) -> bytes:
        offset = int(getattr(found, f"{name}_offset")[row])
        return data[offset : offset + int(getattr(found, f"{name}_length")[row])]

    body = stretch("body")
    id_offset = int(found.id_offset[row])
    return Message(
        vhost=stretch("vhost"),
        exchange=stretch("exchange"),
        routing_keys=routing_keys(np.frombuffer(data, dtype=np.uint8), found, row),
        content=Content(stored_properties=stretch("properties"), fragments=(body,)),
        id=data[id_offset : id_offset + 16],
        is_persistent=bool(found.is_persistent[row]),
    )


def joined(message: Message) -> Message:
    """Return a decoded message with its body in one piece, as the columns have it."""
    content = message.content
    assert isinstance(content.stored_properties, bytes)
    return Message(
        vhost=message.vhost,
        exchange=message.exchange,
        routing_keys=message.routing_keys,
        content=Content(stored_properties=content.stored_properties, fragments=(content.body,)),
        id=message.id,
        is_persistent=message.is_persistent,
    )


def check(terms: list[bytes]) -> list[Status]:
    """Hold the kernel to ``decode_message``; return who reads which term."""
    found, data = scanned(terms)
    for row, term in enumerate(terms):
        if found.status[row] == Status.FAST:
            assert message_at(found, data, row) == joined(decode_message(term))
            size = int(found.address_length[row])
            assert term[size : size + 1] == b"m"  # the tag of the property block
        else:
            assert all(getattr(found, name)[row] == 0 for name in MessageColumns.__slots__[1:])
    return [Status(int(status)) for status in found.status]


# --- what is read in bulk ------------------------------------------------------------------------

names = st.binary(max_size=20)
messages = st.builds(
    usual,
    vhost=names,
    exchange=names,
    routing_keys=st.lists(names, max_size=4).map(tuple),
    content=st.builds(
        Content,
        stored_properties=st.binary(max_size=30),
        fragments=st.lists(st.binary(max_size=60), max_size=1).map(tuple),
    ),
    id=st.binary(min_size=16, max_size=16),
    is_persistent=st.booleans(),
)
atoms = st.sampled_from(list(AtomEncoding))


@given(st.lists(st.builds(lambda m, a: encode_message(m, atoms=a), messages, atoms), max_size=6))
def test_messages_of_the_usual_shape_are_read_in_bulk(terms: list[bytes]) -> None:
    assert check(terms) == [Status.FAST] * len(terms)


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 2**32))
def test_messages_are_read_alike_whatever_stands_before_them(chosen: list[int], seed: int) -> None:
    """An address that is the same as the one before is not looked into again."""
    random = Random(seed)
    known = [encode_message(usual(exchange=name, id=random.randbytes(16))) for name in (b"", b"x")]
    known += [b"", known[0][:-1], known[0][:70], flipped(known[0], random.randrange(8 * 70))]
    check([known[number] for number in chosen])


@pytest.mark.parametrize("tag", [b"\x73", b"\x76"])
def test_every_way_to_write_an_atom_or_a_tuple_is_known(tag: bytes) -> None:
    """Small Latin-1 atoms have a length of one byte, atoms in UTF-8 one of two bytes."""
    term = encode_message(usual())
    changed = term
    for name in (b"basic_message", b"resource", b"exchange", b"content", b"none", b"true"):
        head = tag + len(name).to_bytes(1 if tag == b"\x73" else 2, "big")
        changed = changed.replace(b"\x64" + len(name).to_bytes(2, "big") + name, head + name)
    changed = changed.replace(b"\x68\x06", b"\x69\x00\x00\x00\x06").replace(
        b"\x68\x04", b"\x69\x00\x00\x00\x04"
    )
    assert changed != term
    assert decode_message(changed) == decode_message(term)
    assert check([changed]) == [Status.FAST]


def test_the_address_of_two_messages_is_the_same_if_they_were_routed_alike() -> None:
    content = Content(stored_properties=b"\x00\x00", fragments=())
    terms = [
        encode_message(usual()),
        encode_message(usual(id=ID[::-1], is_persistent=False, content=content)),
        encode_message(usual(routing_keys=(b"order", b"s"))),
        encode_message(usual(exchange=b"other")),
    ]
    found, _ = scanned(terms)
    addresses = [
        term[:length] for term, length in zip(terms, found.address_length.tolist(), strict=True)
    ]
    assert addresses[0] == addresses[1]
    assert len(set(addresses)) == 3
    assert found.address.tolist() == [1, 1, 2, 3]


def test_no_messages_are_no_rows() -> None:
    found, _ = scanned([])
    assert len(found) == 0
    assert len(MessageColumns.__slots__) == FIELD_COUNT


# --- what is left to the plain decoder -----------------------------------------------------------

block_and_term = Content(stored_properties=Properties(priority=3), fragments=(b"body",))
others = {
    "several fragments": usual(content=Content(stored_properties=BLOCK, fragments=(b"a", b"b"))),
    "properties as a term": usual(content=block_and_term),
    "another protocol": usual(
        content=Content(
            stored_properties=BLOCK, fragments=(), protocol=Atom("rabbit_framing_amqp_0_8")
        )
    ),
    "a container": usual(vhost=None, annotations=Map(((Atom("x"), b"topics"),))),
    "very many keys": usual(routing_keys=(b"",) * (KEYS_MAX + 1)),
}


@pytest.mark.parametrize("what", others)
def test_rare_shapes_are_left_to_the_plain_decoder(what: str) -> None:
    term = encode_message(others[what])
    decode_message(term)
    assert check([term]) == [Status.SCALAR]


def test_as_many_keys_as_there_may_be_are_read_in_bulk() -> None:
    assert check([encode_message(usual(routing_keys=(b"k",) * KEYS_MAX))]) == [Status.FAST]


def test_a_message_that_is_cut_anywhere_is_left_to_the_plain_decoder() -> None:
    term = encode_message(usual())
    for cut in (*cuts(term), term + b"\x00"):
        assert check([cut]) == [Status.SCALAR]
        with pytest.raises(BadData):
            decode_message(cut)


@pytest.mark.parametrize("encoding", list(AtomEncoding))
def test_every_flipped_bit_is_read_alike_or_left_to_the_plain_decoder(
    encoding: AtomEncoding,
) -> None:
    term = encode_message(usual(routing_keys=(b"a", b"bc")), atoms=encoding)
    found = check([flipped(term, bit) for bit in range(8 * len(term))])
    assert Status.FAST in found
    assert Status.SCALAR in found


@given(seed=st.integers(0, 2**32))
def test_damage_never_makes_the_two_differ(seed: int) -> None:
    random = Random(seed)
    encoding = random.choice(list(AtomEncoding))
    term = bytearray(encode_message(usual(), atoms=encoding))
    for _ in range(random.randrange(1, 4)):
        first = random.randrange(len(term))
        end = first + random.randrange(4)
        term[first:end] = random.choice(
            (random.randbytes(end - first), random.randbytes(2), bytes((109, 0, 0, 0)), b"\x6a")
        )
    check([bytes(term)])


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_read_alike_or_left_to_the_plain_decoder(terms: list[bytes]) -> None:
    check([*terms, *(b"\x83\x68" + term for term in terms)])


def test_a_length_beyond_the_term_is_not_believed_although_the_buffer_goes_on() -> None:
    term = encode_message(usual())
    assert check([term[:-30], term]) == [Status.SCALAR, Status.FAST]


# --- real messages -------------------------------------------------------------------------------


@cache
def real_terms(name: str) -> list[bytes]:
    return [
        term
        for vhost in snapshot(name).vhosts.values()
        for files in (vhost.store, *vhost.queues.values())
        for term in terms_in(files, vhost.entry_count)
    ]


def terms_in(files: Files, entry_count: int) -> Iterator[bytes]:
    for name, data in files.items():
        if name == "journal.jif":
            pieces = list(journal.scan(data))
        elif (number := segment.parse_segment_name(name)) is not None:
            pieces = list(segment.scan(data, segment=number, entry_count=entry_count))
        elif name.endswith((".rdq", ".rdt")):
            for record in message_store.scan(data):
                if record.status is message_store.Status.OK:
                    yield message_store.decode_message(data, record)
            continue
        else:
            continue
        for piece in pieces:
            end = piece.offset + piece.size
            if piece.length:
                yield data[end - piece.length : end]


@pytest.mark.parametrize("name", NAMES)
def test_real_messages_are_read_alike(name: str) -> None:
    """Interpreted it would take long for large bodies, so only the compiled kernel runs here."""
    terms = real_terms(name)
    found, data = scanned(terms)
    fast = 0
    for row, term in enumerate(terms):
        if found.status[row] == Status.FAST:
            assert message_at(found, data, row) == joined(decode_message(term))
            fast += 1
    assert fast > len(terms) / 2 or len(terms) < 10
