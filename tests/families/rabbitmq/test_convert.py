"""A broker's directory as a node's: the same messages in the same order, under names that do not collide."""

from __future__ import annotations

import tracemalloc
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CannotConvert, PathRefused
from penstock.families.damage import Damage
from penstock.families.rabbitmq.convert import Converted, convert
from penstock.families.rabbitmq.location import resolve, target_name
from penstock.families.rabbitmq.read import Selection, Wanted
from penstock.families.rabbitmq.rows import tasks
from penstock.families.taskflux.location import resolve as resolve_taskflux
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.verify import verify
from penstock.formats.rabbitmq.envelope import Envelope, decode_envelope
from penstock.formats.rabbitmq.properties import json_of_properties
from penstock.model import QueueName
from support.node_process import start
from support.rabbitmq_directories import (
    NAMES,
    Directory,
    journaled,
    publish,
    stored,
    truth,
    unpacked,
)

NEVER = Wanted(as_of_us=0)
GENERATIONS = ["taskflux-2", "taskflux-3"]

Row = dict[str, Any]
Tasks = dict[str, list[tuple[int, bytes]]]
"""(key, payload) of the tasks of each queue, in the order of delivery."""


def converted(
    path: Path, out: Path, to: str = "taskflux-3", **selected: Any
) -> tuple[Converted, list[Damage]]:
    met: list[Damage] = []
    selection = Selection(**{"wanted": NEVER} | selected)
    return convert(resolve(path), to, out, selection, report=met.append), met


def held(out: Path) -> Tasks:
    state = replay(read_history(resolve_taskflux(out)))
    assert state.tail is None
    return {
        name: [(key, payload) for _, key, payload in queue.in_order()]
        for name, queue in state.queues.by_name.items()
    }


def dequeued(out: Path, names: list[str]) -> Tasks:
    """Return what a node that serves the directory delivers."""
    with start(out) as node, node.client() as client:
        found: Tasks = {}
        for name in names:
            found[name] = []
            while deliveries := client.dequeue_many(name, 500):
                found[name] += [(delivery.key, delivery.payload) for delivery in deliveries]
                client.ack(deliveries)
        return found


def by_queue(name: str) -> dict[str, list[Row]]:
    """Return what must be in a golden directory by the names that the queues have here."""
    found: dict[str, list[Row]] = {}
    for row in truth(name):
        queue = target_name(row["vhost"].encode(), row["queue"].encode())
        found.setdefault(queue, []).append(row)
    return found


def check_message(key: int, payload: bytes, known: Row) -> Envelope:
    envelope, body = decode_envelope(payload)
    assert key == -(known["bucket"] or 0)
    assert envelope.vhost == known["vhost"].encode()
    assert envelope.queue == known["queue"].encode()
    assert envelope.exchange == known["exchange"].encode()
    assert [x.decode() for x in envelope.routing_keys] == known["routing_keys"]
    assert envelope.is_persistent is known["persistent"]
    assert known.get("body_sha256") in (None, sha256(body).hexdigest())
    assert known.get("body_b64") is None or b64decode(known["body_b64"]) == body
    assert len(body) == known["body_len"]
    return envelope


@pytest.mark.parametrize("to", GENERATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_real_directory_becomes_tasks_in_the_order_that_its_clients_know(
    tmp_path: Path, name: str, to: str
) -> None:
    source = unpacked(name, tmp_path / "broker")
    done, _ = converted(source, tmp_path / "out", to)
    expected = by_queue(name)
    found = held(tmp_path / "out")
    assert {queue: len(rows) for queue, rows in expected.items()} == {
        queue: len(rows) for queue, rows in found.items() if rows
    }
    assert done.tasks == sum(map(len, expected.values()))
    for queue, rows in expected.items():
        for (key, payload), known in zip(found[queue], rows, strict=True):
            check_message(key, payload, known)
    assert list(verify(resolve_taskflux(tmp_path / "out"))) == []


@pytest.mark.parametrize("to", GENERATIONS)
def test_a_node_serves_what_was_converted_highest_priority_first(tmp_path: Path, to: str) -> None:
    source = unpacked("c4_props_ttl_priority_kill9", tmp_path / "broker")
    converted(source, tmp_path / "out", to)
    expected = by_queue("c4_props_ttl_priority_kill9")
    found = dequeued(tmp_path / "out", list(expected))
    for queue, rows in expected.items():
        for (key, payload), known in zip(found[queue], rows, strict=True):
            check_message(key, payload, known)
    keys = [key for key, _ in max(found.values(), key=lambda rows: len({k for k, _ in rows}))]
    assert len(set(keys)) > 1
    assert keys == sorted(keys)


def test_an_envelope_says_what_a_row_of_tasks_says(tmp_path: Path) -> None:
    source = unpacked("c4_props_ttl_priority_clean", tmp_path / "broker")
    converted(source, tmp_path / "out")
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in tasks(resolve(source), NEVER, report=lambda _: None):
        rows.setdefault((row["vhost"], row["queue"]), []).append(row)
    found = held(tmp_path / "out")
    for (vhost, queue), expected in rows.items():
        for (key, payload), row in zip(
            found[target_name(vhost.encode(), queue.encode())], expected, strict=True
        ):
            envelope, body = decode_envelope(payload)
            assert envelope.properties is not None
            assert json_of_properties(envelope.properties) == row["properties"]
            assert (envelope.sequence, envelope.is_delivered) == (row["seq"], row["delivered"])
            assert (envelope.expiry_us, key) == (row["expiry_us"], row["key"])
            assert body == b64decode(row["payload"])


def test_without_envelopes_the_payload_is_the_body(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"")),
        journaled(1, publish(1, b"line\nline")),
        journaled(2, publish(2, b"large", stored=True)),
    )
    made.store("0.rdq", stored(2, b"large"))
    done, met = converted(made.path, tmp_path / "out", with_envelope=False)
    assert held(tmp_path / "out") == {
        "": [],
        "orders": [(0, b""), (0, b"line\nline"), (0, b"large")],
    }
    assert (done.entries, done.queues, done.tasks, met) == (4, 1, 3, [])


# --- what is left out ----------------------------------------------------------------------------


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"kept")),
        journaled(1, publish(1, b"transient", is_persistent=False)),
        journaled(2, publish(2, b"expired", expiry_us=10**15)),
        journaled(3, publish(3, b"lost", stored=True)),
        journaled(4, publish(4, bytes(2**24))),
    )
    wanted = Wanted(as_of_us=10**15)
    done, met = converted(made.path, tmp_path / "out", wanted=wanted)
    left = done.left
    assert (left.transient, left.expired, left.lost, left.too_large) == (1, 1, 1, 1)
    assert [damage.status for damage in met] == ["missing", "too-large"]
    assert [decode_envelope(payload)[1] for _, payload in held(tmp_path / "out")["orders"]] == [
        b"kept"
    ]
    wanted = Wanted(as_of_us=10**15, transient=True, expired=True)
    done, _ = converted(made.path, tmp_path / "all", wanted=wanted)
    assert (done.tasks, done.left.transient, done.left.expired) == (3, 0, 0)


def test_vhosts_and_queues_can_be_chosen_and_must_be_there(tmp_path: Path) -> None:
    for vhost in (b"/", b"b"):
        made = Directory(tmp_path / "broker", vhost)
        for name in (b"one", b"two"):
            made.journal(made.queue(name), journaled(0, publish(0, vhost + name)))
    source = tmp_path / "broker"
    converted(source, tmp_path / "1", vhost=b"b")
    converted(source, tmp_path / "2", queue=b"two", with_envelope=False)
    assert set(held(tmp_path / "1")) == {"", "b~one", "b~two"}
    assert held(tmp_path / "2") == {"": [], "two": [(0, b"/two")], "b~two": [(0, b"btwo")]}
    absent: list[Row] = [{"vhost": b"c"}, {"queue": b"three"}, {"vhost": b"c", "queue": b"one"}]
    for selected in absent:
        with pytest.raises(PathRefused, match="no such queue"):
            converted(source, tmp_path / "3", **selected)
    assert not (tmp_path / "3").exists()


def test_a_queue_without_messages_is_there_too(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.queue(b"empty")
    done, _ = converted(made.path, tmp_path / "out")
    assert held(tmp_path / "out") == {"": [], "empty": []}
    assert (done.queues, done.tasks) == (1, 0)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vhost", "queue", "name"),
    [
        (b"/", b"orders", "orders"),
        (None, b"orders", "orders"),
        (b"/", b"", ""),
        (b"shop", b"orders", "shop~orders"),
        (b"", b"orders", "~orders"),
        (b"/shop", b"a/b", "/shop~a/b"),
        (b"/", b"shop~orders", "shop%7Eorders"),
        (b"/", b"100%", "100%25"),
        (b"/", b"two words", "two%20words"),
        (b"/", "größe".encode(), "gr%C3%B6%C3%9Fe"),
        (b"/", b"\xff\n\x00", "%FF%0A%00"),
        (b"/", b"!penstock.notes", "%21penstock.notes"),
        (b"!penstock.a", b"b", "%21penstock.a~b"),
    ],
)
def test_names_are_kept_as_far_as_they_can_be(vhost: bytes | None, queue: bytes, name: str) -> None:
    assert target_name(vhost, queue) == QueueName(name)


def test_a_name_that_grows_too_long_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(made.queue(b"\xff" * 86), journaled(0, publish(0)))
    with pytest.raises(CannotConvert, match="258 characters"):
        converted(made.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_directories_that_would_become_one_queue_are_refused(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    queue = made.queue(b"orders")
    twin = queue.with_name("TWIN")
    twin.mkdir()
    (twin / ".queue_name").write_bytes((queue / ".queue_name").read_bytes())
    with pytest.raises(CannotConvert, match="both become queue 'orders'"):
        converted(made.path, tmp_path / "out")
    assert converted(queue, tmp_path / "out")[0].queues == 1


# --- where it is written -------------------------------------------------------------------------


def test_a_place_that_is_taken_or_in_the_source_is_refused(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    queue = made.queue(b"orders")
    made.journal(queue, journaled(0, publish(0)))
    before = set(made.path.rglob("*"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for source, out in (
        (made.path, tmp_path / "taken"),
        (made.path, made.path / "out"),
        (queue, made.home / "out"),  # its stores are read too
        (queue / "journal.jif", made.home / "queues" / "out"),
    ):
        with pytest.raises(PathRefused):
            converted(source, out)
    assert set(made.path.rglob("*")) == before


def test_stores_have_no_queues_and_generation_1_is_not_written(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(made.queue(b"orders"), journaled(0, publish(0)))
    store = made.store("0.rdq", stored(0, b"body"))
    for path in (store, store.parent):
        with pytest.raises(PathRefused, match="does not say which messages"):
            converted(path, tmp_path / "out")
    with pytest.raises(CannotConvert, match="taskflux-2 or taskflux-3"):
        converted(made.path, tmp_path / "out", "taskflux-1")
    assert not (tmp_path / "out").exists()


def test_a_conversion_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"),
        *(journaled(n, publish(n)) for n in range(20)),
        journaled(20, publish(20, stored=True)),
    )

    def report(damage: Damage) -> None:
        raise KeyboardInterrupt(damage.status)

    selection = Selection(wanted=NEVER)
    with pytest.raises(KeyboardInterrupt, match="missing"):
        convert(resolve(made.path), "taskflux-3", tmp_path / "out", selection, report=report)
    assert [path.name for path in tmp_path.iterdir()] == ["broker"]


def _bodies(count: int, size: int) -> Iterator[tuple[int, bytes]]:
    for number in range(count):
        yield number, number.to_bytes(4, "big") * (size // 4)


def test_memory_does_not_grow_with_the_messages(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    size, count = 2**20, 96
    made.journal(
        made.queue(b"orders"),
        *(journaled(n, publish(n, body, stored=True)) for n, body in _bodies(count, size)),
    )
    with (made.home / "msg_store_persistent" / "0.rdq").open("wb") as store:
        for number, body in _bodies(count, size):
            store.write(stored(number, body))
    converted(made.path, tmp_path / "first", queue=b"orders")  # compiles what is compiled
    tracemalloc.start()
    try:
        done, _ = converted(made.path, tmp_path / "out")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.tasks == count
    assert peak < count * size // 2
