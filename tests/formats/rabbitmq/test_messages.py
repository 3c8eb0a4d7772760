"""Messages: golden bytes, all that a real broker left, round trips, damage, and copies that are not made."""

from __future__ import annotations

import json
import re
import tarfile
import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    BadData,
    CorruptData,
    InvalidValue,
    TruncatedData,
    UnsupportedVersion,
)
from penstock.formats.rabbitmq.messages import (
    EMBED_BELOW,
    NONE,
    Content,
    Message,
    decode_message,
    encode_message,
    is_embedded,
)
from penstock.formats.rabbitmq.names import StoredQueue, decode_queue_name
from penstock.formats.rabbitmq.properties import (
    Decimal,
    Header,
    Kind,
    Properties,
    Value,
    encode_properties,
    json_of_properties,
    properties_of_json,
)
from penstock.formats.rabbitmq.terms import (
    FALSE,
    TRUE,
    Atom,
    AtomEncoding,
    ErlangTerm,
    Map,
    decode_term,
    encode_term,
)
from support.damage import cuts, flipped
from support.refusal import attempted
from support.report import report

GOLDEN = Path(__file__).parents[2] / "golden" / "rabbitmq"

ID = bytes.fromhex("513576AAFC0FF7A2149C26328CA00CBB")
HELLO = bytes.fromhex(
    "83 6806 64000D62617369635F6D657373616765"  # basic_message
    "6804 6400087265736F75726365 6D000000012F 64000865786368616E6765 6D00000000"
    "6C00000001 6D000000027131 6A"  # the key q1
    "6806 640007636F6E74656E74 613C 6400046E6F6E65 6D00000003100002"
    "6400197261626269745F6672616D696E675F616D71705F305F395F31"
    "6C00000001 6D0000000768656C6C6F2030 6A"
    "6D00000010 513576AAFC0FF7A2149C26328CA00CBB 64000474727565"
)
BLOCK = bytes.fromhex("100002")


def message(**changes: Any) -> Message:
    fields: dict[str, Any] = {
        "vhost": b"/",
        "exchange": b"",
        "routing_keys": (b"q1",),
        "content": Content(stored_properties=BLOCK, fragments=(b"hello 0",)),
        "id": ID,
        "is_persistent": True,
    }
    return Message(**fields | changes)


# --- golden bytes --------------------------------------------------------------------------------


def test_the_first_message_of_a_journal_means_what_it_did() -> None:
    assert len(HELLO) == 170
    found = decode_message(HELLO)
    assert found == message()
    assert found.content.body == b"hello 0"
    assert found.content.body_size == 7
    assert found.content.properties == Properties(delivery_mode=2)
    assert encode_message(found) == HELLO
    assert decode_message(memoryview(HELLO)) == found


@given(key=st.binary(max_size=50), body=st.binary(min_size=1, max_size=50))
def test_the_size_of_a_plain_message_is_known(key: bytes, body: bytes) -> None:
    content = Content(stored_properties=BLOCK, fragments=(body,))
    data = encode_message(message(routing_keys=(key,), content=content))
    assert len(data) == 161 + len(key) + len(body)


def test_later_releases_of_erlang_write_atoms_in_utf_8() -> None:
    data = encode_message(message(), atoms=AtomEncoding.UTF_8)
    assert b"\x77\x0dbasic_message" in data
    assert decode_message(data) == message()


def test_the_page_shows_these_bytes() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/rabbitmq-messages.md").read_text()
    dump = page.split("170 bytes:\n\n```\n")[1].split("```")[0]
    rows = [re.fullmatch(r"\d* +((?:[0-9A-F]{2} ?)+?)(?:  .*)?", row) for row in dump.splitlines()]
    assert b"".join(bytes.fromhex(row[1]) for row in rows if row) == HELLO
    shown = json.loads(page.split("```json\n")[1].split("```")[0])
    assert json_of_properties(properties_of_json(shown)) == shown


# --- what a broker left --------------------------------------------------------------------------


@cache
def archive(name: str) -> dict[Path, bytes]:
    files = {}
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as opened:
        for member in opened.getmembers():
            file = opened.extractfile(member)
            if file is not None and "vhosts" in member.name:
                files[Path(member.name)] = file.read()
    return files


def journal(data: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield kind, number, message id and embedded term of every record; plain, for this test alone."""
    offset = 0
    while offset < len(data):
        word = unpack_from(">Q", data, offset)[0]
        kind, number = word >> 62, word & (1 << 62) - 1
        if kind > 1:
            yield kind, number, b"", b""
            offset += 8
        else:
            size = unpack_from(">I", data, offset + 36)[0]
            yield kind, number, data[offset + 8 : offset + 24], data[offset + 40 :][:size]
            offset += 40 + size


def store(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset = 0
    while offset < len(data):
        size = unpack_from(">Q", data, offset)[0]
        yield data[offset + 8 : offset + 24], data[offset + 24 : offset + 8 + size]
        offset += size + 9


def messages_left(name: str) -> Iterator[tuple[StoredQueue, list[tuple[bytes, Message]]]]:
    """Yield each queue with its messages in their order, each with its id in the index."""
    files = archive(name)
    stored: dict[bytes, bytes] = {}
    for path, data in files.items():
        if path.suffix == ".rdq":
            stored.update(store(data))
    for path, data in files.items():
        if path.name != "journal.jif":
            continue
        queue = decode_queue_name(files[path.with_name(".queue_name")], directory=path.parent.name)
        waiting: dict[int, tuple[bytes, bytes]] = {}
        for kind, number, id_, term in journal(data):
            if kind <= 1:
                waiting[number] = id_, term or stored[id_]
            elif kind == 3:
                del waiting[number]
        found = [(id_, decode_message(term)) for _, (id_, term) in sorted(waiting.items())]
        yield queue, found


def shown(item: Value) -> Any:
    """Return a header as the truth shows it, which leaves types of integers out."""
    value: Any = item.value
    match item.kind:
        case Kind.TABLE:
            return {x.name.decode(): shown(x.value) for x in value}
        case Kind.ARRAY:
            return [shown(x) for x in value]
        case Kind.TEXT:
            return value.decode()
        case Kind.BINARY:
            return {"$b64": b64encode(value).decode()}
        case Kind.TIMESTAMP:
            return {"$timestamp": value}
        case Kind.DECIMAL:
            assert isinstance(value, Decimal)
            return {"$decimal": [value.scale, value.unscaled]}
    return value


def shown_properties(properties: Properties, extra: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in Properties.__dataclass_fields__:
        value = getattr(properties, name)
        if name == "headers" and value is not None:
            headers = {
                x.name.decode(): shown(x.value) for x in value if x.name.decode() not in extra
            }
            if headers or not extra:
                found[name] = headers
        elif value is not None:
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def test_all_messages_of_a_broker_are_what_its_clients_published() -> None:
    name = "c4_props_ttl_priority_kill9"
    truth: dict[tuple[str, str, int | None], list[dict[str, Any]]] = {}
    for line in (GOLDEN / f"{name}.truth.jsonl").read_text().splitlines():
        row = json.loads(line)
        truth.setdefault((row["vhost"], row["queue"], row["bucket"]), []).append(row)
    count = 0
    for queue, found in messages_left(name):
        rows = truth.pop((queue.vhost.decode(), queue.queue.decode(), queue.priority), [])
        for (id_, message), row in zip(found, rows, strict=True):
            assert message.id == id_
            assert message.vhost == queue.vhost
            assert message.exchange.decode() == row["exchange"]
            assert [key.decode() for key in message.routing_keys] == row["routing_keys"]
            assert message.is_persistent == row["persistent"]
            assert message.content.body_size == row["body_len"]
            assert sha256(message.content.body).hexdigest() == row["body_sha256"]
            extra = row.get("extra_headers", [])
            assert shown_properties(message.content.properties, extra) == row["properties"]
            count += 1
    assert not truth
    assert count == 328
    report(f"messages of a real broker: {count} equal to what was published")


def test_all_messages_of_a_broker_are_written_again_byte_for_byte() -> None:
    """Those that it changed itself too: these have properties as a term and no protocol."""
    changed = embedded = 0
    for path, data in archive("c4_props_ttl_priority_kill9").items():
        if path.name == "journal.jif":
            terms = [term for kind, _, _, term in journal(data) if kind <= 1 and term]
            embedded += len(terms)
        elif path.suffix == ".rdq":
            terms = [term for _, term in store(data)]
        else:
            continue
        for term in terms:
            found = decode_message(term)
            assert encode_message(found) == term
            assert is_embedded(found.content, below=EMBED_BELOW) == (path.suffix == ".jif")
            if isinstance(found.content.stored_properties, Properties):
                assert found.content.protocol == NONE
                changed += 1
    assert embedded > 200
    assert changed == 48


# --- round trips ---------------------------------------------------------------------------------

properties = st.one_of(
    st.binary(max_size=9),
    st.builds(
        Properties,
        content_type=st.none() | st.binary(max_size=9),
        headers=st.none() | st.just((Header(b"x-death", Value(Kind.ARRAY, ())),)),
        timestamp=st.none() | st.integers(0, 2**64 - 1),
    ),
)
contents = st.builds(
    Content,
    stored_properties=properties,
    fragments=st.lists(st.binary(max_size=20), max_size=4).map(tuple),
    protocol=st.sampled_from([NONE, Atom("rabbit_framing_amqp_0_9_1")]),
)
keys = st.lists(st.binary(max_size=255), max_size=3).map(tuple)


@given(
    st.builds(
        Message,
        vhost=st.binary(max_size=9),
        exchange=st.binary(max_size=9),
        routing_keys=keys,
        content=contents,
        id=st.binary(min_size=16, max_size=16),
        is_persistent=st.booleans(),
    ),
    st.sampled_from(AtomEncoding),
)
def test_every_message_comes_back(found: Message, encoding: AtomEncoding) -> None:
    data = encode_message(found, atoms=encoding)
    again = decode_message(data)
    assert again == found
    assert again.content.body == b"".join(found.content.fragments)
    assert encode_message(again, atoms=encoding) == data


def test_fragments_are_joined_in_the_order_of_the_frames() -> None:
    content = Content(stored_properties=BLOCK, fragments=(b"first", b"", b"second", b"third"))
    data = encode_message(message(content=content))
    assert data.index(b"third") < data.index(b"second") < data.index(b"first")
    assert decode_message(data).content.body == b"firstsecondthird"


def test_a_message_without_a_body_has_no_fragments() -> None:
    data = encode_message(message(content=Content(stored_properties=BLOCK, fragments=())))
    assert decode_message(data).content.body == b""


def content_term(**changes: ErlangTerm) -> ErlangTerm:
    fields: dict[str, ErlangTerm] = {
        "name": Atom("content"),
        "class_": 60,
        "decoded": NONE,
        "block": BLOCK,
        "protocol": Atom("rabbit_framing_amqp_0_9_1"),
        "fragments": [b"hi"],
    }
    return tuple((fields | changes).values())


def message_term(**changes: ErlangTerm) -> tuple[ErlangTerm, ...]:
    fields: dict[str, ErlangTerm] = {
        "name": Atom("basic_message"),
        "source": (Atom("resource"), b"/", Atom("exchange"), b""),
        "keys": [b"q1"],
        "content": content_term(),
        "id": ID,
        "flag": TRUE,
    }
    return tuple((fields | changes).values())


def test_where_both_are_there_the_block_counts() -> None:
    decoded = (Atom("P_basic"), *[Atom("undefined")] * 14)
    term = message_term(content=content_term(decoded=decoded))
    assert decode_message(encode_term(term)).content.stored_properties == BLOCK


# --- containers ----------------------------------------------------------------------------------


def container(*pairs: tuple[ErlangTerm, ErlangTerm], protocol: str = "mc_amqpl") -> bytes:
    return encode_term((Atom("mc"), Atom(protocol), content_term(), Map(pairs)))


FULL: list[tuple[ErlangTerm, ErlangTerm]] = [
    (Atom("x"), b"amq.topic"),
    (Atom("rk"), [b"a.b", b"c"]),
    (Atom("d"), FALSE),
    (Atom("id"), ID),
    (Atom("rts"), 1_700_000_000_000),
    (b"x-first-death-queue", b"q"),
]


def test_a_container_is_read_and_written_byte_for_byte() -> None:
    data = container(*FULL)
    found = decode_message(data)
    assert found.exchange == b"amq.topic"
    assert found.routing_keys == (b"a.b", b"c")
    assert not found.is_persistent
    assert found.id == ID
    assert found.vhost is None
    assert found.content.body == b"hi"
    assert found.annotations is not None
    assert found.annotations.get("rts") == 1_700_000_000_000
    assert encode_message(found) == data


def test_a_container_that_says_nothing_is_persistent() -> None:
    found = decode_message(container())
    assert found.is_persistent
    assert (found.exchange, found.routing_keys, found.id) == (b"", (), None)


def test_a_container_of_another_protocol_is_not_guessed_at() -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_message(container(*FULL, protocol="mc_mqtt"))
    assert caught.value.found == "mc_mqtt"


# --- damage --------------------------------------------------------------------------------------

SAMPLES = [HELLO, container(*FULL)]


@pytest.mark.parametrize("data", SAMPLES, ids=["basic_message", "container"])
def test_a_message_cut_anywhere_is_truncated(data: bytes) -> None:
    for cut in cuts(data):
        with pytest.raises(TruncatedData):
            decode_message(cut)


@pytest.mark.parametrize("data", SAMPLES, ids=["basic_message", "container"])
def test_a_flipped_bit_gives_a_message_or_bad_data(data: bytes) -> None:
    for bit in range(8 * len(data)):
        found = attempted(decode_message, flipped(data, bit))
        if not isinstance(found, BadData):
            assert decode_message(encode_message(found)) == found
            attempted(lambda content: content.properties, found.content)


@pytest.mark.parametrize(
    "term",
    [
        Atom("basic_message"),
        message_term()[:-1],
        list(message_term()),
        message_term(name=Atom("message")),
        message_term(source=b"/"),
        message_term(source=(Atom("resource"), b"/", Atom("queue"), b"")),
        message_term(source=(Atom("resource"), Atom("undefined"), Atom("exchange"), b"")),
        message_term(keys=b"q1"),
        message_term(keys=[Atom("q1")]),
        message_term(id=ID[:-1]),
        message_term(id=Atom("undefined")),
        message_term(flag=Atom("maybe")),
        message_term(flag=1),
        message_term(content=NONE),
        message_term(content=content_term(class_=50)),
        message_term(content=content_term(block=NONE)),
        message_term(content=content_term(block=5)),
        message_term(content=content_term(fragments=b"hi")),
        message_term(content=content_term(fragments=[5, Atom("hi")])),
        message_term(content=content_term(protocol=5)),
    ],
    ids=lambda term: str(term)[:40],
)
def test_terms_that_are_no_messages_are_refused(term: ErlangTerm) -> None:
    with pytest.raises(CorruptData):
        decode_message(encode_term(term))


def test_content_of_another_protocol_is_not_guessed_at() -> None:
    term = message_term(content=content_term(protocol=Atom("rabbit_framing_amqp_1_0")))
    with pytest.raises(UnsupportedVersion):
        decode_message(encode_term(term))


def test_damaged_properties_leave_the_body_readable() -> None:
    content = Content(stored_properties=b"\x10", fragments=(b"body",))
    found = decode_message(encode_message(message(content=content)))
    assert found.content.body == b"body"
    with pytest.raises(TruncatedData):
        _ = found.content.properties


@given(st.binary(max_size=80))
def test_garbage_gives_a_message_or_bad_data(data: bytes) -> None:
    for start in (b"", b"\x83", HELLO[:20], HELLO[:90]):
        attempted(decode_message, start + data)


def test_an_id_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidValue):
        message(id=b"short")


# --- size ----------------------------------------------------------------------------------------


def test_a_large_body_is_not_copied_until_it_is_asked_for_and_then_once() -> None:
    size = 8 << 20
    halves = (bytes(size // 2), bytes(size // 2))
    data = encode_message(message(content=Content(stored_properties=BLOCK, fragments=halves)))
    tracemalloc.start()
    try:
        found = decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        body = found.content.body
        assert tracemalloc.get_traced_memory()[1] < size + 100_000
    finally:
        tracemalloc.stop()
    assert len(body) == found.content.body_size == size


@pytest.mark.parametrize(
    ("size", "expected"), [(0, True), (4092, True), (4093, False), (10_000, False)]
)
def test_a_message_is_embedded_below_4096_bytes_with_its_properties(
    size: int, expected: bool
) -> None:
    content = Content(stored_properties=BLOCK, fragments=(bytes(size),))
    assert is_embedded(content, below=EMBED_BELOW) == expected
    assert not is_embedded(content, below=0)


def test_a_header_without_bytes_counts_as_a_hundred() -> None:
    headers = (Header(b"n", Value(Kind.VOID, None)),) * 40
    stored = Properties(headers=headers, content_type=b"not counted")
    for size, expected in ((95, True), (96, False)):
        content = Content(stored_properties=stored, fragments=(bytes(size),))
        assert is_embedded(content, below=EMBED_BELOW) == expected
        assert content.property_block == encode_properties(stored)


def test_terms_of_messages_are_plain_terms() -> None:
    term = decode_term(HELLO)
    assert isinstance(term, tuple)
    assert encode_term(term) == HELLO
