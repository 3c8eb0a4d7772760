"""The messages of a broker's directory: those that real ones must have, and which of them are asked for."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PathRefused
from penstock.families.damage import Damage
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.rows import tasks
from penstock.formats.rabbitmq import journal, queue_v2, segment
from penstock.formats.rabbitmq.journal import SequenceNumber
from penstock.formats.rabbitmq.messages import Content
from support.rabbitmq_directories import (
    ENTRY_COUNT,
    NAMES,
    Directory,
    journaled,
    message,
    message_id,
    publish,
    stored,
    truth,
    unpacked,
)
from support.rabbitmq_golden import holds_expiry

NEVER = Wanted(as_of_us=0)
YEAR_2001_US = 10**15

Row = dict[str, Any]


def listed(
    path: Path, wanted: Wanted = NEVER, *, vhost: bytes | None = None, queue: bytes | None = None
) -> tuple[list[Row], list[Damage]]:
    met: list[Damage] = []
    rows = tasks(resolve(path), wanted, report=met.append, vhost=vhost, queue=queue)
    return list(rows), met


def bodies(rows: list[Row]) -> list[bytes]:
    return [b64decode(row["payload"]) for row in rows]


# --- what real brokers left ----------------------------------------------------------------------

DAMAGE = {
    "c8_damage_dup_flush": {"flushed"},
    "c8_damage_journal_zero_tail": {"zeros"},
    "c8_damage_segment_all_zero": {"zeros"},
    "c8_damage_segment_deleted_journal_kept": {"orphan"},
    "c8_damage_store_file_missing": {"missing"},
    "c8_damage_store_marker_bad": {"missing"},
    "c8_damage_torn_journal": {"torn"},
    "c8_damage_torn_journal_ack": {"torn"},
    "c8_damage_torn_segment": {"flushed", "torn"},
    "c8_damage_torn_store_tail": {"missing"},
}


def shown(item: Row) -> Any:
    """Return a header as the truth shows it, which leaves types of integers out."""
    value = item["value"]
    match item["type"]:
        case "table":
            return {x["name"]: shown(x) for x in value}
        case "array":
            return [shown(x) for x in value]
        case "timestamp":
            return {"$timestamp": value}
        case "decimal":
            return {"$decimal": [value["scale"], value["unscaled"]]}
        case "binary":
            return {"$b64": value["base64"]}
    return value


def shown_properties(properties: Row, extra: list[str]) -> Row:
    found = dict(properties)
    if "headers" in found:
        found["headers"] = {x["name"]: shown(x) for x in found["headers"] if x["name"] not in extra}
        if extra and not found["headers"]:
            del found["headers"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_real_directory_yields_what_its_clients_know_must_be_there(
    tmp_path: Path, name: str
) -> None:
    rows, met = listed(unpacked(name, tmp_path))
    expected = truth(name)
    assert len(rows) == len(expected)
    for row, known in zip(rows, expected, strict=True):
        assert (row["vhost"], row["queue"]) == (known["vhost"], known["queue"])
        assert row["key"] == -(known["bucket"] or 0)
        assert row["persistent"] is known["persistent"]
        assert row["exchange"] == known["exchange"]
        assert row["routing_keys"] == known["routing_keys"]
        assert holds_expiry(row["expiry_us"] or 0, known)
        extra = known.get("extra_headers", [])
        assert shown_properties(row["properties"], extra) == known["properties"]
        body = b64decode(row["payload"])
        assert len(body) == known["body_len"]
        assert known.get("body_sha256") in (None, sha256(body).hexdigest())
        assert known.get("body_b64") in (None, row["payload"])
    assert {damage.status for damage in met} == DAMAGE.get(name, set())
    for damage in met:
        assert damage.path.is_file()
        assert damage.offset is not None


def test_an_interrupted_merge_loses_no_message_although_the_broker_loses_four(
    tmp_path: Path,
) -> None:
    rows, _ = listed(unpacked("c8_damage_crashed_merge", tmp_path), queue=b"d_big")
    assert len(rows) == 70


def test_reading_leaves_a_directory_as_it_was(tmp_path: Path) -> None:
    directory = unpacked("c8_damage_crashed_merge", tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    listed(directory)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


# --- which messages ------------------------------------------------------------------------------


def test_priorities_come_before_sequence_numbers(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    for priority in (0, 2, 10):
        queue = made.queue(b"orders", priority=priority)
        made.journal(
            queue, *(journaled(n, publish(n, b"%d-%d" % (priority, n))) for n in (20, 3, 1))
        )
    rows, met = listed(made.path)
    assert [(row["key"], row["seq"]) for row in rows] == [
        (-10, 1), (-10, 3), (-10, 20), (-2, 1), (-2, 3), (-2, 20), (0, 1), (0, 3), (0, 20),
    ]  # fmt: skip
    assert {row["queue"] for row in rows} == {"orders"}
    assert not met


def test_transient_messages_are_listed_only_if_asked_for(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    made.journal(
        queue,
        journaled(0, publish(0, b"kept")),
        journaled(1, publish(1, b"forgotten", is_persistent=False)),
        journaled(2, publish(2, b"in the other store", stored=True, is_persistent=False)),
        journaled(3, publish(3, b"only in memory", stored=True, is_persistent=False)),
    )
    made.store("0.rdq", stored(2, b"in the other store"), kind="transient")
    rows, met = listed(made.path)
    assert bodies(rows) == [b"kept"]
    rows, _ = listed(made.path, Wanted(as_of_us=0, transient=True))
    assert bodies(rows) == [b"kept", b"forgotten", b"in the other store"]
    assert [row["persistent"] for row in rows] == [True, False, False]
    assert not met


def test_a_message_that_calls_itself_transient_does_not_survive(tmp_path: Path) -> None:
    """Section 5: the record is persistent, but a restart looks into an embedded message too."""
    made = Directory(tmp_path / "node")
    embedded = message(0, b"body", is_persistent=False)
    record = replace(publish(0), embedded=embedded)
    made.journal(made.queue(b"orders"), journaled(0, record))
    assert listed(made.path) == ([], [])
    assert len(listed(made.path, Wanted(as_of_us=0, transient=True))[0]) == 1


def test_a_persistent_message_is_not_looked_for_in_the_transient_store(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    made.journal(made.queue(b"orders"), journaled(0, publish(0, stored=True)))
    made.store("0.rdq", stored(0, b"body"), kind="transient")
    rows, met = listed(made.path)
    assert rows == []
    assert [(damage.status, damage.sequence) for damage in met] == [("missing", 0)]


def test_messages_expire_at_their_time(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"never")),
        journaled(1, publish(1, b"at 100", expiry_us=YEAR_2001_US + 100)),
        journaled(2, publish(2, b"at 200", expiry_us=YEAR_2001_US + 200)),
    )
    for after, expected in (
        (99, [b"never", b"at 100", b"at 200"]),
        (100, [b"never", b"at 200"]),
        (200, [b"never"]),
    ):
        rows, _ = listed(made.path, Wanted(as_of_us=YEAR_2001_US + after))
        assert bodies(rows) == expected
    rows, _ = listed(made.path, Wanted(as_of_us=YEAR_2001_US + 200, expired=True))
    assert [row["expiry_us"] for row in rows] == [None, YEAR_2001_US + 100, YEAR_2001_US + 200]


def test_vhosts_and_queues_can_be_chosen(tmp_path: Path) -> None:
    for vhost in (b"a", b"b"):
        made = Directory(tmp_path / "node", vhost)
        for name in (b"one", b"two \xff"):
            made.journal(made.queue(name), journaled(0, publish(0, vhost + name)))
    chosen = {
        "all": listed(tmp_path / "node")[0],
        "b": listed(tmp_path / "node", vhost=b"b")[0],
        "two": listed(tmp_path / "node", queue=b"two \xff")[0],
        "both": listed(tmp_path / "node", vhost=b"a", queue=b"one")[0],
        "none": listed(tmp_path / "node", queue=b"three")[0],
    }
    assert {name: bodies(rows) for name, rows in chosen.items()} == {
        "all": [b"aone", b"atwo \xff", b"bone", b"btwo \xff"],
        "b": [b"bone", b"btwo \xff"],
        "two": [b"atwo \xff", b"btwo \xff"],
        "both": [b"aone"],
        "none": [],
    }
    assert chosen["two"][0]["queue"] == {"base64": "dHdvIP8="}


# --- journal, segments, version 2 ----------------------------------------------------------------


def test_segments_and_journal_are_joined_segment_by_segment(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    for number in (0, 1, 10):
        made.segment(
            queue,
            number,
            *(segment.encode_publish(n, publish(n, b"%d.%d" % (number, n))) for n in (3, 2)),
            segment.encode_deliver_or_ack(2),
        )
    made.journal(
        queue,
        journal.encode_ack(SequenceNumber(ENTRY_COUNT + 2)),
        journaled(5 * ENTRY_COUNT, publish(9, b"journal")),
        journal.encode_ack(SequenceNumber(10 * ENTRY_COUNT + 3)),
    )
    rows, met = listed(made.path)
    assert bodies(rows) == [b"0.2", b"0.3", b"1.3", b"journal", b"10.2"]
    assert [row["delivered"] for row in rows] == [True, False, False, False, True]
    assert [damage.status for damage in met] == ["undelivered"]


def version_2(first: int, slots: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Return ``.qi`` and ``.qs`` of messages: bodies for the queue's own store, ids for the shared one."""
    header = (2, first, first + ENTRY_COUNT)
    index = queue_v2.HEADER.pack(queue_v2.INDEX_MARKER, *header).ljust(64, b"\x00")
    store = queue_v2.HEADER.pack(queue_v2.STORE_MARKER, *header).ljust(64, b"\x00")
    for body, shared in slots:
        place = shared
        if not shared:
            term = message(first, body)
            place = len(store).to_bytes(8, "big") + len(term).to_bytes(4, "big") + bytes(4)
            store += queue_v2.RECORD_HEAD.pack(len(term), 0, 0, 0) + term
        index += queue_v2.SLOT.pack(1, 1, 0, 1 if shared else 2, place, len(body), 0)
    return index, store


def test_a_queue_of_version_2_has_messages_in_both_stores(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders", version=2)
    index, store = version_2(
        32, [(b"small", b""), (b"large", message_id(7)), (b"lost", message_id(8))]
    )
    (queue / "2.qi").write_bytes(index)
    (queue / "2.qs").write_bytes(store)
    made.store("0.rdq", stored(7, b"large"))
    rows, met = listed(made.path)
    assert bodies(rows) == [b"small", b"large"]
    assert [(row["seq"], row["delivered"]) for row in rows] == [(32, None), (33, None)]
    assert [(t.status, t.path.name, t.offset) for t in met] == [("missing", "2.qi", 64 + 2 * 32)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda store: store[:70], "ends inside"),
        (lambda store: store[:100], "ends inside"),
        (lambda store: store[:64] + b"\xff" + store[65:], "another length"),
        (lambda store: store[:68] + b"\x01" + store[69:], "checksum"),
        (lambda _: None, "cannot be read"),
    ],
)
def test_damage_in_a_queues_own_store_costs_the_message_and_is_told(
    tmp_path: Path, change: Any, reason: str
) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders", version=2)
    index, store = version_2(0, [(b"small", b"")])
    (queue / "0.qi").write_bytes(index)
    changed = change(store)
    if changed is not None:
        (queue / "0.qs").write_bytes(changed)
    rows, met = listed(made.path)
    assert rows == []
    (damage,) = met
    assert (damage.status, damage.sequence) == ("missing", 0)
    assert reason in damage.reason


def test_version_1_is_believed_where_both_know_a_message(tmp_path: Path) -> None:
    """Section 12: a broker was stopped while it converted the queue."""
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    index, store = version_2(0, [(b"0 of 2", b""), (b"1 of 2", b""), (b"2 of 2", b"")])
    (queue / "0.qi").write_bytes(index)
    (queue / "0.qs").write_bytes(store)
    made.journal(queue, journaled(1, publish(1, b"1 of 1")), journaled(3, publish(3, b"3 of 1")))
    assert bodies(listed(made.path)[0]) == [b"0 of 2", b"1 of 1", b"2 of 2", b"3 of 1"]


# --- parts of a directory ------------------------------------------------------------------------


def test_a_queue_and_its_files_are_read_with_what_stands_around_them(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    journal_file = made.journal(queue, journaled(17, publish(17, b"large", stored=True)))
    segment_file = made.segment(queue, 1, segment.encode_publish(0, publish(16, b"small")))
    made.store("0.rdq", stored(17, b"large"))
    for path in (made.path, made.home, queue):
        rows, met = listed(path)
        assert [(row["vhost"], row["queue"], row["seq"]) for row in rows] == [
            ("/", "orders", 16),
            ("/", "orders", 17),
        ]
        assert bodies(rows) == [b"small", b"large"]
        assert not met
    assert bodies(listed(journal_file)[0]) == [b"large"]
    assert [row["seq"] for row in listed(segment_file)[0]] == [16]


def test_a_queue_without_a_name_goes_by_its_directory(tmp_path: Path) -> None:
    """Section 1: before 3.7 no file tells the name, and the message tells the vhost."""
    queue = tmp_path / "old" / "queues" / "ABC"
    queue.mkdir(parents=True)
    (tmp_path / "old" / "msg_store_persistent").mkdir()
    (queue / "journal.jif").write_bytes(journaled(0, publish(0)))
    (row,), met = listed(tmp_path / "old")
    assert (row["vhost"], row["queue"]) == ("/", "ABC")
    assert not met


def test_a_store_alone_is_refused_for_it_does_not_know_the_queues(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    store = made.store("0.rdq", stored(0, b"body"))
    for path in (store, store.parent):
        with pytest.raises(PathRefused, match="name the queue's directory"):
            listed(path)


# --- messages that are none ----------------------------------------------------------------------


def test_a_message_that_cannot_be_decoded_is_left_out_and_told(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    broken = publish(1, b"body")
    broken = replace(broken, embedded=broken.embedded[:-1])
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"first")),
        journaled(1, broken),
        journaled(2, publish(2, b"last")),
    )
    rows, met = listed(made.path)
    assert bodies(rows) == [b"first", b"last"]
    assert [(damage.status, damage.sequence) for damage in met] == [("bad-message", 1)]


def test_bad_properties_do_not_cost_the_body(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    content = Content(stored_properties=b"\xff\xff\x01", fragments=(b"body",))
    made.journal(made.queue(b"orders"), journaled(0, publish(0, content=content)))
    (row,), (damage,) = listed(made.path)
    assert (b64decode(row["payload"]), row["properties"]) == (b"body", None)
    assert damage.status == "bad-properties"
