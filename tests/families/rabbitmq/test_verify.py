"""What ``verify``, ``inspect`` and ``dump`` say of real directories, and of damage of all kinds."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.families.rabbitmq import read
from penstock.families.rabbitmq.dump import dump
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.rows import tasks
from penstock.families.rabbitmq.verify import inspect, verify
from penstock.formats.rabbitmq import journal, message_store, queue_v2, segment
from penstock.formats.rabbitmq.journal import SequenceNumber
from support.damage import random_damage
from support.rabbitmq_directories import NAMES, Directory, journaled, publish, truth, unpacked
from support.rabbitmq_golden import DAMAGE

PLACE = ["family", "kind", "path", "offset", "size", "status"]


@pytest.mark.parametrize("name", NAMES)
def test_real_directories_are_whole_unless_somebody_damaged_them(tmp_path: Path, name: str) -> None:
    row = inspect(resolve(unpacked(name, tmp_path)))
    expected = truth(name)
    assert {damage["status"] for damage in row["damage"]} == DAMAGE.get(name, set())
    assert row["messages"] == len(expected)
    assert (row["family"], row["kind"], row["path"]) == ("rabbitmq", "node", str(tmp_path))
    assert row["version"] == ([2] if "v2" in name else [1])
    assert set(row["vhosts"]) == {known["vhost"] for known in expected}
    counted: Counter[tuple[str, str]] = Counter()
    for queue in row["queues"]:
        counted[queue["vhost"], queue["queue"]] += queue["messages"]
    assert +counted == Counter((known["vhost"], known["queue"]) for known in expected)
    for damage in row["damage"]:
        assert list(damage)[:6] == PLACE
        assert damage["kind"] == "damage"
        assert damage["reason"]
    json.dumps(row)


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_covers_every_byte_of_journals_segments_and_stores(
    tmp_path: Path, name: str
) -> None:
    location = resolve(unpacked(name, tmp_path))
    ends: dict[str, int] = {}
    for row in dump(location):
        assert list(row)[:6] == PLACE
        assert row["family"] == "rabbitmq"
        json.dumps(row)
        if not row["path"].endswith(".qi"):
            start = 64 if row["path"].endswith(".qs") else 0
            assert row["offset"] == ends.get(row["path"], start)
            ends[row["path"]] = row["offset"] + row["size"]
    for path in location.files:
        if path.suffix != ".qi":
            assert ends.get(str(path), 0) == path.stat().st_size


def test_a_dump_shows_what_a_queue_went_through(tmp_path: Path) -> None:
    rows = list(dump(resolve(unpacked("c1_small_embedded_live", tmp_path))))
    kinds = Counter((row["kind"], row.get("op")) for row in rows)
    assert set(kinds) == {
        ("entry", "publish"),
        ("entry", "deliver-or-ack"),
        ("record", "publish"),
        ("record", "deliver"),
        ("record", "ack"),
    }
    first = next(row for row in rows if row["kind"] == "record" and row["op"] == "publish")
    assert first["queue"] == "orders"
    assert first["properties"]["delivery_mode"] == 2
    assert first["payload"]


def test_what_a_crash_leaves_is_harmless(tmp_path: Path) -> None:
    rows = list(verify(resolve(unpacked("c8_damage_dup_flush", tmp_path))))
    assert {(row["status"], row["severity"]) for row in rows} == {("flushed", "harmless")}


def test_a_file_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    for name in (b"a", b"b"):
        made.journal(made.queue(name), journaled(0, publish(0)))
    broken = made.queue(b"a")
    (broken / "journal.jif").unlink()
    os.mkfifo(broken / "journal.jif")
    (broken / "0.idx").mkdir()
    (broken / "0.qi").write_bytes(queue_v2.INDEX_MARKER + b"\x09" * 60)
    (broken / "0.qs").write_bytes(b"RC")
    (made.home / "msg_store_persistent" / "0.rdq").mkdir()
    location = resolve(made.path)
    rows = list(verify(location))
    assert sorted((row["status"], Path(row["path"]).name) for row in rows) == [
        ("bad-header", "0.qi"),
        ("bad-header", "0.qs"),
        ("unreadable", "0.idx"),
        ("unreadable", "0.rdq"),
        ("unreadable", "journal.jif"),
    ]
    assert sorted((row["status"], Path(row["path"]).name) for row in dump(location)) == [
        ("bad-header", "0.qi"),
        ("bad-header", "0.qs"),
        ("ok", "journal.jif"),
        ("unreadable", "0.idx"),
        ("unreadable", "0.rdq"),
        ("unreadable", "journal.jif"),
    ]
    (task,) = tasks(location, Wanted(as_of_us=0), report=lambda _: None)
    assert task["queue"] == "b"


def test_a_file_of_countless_tiny_records_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "RECORDS_MAX", 100)
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    made.segment(queue, 0, segment.encode_publish(1, publish(1)), b"\x40\x02" * 150)
    made.journal(queue, journaled(3, publish(3)), journal.encode_ack(SequenceNumber(2)) * 150)
    rows = [row for row in verify(resolve(made.path)) if row["severity"] != "harmless"]
    assert [(row["status"], Path(row["path"]).name) for row in rows] == [
        ("too-many", "journal.jif"),
        ("too-many", "0.idx"),
    ]
    assert len(list(tasks(resolve(made.path), Wanted(as_of_us=0), report=lambda _: None))) == 2


def test_a_damaged_message_in_a_dump_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "0.rdq"
    path.write_bytes(message_store.encode_record(b"i" * 16, b"\x83h\x01"))
    (row,) = dump(resolve(path))
    assert (row["status"], row["raw"], row["message_id"]) == ("bad-message", "g2gB", "69" * 16)


@pytest.mark.parametrize("seed", range(25))
def test_no_damage_stops_a_reading(tmp_path: Path, seed: int) -> None:
    """Whatever the bytes are, all four tools come to an end, and every row is JSON."""
    random = Random(seed)
    name = random.choice(
        ["c4_props_ttl_priority_kill9", "c8_damage_crashed_merge", "c1_small_embedded_live"]
    )
    location = resolve(unpacked(name, tmp_path))
    for path in random.sample(location.files, min(5, len(location.files))):
        data = path.read_bytes()
        if data:
            path.write_bytes(random_damage(random, data, start=0))
    rows: list[dict[str, Any]] = [
        *dump(location),
        *verify(location),
        *tasks(location, Wanted(as_of_us=0, transient=True), report=lambda _: None),
        inspect(location),
    ]
    for row in rows:
        json.dumps(row)
