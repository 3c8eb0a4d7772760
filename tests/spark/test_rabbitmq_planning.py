"""Planning a broker's directory: every file once, by names and sizes alone, and nothing taken for it that is none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from penstock.errors import InvalidOption, InvalidValue, PathRefused, UnknownFormat
from penstock.families.options import Operation
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.tables.plan import FileKind, FilePlan
from penstock.families.registry import open_files
from penstock.families.sources import find_sources
from penstock.families.tables import parse_options
from penstock.formats.taskflux.generation import Generation
from penstock.spark.stream import open_follower
from penstock.storage.files import OsFiles
from support.directories import build
from support.rabbitmq_directories import Directory, journaled, publish, stored
from support.rabbitmq_tables import random_directory
from support.spark_tables import pieces_of, read_rows, reader_of


def file_plans(path: Path, **how: object) -> list[FilePlan]:
    plans = [piece.plan for piece in pieces_of(reader_of(path, **how))]  # type: ignore[arg-type]
    return [plan for plan in plans if isinstance(plan, FilePlan)]


def small(path: Path) -> Directory:
    made = Directory(path)
    made.journal(made.queue(b"orders"), journaled(0, publish(0)))
    made.store("0.rdq", *(stored(n, b"x" * 90) for n in range(40)))
    return made


def test_every_file_is_planned_once_in_the_order_of_the_dump(tmp_path: Path) -> None:
    root = random_directory(Random(2), tmp_path / "node", damage=False)
    paths = [plan.path for plan in file_plans(root)]
    assert paths == [str(path) for path in resolve(root).files]


def test_only_a_large_store_file_is_cut_and_without_gap_or_overlap(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    journal = made.journal(made.queue(b"orders"), *(journaled(n, publish(n)) for n in range(40)))
    plans = file_plans(made.path, splitSize="1k")
    (whole,) = [plan for plan in plans if plan.kind is FileKind.JOURNAL]
    assert journal.stat().st_size > 3 * 1024
    assert (whole.start, whole.stop) == (0, None)
    parts = [plan for plan in plans if plan.kind is FileKind.STORE]
    assert len(parts) > 5
    assert (parts[0].start, parts[-1].stop) == (0, None)
    assert all(one.stop == other.start for one, other in pairwise(parts))
    size = (made.home / "msg_store_persistent" / "0.rdq").stat().st_size
    (hardly,) = file_plans(made.home / "msg_store_persistent", split=size * 3 // 4)
    assert (hardly.start, hardly.stop) == (0, None)


def test_planning_opens_names_and_settings_and_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = random_directory(Random(2), tmp_path / "node", damage=False)
    opened: list[str] = []
    original = OsFiles.open

    def record(self: OsFiles, path: Path, *, write: bool, create: bool = False) -> object:
        opened.append(path.name)
        return original(self, path, write=write, create=create)

    monkeypatch.setattr(OsFiles, "open", record)
    for table in ("entries", "changes", "tasks"):
        assert pieces_of(reader_of(root, table=table))
    find_sources([str(root)])
    assert opened
    assert set(opened) <= {".vhost", ".config", ".queue_name"}


def test_segments_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    for number in range(4):
        made.segment(queue, number, b"\x40\x00")
    found = file_plans(made.path, startingIndex="20", endingIndex="35")
    assert [plan.number for plan in found] == [1, 2]


def test_what_stands_in_no_queue_is_not_planned_for_one(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    assert {plan.kind for plan in file_plans(made.path, queues="orders")} == {FileKind.JOURNAL}
    assert {plan.kind for plan in file_plans(made.path, table="changes")} == {FileKind.JOURNAL}
    assert {plan.kind for plan in file_plans(made.path, ops="add")} == {FileKind.JOURNAL}
    assert file_plans(made.path, queues="other") == []


# --- which family --------------------------------------------------------------------------------


def family_of(path: Path) -> str:
    return open_files(path, Operation.TABLES).describe(uncommitted=False).family


def test_every_part_of_a_directory_is_known(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    queue = made.queue(b"orders")
    parts = [made.path, made.home, queue, queue / "journal.jif", made.home / "msg_store_persistent"]
    for path in parts:
        assert family_of(path) == "rabbitmq"
        assert read_rows(path)


def test_other_files_are_told_apart_and_refused_as_before(tmp_path: Path) -> None:
    node = build(tmp_path / "taskflux", Generation.THREE)
    assert family_of(node) == "taskflux"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(PathRefused, match="empty"):
        family_of(empty)
    file = tmp_path / "notes.txt"
    file.write_text("nothing of ours")
    with pytest.raises((PathRefused, UnknownFormat)):
        family_of(file)


def test_both_families_are_read_together(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    node = build(tmp_path / "taskflux", Generation.THREE)
    families = [row["family"] for row in read_rows(node, made.path, columns=["family"])]
    assert set(families) == {"taskflux", "rabbitmq"}
    assert families == sorted(families, reverse=True)


@pytest.mark.parametrize("name", ["vhost", "includeTransient", "includeExpired", "asOf"])
def test_a_log_is_not_asked_what_only_a_broker_knows(tmp_path: Path, name: str) -> None:
    node = build(tmp_path / "taskflux", Generation.THREE)
    value = {"vhost": "/", "asOf": "2026-01-31"}.get(name, "true")
    with pytest.raises(InvalidOption, match=name):
        read_rows(node, table="tasks", **{name: value})


def test_a_stream_has_no_log_to_follow(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    with pytest.raises(InvalidValue, match="has no log that a stream could follow"):
        open_follower(parse_options({"path": str(made.path)}))
    node = build(tmp_path / "taskflux", Generation.THREE)
    with pytest.raises(InvalidOption, match="vhost"):
        open_follower(parse_options({"path": str(node), "vhost": "/"}))


# --- describing ----------------------------------------------------------------------------------


def test_a_source_says_that_it_has_no_log_and_which_queues_it_has(tmp_path: Path) -> None:
    made = small(tmp_path / "node")
    other = Directory(tmp_path / "node", b"other")
    for priority in (0, 1):
        other.queue(b"mail", priority=priority)
    (source,) = find_sources([str(made.path)])
    assert not source.has_log
    assert [(queue.name, queue.vhost) for queue in source.queues or ()] == [
        ("orders", "/"),
        ("other~mail", "other"),
    ]
    assert source.size == resolve(made.path).size
    newest = max(path.stat().st_mtime_ns for path in resolve(made.path).files)
    assert source.migrated_with["as_of"] == newest // 1000
