"""What a path is, found by structure and content; and clear words for what it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import PathMissing, PathRefused, UnknownFormat
from penstock.families.rabbitmq.family import FAMILY
from penstock.families.rabbitmq.location import resolve
from penstock.formats.rabbitmq import segment
from support.rabbitmq_directories import (
    ENTRY_COUNT,
    Directory,
    journaled,
    publish,
    stored,
    unpacked,
)


def test_every_part_of_a_real_directory_is_known_for_what_it_is(tmp_path: Path) -> None:
    node = unpacked("c7_queue_v2_kill9", tmp_path)
    kinds = {"": "node"}
    (vhost,) = (node / "msg_stores/vhosts").iterdir()
    kinds[str(vhost.relative_to(node))] = "vhost"
    by_suffix = {".idx": "segment", ".qi": "index", ".qs": "queue-store", ".rdq": "store-file"}
    for queue in (vhost / "queues").iterdir():
        kinds[str(queue.relative_to(node))] = "queue"
        for file in queue.iterdir():
            if file.suffix in by_suffix:
                kinds[str(file.relative_to(node))] = by_suffix[file.suffix]
    store = vhost / "msg_store_persistent"
    kinds[str(store.relative_to(node))] = "store"
    kinds[str((store / "0.rdq").relative_to(node))] = "store-file"
    assert {name: resolve(node / name).kind for name in kinds} == kinds
    assert all(FAMILY.detect(node / name) for name in kinds)


def test_vhosts_queues_and_stores_are_found_with_their_names(tmp_path: Path) -> None:
    location = resolve(unpacked("c4_props_ttl_priority_kill9", tmp_path))
    assert [vhost.name for vhost in location.vhosts] == [b"/", b"tenant/a"]
    for vhost in location.vhosts:
        assert vhost.entry_count == 2048
        assert [path.name for path in vhost.persistent] == ["0.rdq"]
        assert [path.name for path in vhost.transient] == ["0.rdq"]
        names = [(queue.label, queue.priority) for queue in vhost.queues]
        assert names == sorted(names, key=lambda name: (name[0], -name[1]))
        assert [priority for name, priority in names if name == b"p_prio"] == [5, 4, 3, 2, 1, 0]
    assert location.size == sum(path.stat().st_size for path in location.files)
    assert not location.found_damage


def test_what_a_merge_kept_stands_behind_its_file(tmp_path: Path) -> None:
    (vhost,) = resolve(unpacked("c8_damage_crashed_merge", tmp_path)).vhosts
    names = [path.name for path in vhost.persistent]
    assert names == ["0.rdq", "0.rdt", "1.rdq", "2.rdq", "3.rdq", "4.rdq"]


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    for number in (10, 9, 100):
        made.segment(queue, number, segment.encode_publish(0, publish(number)))
    (queue / "007.idx").write_bytes(b"no segment has such a name")
    (found,) = resolve(queue).vhosts[0].queues
    assert [number for number, _ in found.segments] == [9, 10, 100]


def test_a_bad_name_or_setting_is_told_and_does_without(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    made.journal(queue, journaled(0, publish(0)))
    (queue / ".queue_name").write_bytes(b"VHOST: /\nQUE")
    (made.home / ".config").write_bytes(b"{segment_entry_count, 99999}.")
    location = resolve(made.path)
    assert {(t.status, t.path.name) for t in location.found_damage} == {
        ("bad-queue-name", ".queue_name"),
        ("bad-config", ".config"),
    }
    assert location.vhosts[0].queues[0].label == queue.name.encode()
    assert location.vhosts[0].entry_count == 16_384 != ENTRY_COUNT


def test_a_name_that_is_no_file_is_told(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    (queue / ".queue_name").unlink()
    os.mkfifo(queue / ".queue_name")
    (damage,) = resolve(made.path).found_damage
    assert (damage.status, damage.path) == ("unreadable", queue / ".queue_name")


# --- what is refused -----------------------------------------------------------------------------


def test_a_path_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PathMissing, match="no such file"):
        resolve(tmp_path / "gone")


def test_directories_without_files_of_a_broker_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("notes")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "other", tmp_path / "pipe"):
        assert not FAMILY.detect(path)
        with pytest.raises(PathRefused, match="no files of RabbitMQ"):
            resolve(path)


@pytest.mark.parametrize("name", ["journal.jif", "0.idx", "0.rdq", "0.rdt", "0.qi", "0.qs", "x"])
def test_a_file_that_holds_nothing_of_its_kind_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(PathRefused, match="empty"):
        resolve(path)
    for content in (bytes(1), bytes(100_000), b"\x00" * 7 + b"\xff" * 25, b"\x3f" * 50):
        path.write_bytes(content)
        with pytest.raises(UnknownFormat, match=r"not a file of RabbitMQ") as refusal:
            resolve(path)
        assert refusal.value.path == str(path)


def test_a_store_file_is_known_behind_damage_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "3.rdq"
    path.write_bytes(b"\xff" * 100 + stored(0, b"body"))
    assert resolve(path).kind == "store-file"
