"""Queue records in a node's metadata: real files, records made by hand, and damage."""

from __future__ import annotations

from random import Random

import pytest

from penstock.formats.rabbitmq.metadata import (
    ITEM_HEAD,
    LARGE_SIZE,
    LOG_MARKER,
    QueueRecord,
    decode_member_config,
    scan_log,
)
from penstock.formats.rabbitmq.terms import Atom, ErlangTerm, Map, encode_term
from support.rabbitmq_golden import members

C9 = {str(path): data for path, data in members("c9_quorum_and_stream_kill9")}
CONFIG = C9["quorum/rabbitq@localhost/2F_QQEONZI9BVGJ37/config"]
NODE = Atom("rabbit@localhost")


def item(term: ErlangTerm) -> bytes:
    raw = encode_term(term)
    checksum = bytes(16) if len(raw) >= LARGE_SIZE else b""
    return ITEM_HEAD.pack(len(raw), b"bWLA") + checksum + raw


def log(*terms: ErlangTerm) -> bytes:
    return LOG_MARKER + bytes(4) + b"".join(map(item, terms))


def resource(queue: bytes) -> tuple[ErlangTerm, ...]:
    return (Atom("resource"), b"/", Atom("queue"), queue)


def record(queue: bytes, kind: str, state: Map = Map(())) -> tuple[ErlangTerm, ...]:  # noqa: B008 - a value
    return (Atom("amqqueue"), resource(queue), Atom("true"), Atom(kind), state)


def change(queue: bytes, kind: str, operation: str) -> tuple[ErlangTerm, ...]:
    key = (Atom("rabbit_durable_queue"), resource(queue))
    return (key, record(queue, kind), Atom(operation))


def test_a_real_log_names_the_queues_and_their_types() -> None:
    content = scan_log(C9["LATEST.LOG"])
    assert content.node == "rabbitq@localhost"
    nodes = ("rabbitq@localhost",)
    assert dict(content.changes) == {
        (b"/", b"cl"): QueueRecord(vhost=b"/", queue=b"cl", type=None),
        (b"/", b"qq"): QueueRecord(vhost=b"/", queue=b"qq", type="quorum", nodes=nodes),
        (b"/", b"st"): QueueRecord(
            vhost=b"/",
            queue=b"st",
            type="stream",
            nodes=nodes,
            directory="__st_1794906611941994819",
        ),
    }


def test_a_table_holds_bare_records_and_a_log_changes() -> None:
    table = log(
        (Atom("log_header"), Atom("dcd_log"), [1], [2], NODE, (1, 2, 3)),
        record(b"a", "rabbit_quorum_queue"),
    )
    assert scan_log(table).node == NODE.name
    assert [(key, found.type) for key, found in scan_log(table).changes if found] == [
        ((b"/", b"a"), "quorum")
    ]
    changes = log(
        change(b"b", "rabbit_stream_queue", "write"),
        change(b"b", "rabbit_stream_queue", "delete"),
    )
    assert [(key, found and found.type) for key, found in scan_log(changes).changes] == [
        ((b"/", b"b"), "stream"),
        ((b"/", b"b"), None),
    ]
    assert scan_log(changes).changes[1][1] is None


def test_large_terms_have_a_checksum_before_them() -> None:
    padding = Map(((Atom("padding"), bytes(LARGE_SIZE)),))
    content = scan_log(log(record(b"a", "rabbit_quorum_queue", padding), record(b"b", "other")))
    assert [key for key, _ in content.changes] == [(b"/", b"a"), (b"/", b"b")]


def test_damaged_logs_are_read_as_far_as_they_go() -> None:
    data = C9["LATEST.LOG"]
    random = Random(21)
    for end in range(0, len(data), 97):
        scan_log(data[:end])
    for _ in range(200):
        flipped = bytearray(data)
        flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
        scan_log(bytes(flipped))
    assert scan_log(b"no log").changes == []


@pytest.mark.parametrize(
    ("vhost", "queue", "expected"),
    [
        (b'<<"/">>', b'<<"qq">>', (b"/", b"qq")),
        (b"<<0,255>>", b'<<"a\\"b\\\\c\\n\\101">>', (b"\x00\xff", b'a"b\\c\nA')),
        (b'<<"x"\n  "y">>', b"<<>>", (b"xy", b"")),
        (b'<<"caf\xc3\xa9"/utf8>>', b'<<"\\8">>', ("café".encode(), b"8")),
    ],
)
def test_names_are_read_as_erlang_prints_them(
    vhost: bytes, queue: bytes, expected: tuple[bytes, bytes]
) -> None:
    text = b"#{name => {resource," + vhost + b",\n     queue," + queue + b"}}."
    assert decode_member_config(text) == expected


def test_a_real_configuration_names_its_queue_and_a_cut_one_may_not() -> None:
    assert decode_member_config(CONFIG) == (b"/", b"qq")
    assert {decode_member_config(CONFIG[:end]) for end in range(len(CONFIG))} == {
        None,
        (b"/", b"qq"),
    }
