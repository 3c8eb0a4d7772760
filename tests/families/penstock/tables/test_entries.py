"""Rows of ``entries`` and ``changes``: those of the changes that were written, however files are cut; and what is read for them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.families.penstock.tables.columns import payload_column
from penstock.families.penstock.tables.plan import RecordsPlan
from penstock.families.penstock.tables.records import Batch, read_records
from penstock.families.penstock.tables.units import rows_of, some, units_of
from penstock.families.plan import plan, read_splits
from penstock.families.tables import parse_options
from penstock.formats.records.changes import AddTasks
from penstock.tables import read
from support.record_directories import Changes, write_directory
from support.record_lives import Entry, Leader
from support.record_rows import COLUMNS, Row, said_rows


def history(seed: int, count: int = 400) -> list[Entry]:
    return Leader(Random(seed)).run(count)


def found_rows(path: Path, table: str = "entries", **how: Any) -> list[Row]:
    """Return the rows of entries, as ``said_rows`` has them."""
    rows = read(path, table, **how).read_all().to_pylist()
    entries = [row for row in rows if row["kind"] == "entry"]
    return [
        {name: row[name] for name in COLUMNS} | {"properties": dict(row["properties"] or ())}
        for row in entries
    ]


def check_rows(found: list[Row], said: list[Row]) -> None:
    assert [{**row, "properties": None} for row in found] == [
        {**row, "properties": None} for row in said
    ]
    for one, other in zip(found, said, strict=True):
        told = {name: one["properties"].get(name) for name in other["properties"]}
        assert told == other["properties"], one


@pytest.mark.parametrize(
    ("seed", "segment_size", "zeros"),
    [(1, 1000, 0), (2, 20_000, 4096), (3, 10**7, 64), (4, 5000, 0)],
)
def test_rows_are_those_of_the_changes(
    tmp_path: Path, seed: int, segment_size: int, zeros: int
) -> None:
    entries = history(seed)
    node = write_directory(tmp_path / "node", entries, segment_size=segment_size, zeros=zeros)
    said = said_rows(entries)
    check_rows(found_rows(node), said)
    changes = [row for row in said if row["op"] != "empty"]
    check_rows(found_rows(node, "changes"), changes)


def test_filters_keep_rows_of_queues_ops_and_indexes(tmp_path: Path) -> None:
    entries = history(5)
    node = write_directory(tmp_path / "node", entries, segment_size=9000)
    said = said_rows(entries)
    check_rows(
        found_rows(node, where=[("queue", "in", ["mail", "dead"])]),
        [row for row in said if row["queue"] in ("mail", "dead")],
    )
    check_rows(
        found_rows(node, where=[("op", "=", "move")]), [row for row in said if row["op"] == "move"]
    )
    check_rows(
        found_rows(node, where=[("log_index", ">", 120), ("log_index", "<=", 200)]),
        [row for row in said if 120 < row["log_index"] <= 200],
    )


def test_columns_alone_are_those_of_the_whole_rows(tmp_path: Path) -> None:
    node = write_directory(tmp_path / "node", history(6), segment_size=9000)
    whole = read(node, "entries").read_all()
    for name in whole.schema.names:
        assert read(node, "entries", columns=[name]).read_all().column(0) == whole.column(name)


# --- splits --------------------------------------------------------------------------------------


def batches_of_large(*, records: int = 60) -> list[Entry]:
    """Return a log of batches of tasks, 100 KB each, of two queues: one after the other."""
    made = Changes()
    made.begin()
    first, second = made.queue("first"), made.queue("second")
    for number in range(records):
        made.add(first if number < records // 2 else second, [bytes([number]) * 1000] * 100)
    return made.entries


def options(path: Path, **more: str) -> Any:
    return parse_options({"path": str(path), "table": "entries", **more})


def test_sealed_segments_are_split_at_records_by_their_footers(tmp_path: Path) -> None:
    entries = batches_of_large()
    node = write_directory(tmp_path / "node", entries, segment_size=4 * 2**20)
    parsed = options(node, splitSize="1000000", columns="log_index,task_id,payload")
    groups = plan(parsed)
    splits = [split for group in groups for split in group if isinstance(split.plan, RecordsPlan)]
    assert len(splits) > 4
    by_path: dict[str, list[tuple[int, int | None]]] = {}
    for split in splits:
        by_path.setdefault(split.plan.path, []).append((split.plan.start, split.plan.stop))
    for places in by_path.values():
        assert all(one[1] == other[0] for one, other in pairwise(places))
    # Each alone, in any order: a split needs no other one.
    columns = ["log_index", "task_id", "payload"]
    rows = [
        row
        for split in reversed(splits)
        for batch in read_splits([split], parsed, columns)
        for row in batch.to_pylist()
    ]
    said = [row for row in said_tasks(entries) if row["payload"] is not None]
    found = [row for row in rows if row["payload"] is not None]
    assert sorted(found, key=str) == sorted(said, key=str)


def said_tasks(entries: list[Entry]) -> list[Row]:
    return [
        {
            "log_index": stamp.index,
            "task_id": change.first_id + place,
            "payload": bytes(change.body.payload(place)),
        }
        for stamp, change in entries
        if isinstance(change, AddTasks)
        for place in range(change.body.count)
    ]


def read_bytes() -> int:
    """Return how many bytes this process has read so far, by its system calls."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def bytes_for(path: Path, **how: Any) -> int:
    read(path, "entries", **how).read_all()  # what is loaded once is loaded now
    before = read_bytes()
    read(path, "entries", **how).read_all()
    return read_bytes() - before


def test_footers_spare_segments_of_other_queues_and_other_entries(tmp_path: Path) -> None:
    entries = batches_of_large()
    node = write_directory(tmp_path / "node", entries, segment_size=2**20)
    size = sum(file.stat().st_size for file in (node / "log").iterdir())
    whole = bytes_for(node, columns=["log_index"])
    assert size < whole < 1.5 * size  # and the tails in which footers are looked for
    second = bytes_for(node, columns=["log_index"], where=[("queue", "=", "second")])
    assert second < 0.75 * whole
    few = bytes_for(node, columns=["log_index"], where=[("log_index", ">", 50)])
    assert few < 0.4 * whole


def test_a_split_within_a_segment_reads_its_own_bytes(tmp_path: Path) -> None:
    entries = batches_of_large()
    node = write_directory(tmp_path / "node", entries)  # one segment, not sealed
    sealed = write_directory(tmp_path / "sealed", entries, segment_size=5 * 2**20)
    condition = [("log_index", ">", 10), ("log_index", "<", 14)]
    everything = bytes_for(node, columns=["log_index"], where=condition)
    part = bytes_for(sealed, columns=["log_index"], where=condition, options={"splitSize": 2**20})
    assert part < 0.5 * everything


def test_a_payload_that_is_a_footer_seals_nothing(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    queue = made.queue("mail")
    sealed = write_directory(tmp_path / "sealed", [*made.entries], segment_size=100)
    whole = min((sealed / "log").iterdir()).read_bytes()
    made.add(queue, [whole[whole.rfind(b"PSK4") :]])
    node = write_directory(tmp_path / "node", made.entries)
    assert [row["log_index"] for row in found_rows(node)] == [1, 2, 3]


def test_payloads_of_one_add_are_a_view_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    made.add(made.queue("mail"), [bytes([number]) * 50 for number in range(200)], list(range(200)))
    node = write_directory(tmp_path / "node", made.entries)
    (split,) = [
        split
        for group in plan(options(node))
        for split in group
        if isinstance(split.plan, RecordsPlan)
    ]
    (batch,) = read_records(split.plan, str(node))
    assert isinstance(batch, Batch)
    rows = rows_of(units_of(batch.data, some(batch.records, slice(2, 3))))
    payloads = payload_column(rows).buffers()[2]
    start = batch.data.ctypes.data
    assert start <= payloads.address < start + len(batch.data)
