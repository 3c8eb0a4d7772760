"""The tables of entries and changes say what the scalar decoders say, whatever the split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, PenstockError
from penstock.families.taskflux.tables import scan as scanning
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record, segment_name
from penstock.model import DEFAULT_QUEUE, AddTask, RemoveTask, TaskId
from support.damage import overwritten, random_damage
from support.histories import nodes
from support.node_files import Files, Node, write_files
from support.samples import NODES, THREE, TWO
from support.spark_tables import (
    MEMORY,
    UNSAID,
    Said,
    agree,
    ranges_of,
    read_rows,
    read_said,
    reader_of,
    rows_of,
    scalar_rows,
)

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)


def is_log(name: str) -> bool:
    return name.endswith((".log", "log.raft"))


def damaged_logs(random: Random, node: Node) -> Files:
    """Return a node's files with damage in its logs, behind their headers."""
    start = node.layout.header_size
    return {
        name: random_damage(random, data, start=start) if is_log(name) else data
        for name, data in node.files().items()
    }


def damaged_anywhere(random: Random, node: Node) -> Files:
    """Return a node's files with damage in any of them, at any place."""
    files = node.files()
    for _ in range(random.randrange(1, 3)):
        name = random.choice(sorted(files))
        files[name] = random_damage(random, files[name], start=0)
    return files


def add_record(layout: LogLayout, payload: bytes, *, term: int = 1, key: int = 0) -> bytes:
    change = encode_delta(AddTask(queue=DEFAULT_QUEUE, key=key, payload=payload))
    return encode_record(layout, term=term, payload=change)


def long_log(random: Random, layout: LogLayout, *, records: int) -> bytes:
    """Return a log of some ten kilobytes, with whole records inside payloads."""
    inner = add_record(layout, b"inside")
    parts = [encode_header(layout, commit=records - 1)]
    for number in range(records):
        size = random.choice((0, 3, 20, 100, 300))
        payload = random.choice((random.randbytes(size), inner, inner * 3 + b"tail"))
        parts.append(add_record(layout, payload, term=1 + number // 9, key=number))
    return b"".join(parts) + bytes(random.choice((0, 4, 2000)))


def segment(root: Path, data: bytes, first: int = 0) -> Path:
    """Write a segment, and return the node's directory."""
    return write_files(root, {f"data/log/{segment_name(first)}": data})


def at_rest(root: Path) -> None:
    """Make files look as if nobody had written to them for long."""
    for path in root.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def said_without(row: dict[str, Any]) -> Said:
    return {name: value for name, value in row.items() if name not in UNSAID}


# --- against the scalar decoders -----------------------------------------------------------------


@pytest.mark.parametrize("name", NODES)
def test_the_sample_nodes_read_as_the_decoders_say(tmp_path: Path, name: str) -> None:
    root = NODES[name].write(tmp_path)
    agree(read_said(root), scalar_rows(root))
    for split in (1, 7, 16, 33, 100):
        agree(read_said(root, split=split), scalar_rows(root))


@pytest.mark.parametrize("name", NODES)
def test_every_file_of_the_sample_nodes_reads_alone_as_the_decoders_say(
    tmp_path: Path, name: str
) -> None:
    NODES[name].write(tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and path.name != "penstock.synced":
            agree(read_said(path, split=20), scalar_rows(path))


@each_layout
@given(data=st.data(), split=st.integers(1, 300))
def test_random_nodes_with_damaged_logs_read_as_the_decoders_say(
    layout: LogLayout, data: st.DataObject, split: int
) -> None:
    node = data.draw(nodes(layout))
    random = Random(data.draw(st.integers(0, 2**32)))
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), damaged_logs(random, node))
        agree(read_said(root, split=split), scalar_rows(root))


@each_layout
@given(data=st.data(), split=st.integers(1, 300))
def test_nodes_with_any_file_damaged_read_as_the_decoders_say_or_are_refused_by_both(
    layout: LogLayout, data: st.DataObject, split: int
) -> None:
    node = data.draw(nodes(layout))
    random = Random(data.draw(st.integers(0, 2**32)))
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), damaged_anywhere(random, node))
        try:
            expected = scalar_rows(root)
        except PenstockError as error:
            with pytest.raises(type(error)):
                read_said(root, split=split)
        else:
            agree(read_said(root, split=split), expected)


# --- splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_steady", [False, True], ids=["written just now", "at rest"])
@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
def test_splits_from_a_kilobyte_up_read_each_record_once(
    tmp_path: Path, layout: LogLayout, is_steady: bool
) -> None:
    random = Random(int(is_steady))
    data = long_log(random, layout, records=150)
    for seed in range(3):
        place = tmp_path / str(seed)
        log = data if seed == 0 else random_damage(random, data, start=layout.header_size)
        name = f"data/log/{segment_name(7)}" if layout is LogLayout.THREE else "consensus/log.raft"
        write_files(place, {name: log})
        if is_steady:
            at_rest(place)
        expected = scalar_rows(place)
        for size in [*range(1024, 1024 + 20, 3), 1500, 2048, 5000, 9999, 2**20]:
            agree(read_said(place, splitSize=str(size)), expected)


def test_every_boundary_falls_everywhere_once(tmp_path: Path) -> None:
    layout = LogLayout.THREE
    data = long_log(Random(1), layout, records=12)
    data = overwritten(data, len(data) // 2, b"!!!")
    root = segment(tmp_path, data)
    expected = scalar_rows(root)
    for split in range(1, len(data) + 1, 3):
        reader = reader_of(root, split=split)
        ranges = ranges_of(reader)
        assert [start for _, start, _ in ranges[1:]] == [stop for _, _, stop in ranges[:-1]]
        agree([said_without(row) for row in rows_of(reader)], expected)


def test_a_split_read_alone_and_first_gives_the_same_rows(tmp_path: Path) -> None:
    """Whatever a worker remembers of other splits must not matter."""
    root = segment(tmp_path, long_log(Random(5), LogLayout.THREE, records=60))
    at_rest(root)
    reader = reader_of(root, split=1024)
    tasks = list(reader.partitions())
    assert len(tasks) > 4
    in_order = [[b.to_pylist() for b in reader.read(task)] for task in tasks]
    for number in Random(5).sample(range(len(tasks)), len(tasks)):
        scanning._places.clear()
        assert [b.to_pylist() for b in reader.read(tasks[number])] == in_order[number]
    for number in Random(6).sample(range(len(tasks)), len(tasks)):
        assert [b.to_pylist() for b in reader.read(tasks[number])] == in_order[number]


@pytest.mark.parametrize("is_steady", [False, True], ids=["written just now", "at rest"])
def test_entries_written_into_a_segment_of_fixed_size_are_found_by_the_next_read(
    tmp_path: Path, is_steady: bool
) -> None:
    """A worker once remembered where the zeros began, and lost all that was then written there."""
    layout, record = LogLayout.THREE, add_record(LogLayout.THREE, b"x" * 100)
    data = encode_header(layout) + record * 5
    root = segment(tmp_path, data + bytes(5000))
    if is_steady:
        at_rest(root)
    assert len(read_rows(root, split=200)) == 5
    segment(tmp_path, data + record * 20 + bytes(5000 - 20 * len(record)))
    assert len(read_rows(root, split=200)) == 25


def test_entries_are_found_even_if_the_clock_of_the_disk_stood_still(tmp_path: Path) -> None:
    layout, record = LogLayout.THREE, add_record(LogLayout.THREE, b"x" * 100)
    data = encode_header(layout) + record * 5
    for count in (0, 20):
        root = segment(tmp_path, data + record * count + bytes(5000 - count * len(record)))
        at_rest(root)
        assert len(read_rows(root, split=200)) == 5 + count


def test_a_file_replaced_by_another_of_its_size_is_read_anew(tmp_path: Path) -> None:
    layout = LogLayout.THREE
    for moment, sizes in enumerate([[100] * 9, [77, 123] * 4 + [100]]):
        records = b"".join(add_record(layout, b"x" * size) for size in sizes)
        root = segment(tmp_path, encode_header(layout) + records)
        os.utime(root / "data" / "log" / segment_name(0), ns=(0, 10**18 + moment))
        assert [row["status"] for row in read_rows(root, split=150)] == ["ok"] * 9


def test_a_log_that_grows_while_it_is_read_is_read_up_to_where_it_ended(tmp_path: Path) -> None:
    """Also the record that was torn when the read was planned, and is whole now."""
    layout, record = LogLayout.THREE, add_record(LogLayout.THREE, b"x" * 100)
    root = segment(tmp_path, encode_header(layout) + record * 10 + record[:50])
    reader = reader_of(root, split=200)
    tasks = list(reader.partitions())
    segment(tmp_path, encode_header(layout) + record * 30)
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["log_index"], row["status"]) for row in rows] == [(n, "ok") for n in range(11)]


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
def test_a_record_of_term_0_without_payload_has_an_index(tmp_path: Path, layout: LogLayout) -> None:
    """It is whole by its checksum: one entry, and those behind it keep their numbers."""
    record = add_record(layout, b"x")
    empty = overwritten(encode_record(layout, term=1, payload=b""), 4, bytes(4))
    if layout is LogLayout.THREE:
        empty = overwritten(empty, 4, bytes(8))
    name = f"data/log/{segment_name(0)}" if layout is LogLayout.THREE else "consensus/log.raft"
    root = write_files(tmp_path, {name: encode_header(layout) + record + empty + record})
    rows = read_rows(root)
    assert [row["log_index"] for row in rows] == [0, 1, 2]
    assert [row["status"] for row in rows] == ["ok", "bad-term", "ok"]
    agree(read_said(root, split=20), scalar_rows(root))


def test_what_a_worker_remembers_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_FILES_MAX", 3)
    monkeypatch.setattr(scanning, "_PLACES_MAX", 2)
    scanning._places.clear()
    for number in range(5):
        root = segment(tmp_path / str(number), long_log(Random(1), LogLayout.THREE, records=40))
        at_rest(root)
        agree(read_said(root, split=500), scalar_rows(root))
    assert len(scanning._places) == 3
    assert {len(places) for places in scanning._places.values()} == {2}


# --- modes ---------------------------------------------------------------------------------------


def spoilt(root: Path) -> tuple[Path, int]:
    """Write a node whose second segment has a bad record, and return it and the offset of that."""
    layout, record = LogLayout.THREE, add_record(LogLayout.THREE, b"payload")
    head = encode_header(layout)
    bad = overwritten(record, len(record) - 1, b"!")
    write_files(
        root,
        {
            f"data/log/{segment_name(0)}": head + record * 4,
            f"data/log/{segment_name(4)}": head + record * 2 + bad + record * 2,
        },
    )
    return root, len(head) + 2 * len(record)


def test_permissive_tells_damage_in_its_place(tmp_path: Path) -> None:
    root, offset = spoilt(tmp_path)
    rows = read_rows(root)
    assert [row["log_index"] for row in rows] == list(range(9))
    bad = rows[6]
    assert (bad["status"], bad["offset"], bad["op"]) == ("bad-checksum", offset, None)
    assert bad["reason"] == "the payload does not match its checksum"
    assert bad["payload"].endswith(b"payloa!")
    assert [row["reason"] for row in rows if row is not bad] == [None] * 8


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "dropmalformed"])
def test_dropmalformed_leaves_damage_out(tmp_path: Path, mode: str) -> None:
    root, _ = spoilt(tmp_path)
    assert [row["log_index"] for row in read_rows(root, mode=mode)] == [0, 1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("table", ["entries", "changes"])
@pytest.mark.parametrize("split", [20, 1000])
def test_failfast_names_the_file_the_offset_and_the_entry(
    tmp_path: Path, table: str, split: int
) -> None:
    root, offset = spoilt(tmp_path)
    with pytest.raises(BadData) as caught:
        read_rows(root, mode="FAILFAST", table=table, split=split)
    path = root / "data" / "log" / segment_name(4)
    assert str(caught.value) == (
        f"{path}, offset {offset}: entry 6, bad-checksum: the payload does not match its checksum;"
        " mode PERMISSIVE reads on and reports it"
    )


@pytest.mark.parametrize(
    ("first", "last", "fails"),
    [(None, 5, False), (7, None, False), (7, 8, False), (6, 6, True), (0, 6, True), (5, 9, True)],
)
def test_failfast_fails_for_damage_in_the_range_that_is_asked_for(
    tmp_path: Path, first: int | None, last: int | None, fails: bool
) -> None:
    root, _ = spoilt(tmp_path)
    options = {"startingIndex": first, "endingIndex": last}
    given = {name: str(value) for name, value in options.items() if value is not None}
    if fails:
        with pytest.raises(BadData):
            read_rows(root, mode="FAILFAST", **given)
    else:
        assert read_rows(root, mode="FAILFAST", **given)


def test_a_gap_of_unknown_extent_before_the_range_fails_fast(tmp_path: Path) -> None:
    layout, record = LogLayout.THREE, add_record(LogLayout.THREE, b"payload")
    data = encode_header(layout) + record + b"garbage" * 9 + record * 3
    root = segment(tmp_path, data)
    with pytest.raises(BadData):
        read_rows(root, mode="FAILFAST", startingIndex="3")
    assert [row["log_index"] for row in read_rows(root)] == [0, 1, None, None, None]


@pytest.mark.parametrize("table", ["entries", "changes"])
def test_failfast_fails_for_a_file_that_cannot_be_read(tmp_path: Path, table: str) -> None:
    """The table of changes once left out a log without a header, in every mode."""
    root, _ = spoilt(tmp_path)
    path = root / "data" / "log" / segment_name(0)
    path.write_bytes(b"????" + path.read_bytes()[4:])
    with pytest.raises(BadData, match=str(path)):
        read_rows(root, mode="FAILFAST", table=table)
    told = read_rows(root, mode="PERMISSIVE")
    assert (told[0]["status"], told[0]["path"]) == ("bad-header", f"data/log/{path.name}")
    assert [row["log_index"] for row in told] == [None, *range(9)]
    assert len(read_rows(root, mode="DROPMALFORMED")) == 8


# --- changes -------------------------------------------------------------------------------------


def changes_of(rows: Sequence[Said], last: int | None) -> list[Said]:
    """Return the rows of entries that the table of changes has too."""
    return [
        {name: value for name, value in row.items() if name not in ("status", "severity")}
        for row in rows
        if row["status"] == "ok"
        and (row["kind"] in ("queue", "task") or row["op"] is not None)
        and row["op"] not in ("count", "list")
        and (row["kind"] != "entry" or last is None or _is_up_to(row["log_index"], last))
    ]


def _is_up_to(index: int | None, last: int) -> bool:
    """An entry of unknown index is not known to be committed."""
    return index is not None and index <= last


@each_layout
@pytest.mark.parametrize("uncommitted", ["false", "true"])
@given(data=st.data(), split=st.integers(1, 300))
def test_changes_are_the_whole_and_committed_entries_that_change_something(
    layout: LogLayout, uncommitted: str, data: st.DataObject, split: int
) -> None:
    node = data.draw(nodes(layout))
    random = Random(data.draw(st.integers(0, 2**32)))
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), damaged_logs(random, node))
        rows = [said_without(row) for row in read_rows(root)]
        is_open = uncommitted == "true" or layout is not LogLayout.TWO
        found = read_rows(root, table="changes", uncommitted=uncommitted, split=split)
        expected = changes_of(rows, None if is_open else node.committed)
        assert [said_without(row) for row in found] == expected


def test_what_is_not_committed_is_no_change_unless_asked_for(tmp_path: Path) -> None:
    root = TWO.write(tmp_path)
    entries = [row for row in read_rows(root) if row["kind"] == "entry"]
    assert [row["log_index"] for row in entries] == [2, 3, 4, 5, 6]
    changes = [row for row in read_rows(root, table="changes") if row["kind"] == "entry"]
    assert [row["log_index"] for row in changes] == [2, 3, 4, 5]
    whole = read_rows(root, table="changes", uncommitted="true")
    assert [row["log_index"] for row in whole if row["kind"] == "entry"] == [2, 3, 4, 5, 6]


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        ("log_index",),
        ("payload", "queue"),
        ("status", "reason", "severity", "properties"),
        ("event_time", "source", "family", "kind", "path"),
        ("key", "task_id", "term", "size", "offset", "op"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("node", [TWO, THREE], ids=["2", "3"])
def test_only_the_columns_that_are_asked_for_are_read(
    tmp_path: Path, node: Node, columns: tuple[str, ...]
) -> None:
    root = node.write(tmp_path)
    found = read_rows(root, columns=columns, split=50)
    assert found == [{name: row[name] for name in columns} for row in read_rows(root)]


def test_a_queue_is_filtered_by_also_where_it_is_not_among_the_columns(tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    whole = [row for row in read_rows(root) if row["queue"] == "q"]
    found = read_rows(root, columns=["log_index"], queues="q")
    assert [row["log_index"] for row in found] == [row["log_index"] for row in whole]


def test_ids_and_keys_of_all_64_bits_survive(tmp_path: Path) -> None:
    layout = LogLayout.THREE
    ids = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    keys = [-(2**63), -1, 0, 2**63 - 1]
    removals = [RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(number)) for number in ids]
    records = [encode_record(layout, term=1, payload=encode_delta(delta)) for delta in removals]
    records += [add_record(layout, b"", key=key) for key in keys]
    root = segment(tmp_path, encode_header(layout) + b"".join(records))
    rows = read_rows(root)
    assert [row["task_id"] for row in rows[:5]] == [0, 1, 2**63 - 1, -(2**63), -1]
    assert [row["key"] for row in rows[5:]] == keys
    assert [row["payload"] for row in rows] == [None] * 5 + [b""] * 4
    assert {row["queue"] for row in rows} == {""}
