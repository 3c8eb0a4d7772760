"""The tables of entries and changes of a broker's directory say what ``penstock dump`` says, whatever the split."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import BadData, InvalidValue
from penstock.formats.rabbitmq import journal, segment
from penstock.formats.rabbitmq.journal import SequenceNumber
from support.rabbitmq_directories import (
    NAMES,
    Directory,
    journaled,
    publish,
    stored,
    unpacked,
)
from support.rabbitmq_tables import as_said, dumped, random_directory
from support.spark_tables import read_rows

Row = dict[str, Any]
CHANGES = ("source", "path", "offset", "log_index", "op", "queue", "key", "task_id")


def entries(path: Path, **how: Any) -> list[Row]:
    return [as_said(row) for row in read_rows(path, **how)]


def agree(found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


def only(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]


# --- against the tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_real_directories_read_as_they_are_dumped(tmp_path: Path, name: str) -> None:
    root = unpacked(name, tmp_path)
    expected = dumped(root)
    agree(entries(root), expected)
    large = sum(path.stat().st_size for path in root.rglob("*.rd?"))
    agree(entries(root, splitSize=str(max(1024, large // 30))), expected)


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_directories_read_as_they_are_dumped(
    tmp_path: Path, seed: int, damage: bool
) -> None:
    random = Random(seed)
    root = random_directory(random, tmp_path / "node", damage=damage)
    expected = dumped(root)
    agree(entries(root), expected)
    agree(entries(root, split=random.choice((150, 400, 1024))), expected)
    changes = [row for row in expected if row["op"] is not None]
    found = read_rows(root, table="changes", split=400, columns=CHANGES)
    assert found == only(changes, CHANGES)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(100, 400))
def test_more_random_directories_read_as_they_are_dumped_at_any_split(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    root = random_directory(random, tmp_path / "node", damage=random.random() < 0.7)
    expected = dumped(root)
    for split in (random.randrange(30, 200), 1024):
        agree(entries(root, split=split), expected)


def test_every_file_of_a_directory_reads_alone_as_it_is_dumped(tmp_path: Path) -> None:
    root = random_directory(Random(3), tmp_path / "node", damage=False)
    kinds = set()
    for path in sorted(root.rglob("*.*")):
        if path.suffix in (".idx", ".jif", ".qi", ".qs", ".rdq") and path.stat().st_size > 64:
            agree(entries(path), dumped(path))
            kinds.add(path.suffix)
    assert kinds >= {".idx", ".jif", ".rdq"}
    for directory in sorted(root.rglob("msg_store_*")) + sorted(root.rglob("queues/*")):
        if any(path.suffix in (".rdq", ".jif") for path in directory.iterdir()):
            agree(entries(directory), dumped(directory))


def test_a_column_says_the_same_alone_as_among_all(tmp_path: Path) -> None:
    root = random_directory(Random(8), tmp_path / "node", damage=True)
    rows = read_rows(root)
    for name in rows[0]:
        assert [row[name] for row in read_rows(root, columns=[name])] == [r[name] for r in rows]


# --- what a record does --------------------------------------------------------------------------


def test_the_first_word_behind_a_publish_is_its_deliver_and_the_next_its_ack(
    tmp_path: Path,
) -> None:
    made = Directory(tmp_path / "node")
    word = segment.encode_deliver_or_ack(5)
    queue = made.queue(b"orders", priority=3)
    again = segment.encode_publish(5, publish(1))
    made.segment(queue, 2, segment.encode_publish(5, publish(0)), word, word, word, again, word)
    made.journal(queue, journal.encode_ack(SequenceNumber(37)))
    rows = read_rows(made.path, columns=["kind", "op", "log_index", "task_id", "key", "queue"])
    assert [row["op"] for row in rows] == [
        "add", "deliver", "remove", "remove", "add", "deliver", "remove"
    ]  # fmt: skip
    assert {(row["log_index"], row["task_id"], row["key"]) for row in rows} == {(37, 37, -3)}
    assert [row["kind"] for row in rows] == ["entry"] * 6 + ["record"]
    assert {row["queue"] for row in rows} == {"orders"}


def test_queues_of_two_vhosts_have_two_names(tmp_path: Path) -> None:
    for vhost in (b"/", b"two words"):
        made = Directory(tmp_path / "node", vhost)
        made.journal(made.queue(b"my mail"), journaled(0, publish(0)))
    names = [row["queue"] for row in read_rows(tmp_path / "node")]
    assert names == ["my%20mail", "two%20words~my%20mail"]
    (row,) = read_rows(tmp_path / "node", vhost="two words")
    assert dict(row["properties"])["vhost"] == "two words"
    assert read_rows(tmp_path / "node", queues='["my%20mail", "x"]')[0]["queue"] == "my%20mail"


# --- what is wanted ------------------------------------------------------------------------------


def test_options_narrow_a_read_to_the_rows_that_they_name(tmp_path: Path) -> None:
    root = random_directory(Random(5), tmp_path / "node", damage=False)
    rows = read_rows(root)
    path, queue = next((r["path"], r["queue"]) for r in rows if r["op"] == "deliver")
    indexes = sorted(row["log_index"] for row in rows if row["log_index"] is not None)
    first, last = indexes[len(indexes) // 3], indexes[len(indexes) // 2]
    cases: list[tuple[dict[str, str], Any]] = [
        ({"ops": '["add", "remove"]'}, lambda row: row["op"] in ("add", "remove")),
        ({"files": path}, lambda row: row["path"] == path),
        ({"queues": queue}, lambda row: row["queue"] == queue),
        (
            {"startingIndex": str(first), "endingIndex": str(last)},
            lambda row: row["log_index"] is not None and first <= row["log_index"] <= last,
        ),
    ]
    for options, is_wanted in cases:
        found = read_rows(root, **options)
        assert found == [row for row in rows if is_wanted(row)]
        assert 0 < len(found) < len(rows)


def test_damage_is_told_dropped_or_fails_the_job(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    path = made.journal(queue, journaled(0, publish(0)), journaled(1, publish(1))[:-1])
    made.store("0.rdq", stored(7, b"body"), bytes(100), stored(8, b"body"))
    statuses = [row["status"] for row in read_rows(made.path)]
    assert statuses == ["ok", "torn", "ok", "zeros", "ok"]
    kept = read_rows(made.path, mode="DROPMALFORMED")
    assert [row["status"] for row in kept] == ["ok"] * 3
    for table in ("entries", "changes"):
        with pytest.raises(BadData, match=r"journal.jif, offset \d+: torn: the file ends inside"):
            read_rows(made.path, table=table, mode="FAILFAST")
    path.write_bytes(journaled(0, publish(0)) + bytes(50))
    # Zeros behind records, or in a store, tell of nothing lost.
    assert len(read_rows(made.path, mode="FAILFAST")) == 5
    harmless = [row for row in read_rows(made.path) if row["status"] == "zeros"]
    assert [row["severity"] for row in harmless] == ["harmless", "harmless"]


def test_a_segment_of_nothing_but_zeros_is_damage(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    made.segment(made.queue(b"orders"), 0, bytes(500))
    (row,) = read_rows(made.path)
    assert (row["kind"], row["status"], row["severity"]) == ("damage", "zeros", "lost")
    with pytest.raises(BadData, match="zeros"):
        read_rows(made.path, mode="FAILFAST")


def test_a_file_that_is_no_file_any_more_is_a_row(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    path = made.journal(made.queue(b"orders"), journaled(0, publish(0)))
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    agree(entries(made.path), dumped(made.path))
    assert [row["status"] for row in read_rows(made.path)] == ["unreadable"]


def test_an_unchanged_option_of_another_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="asOf"):
        read_rows(tmp_path, asOf="2026-01-31")
