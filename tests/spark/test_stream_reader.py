"""A stream of a growing log, driven as Spark drives it, without a Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from penstock.errors import BadData, Compacted, CorruptData, InvalidValue, PathMissing, PathRefused
from penstock.families.family import Split
from penstock.families.follow import Offset
from penstock.families.taskflux.tables import growth as growing
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.sync_point import FILE_NAME
from penstock.spark import node as node_module
from penstock.spark.source import PenstockSource, Task
from penstock.spark.stream import StreamReader
from support.directories import build
from support.growing import GrowingDirectory
from support.node_process import NodeProcess, start
from support.spark_tables import Row, read_rows

ONE, TWO, THREE = Generation
ALL = ReadAllAvailable()
BEGINNING: Offset = {"index": -1, "term": 0}
each_generation = pytest.mark.parametrize("generation", [TWO, THREE])


_made: list[StreamReader] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """Stop the readers of a test, as Spark does at the end of a query."""
    yield
    while _made:
        _made.pop().stop()


def stream_of(path: Path | str | None, **options: str) -> StreamReader:
    """Return a reader as Spark makes it."""
    given = {name.lower(): value for name, value in options.items()}
    if path is not None:
        given["path"] = str(path)
    source = pickle.loads(pickle.dumps(PenstockSource(given)))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    _made.append(reader)
    return reader


def over(offset: Offset) -> Offset:
    """Return an offset as a checkpoint gives it back."""
    back: Offset = json.loads(json.dumps(offset))
    return back


def rows_between(reader: StreamReader, first: Offset, last: Offset) -> list[Row]:
    rows: list[Row] = []
    for task in pickle.loads(pickle.dumps(list(reader.partitions(over(first), over(last))))):
        assert isinstance(task, Task)
        own: StreamReader = pickle.loads(pickle.dumps(stream_twin(reader)))
        for batch in own.read(task):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def stream_twin(reader: StreamReader) -> StreamReader:
    """Return a reader that has not seen anything, as an executor's."""
    return StreamReader(reader._options, reader._columns)


def batches(
    reader: StreamReader, offset: Offset = BEGINNING, limit: ReadLimit = ALL
) -> Iterator[tuple[Offset, list[Row]]]:
    """Yield the batches up to what is there now: where each ends, and its rows."""
    while True:
        end = reader.latestOffset(over(offset), limit)
        if end == offset:
            return
        yield end, rows_between(reader, offset, end)
        offset = end


def streamed(reader: StreamReader, offset: Offset = BEGINNING, limit: ReadLimit = ALL) -> list[Row]:
    return [row for _, rows in batches(reader, offset, limit) for row in rows]


def indexes(rows: list[Row]) -> list[int]:
    return [row["log_index"] for row in rows]


def entries(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == "entry"]


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[GrowingDirectory]:
    with_entries = GrowingDirectory(tmp_path / "node")
    with_entries.add(35)
    yield with_entries
    with_entries.close()


# --- all of it, and as it grows ------------------------------------------------------------------


@each_generation
@pytest.mark.parametrize("table", ["entries", "changes"])
def test_a_stream_over_all_gives_the_rows_of_a_batch_over_all(
    tmp_path: Path, generation: Generation, table: str
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(35)
    log.add(7, term=3)
    log.close()
    of_batch = entries(read_rows(log.root, table=table))
    assert len(of_batch) == 42
    for limit in (ALL, ReadMaxRows(1), ReadMaxRows(9), ReadMaxRows(1000)):
        assert streamed(stream_of(log.root, table=table), limit=limit) == of_batch


@each_generation
def test_what_came_in_between_is_the_next_batch(tmp_path: Path, generation: Generation) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    reader = stream_of(log.root)
    offset = reader.initialOffset()
    assert offset == BEGINNING
    assert reader.latestOffset(offset, ALL) == offset
    seen: list[Row] = []
    for count in (1, 2, 30, 0, 5):
        log.add(count)
        end = reader.latestOffset(offset, ALL)
        seen += rows_between(reader, offset, end)
        assert indexes(seen) == list(range(log.end))
        offset = end
    log.close()


def test_segments_are_tasks_of_their_own(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root)
    end = reader.latestOffset(BEGINNING, ALL)
    plans = [task.splits[0] for task in reader.partitions(BEGINNING, end) if isinstance(task, Task)]
    tasks = [split.plan for split in plans if isinstance(split, Split)]
    assert len(tasks) == len(list(grown.directory.layout.log.glob("*.log"))) > 2
    assert [plan.first for plan in tasks][1:] == [plan.last + 1 for plan in tasks][:-1]


def test_a_limit_holds_and_an_engine_without_one_gets_all(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root, maxEntriesPerTrigger="10")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    assert [end["index"] for end, _ in batches(reader, limit=limit)] == [9, 19, 29, 34]
    assert reader.latestOffset(BEGINNING, ALL)["index"] == 34
    assert stream_of(grown.root).getDefaultReadLimit() == ALL


def test_the_range_that_options_give_is_kept(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root, startingIndex="5", endingIndex="20")
    begin = reader.initialOffset()
    assert begin == {"index": 4, "term": 0}
    assert indexes(streamed(reader, begin)) == list(range(5, 21))
    later = stream_of(grown.root, startingIndex="40")
    begin = later.initialOffset()
    assert later.latestOffset(begin, ALL) == begin
    grown.add(10)
    assert indexes(streamed(later, begin)) == list(range(40, 45))


def test_a_run_over_what_is_available_now_ends_there(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root, maxEntriesPerTrigger="20")
    reader.prepareForTriggerAvailableNow()
    grown.add(10)
    assert indexes(streamed(reader, limit=ReadMaxRows(20))) == list(range(35))
    assert reader.reportLatestOffset() == {"index": 44}


def test_a_look_scans_only_what_is_new(grown: GrowingDirectory, monkeypatch: Any) -> None:
    scanned_from: list[int] = []
    scan = growing._boundaries

    def spy(file: Any, layout: Any, mark: growing.Mark, index: int | None) -> Any:
        scanned_from.append(mark.entry)
        return scan(file, layout, mark, index)

    monkeypatch.setattr(growing, "_boundaries", spy)
    reader = stream_of(grown.root)
    offset = reader.latestOffset(BEGINNING, ALL)
    scanned_from.clear()
    assert reader.latestOffset(offset, ALL) == offset
    assert scanned_from == []
    for _ in range(30):
        grown.add(1)
        end = reader.latestOffset(offset, ALL)
        reader.partitions(offset, end)
        offset = end
    # Each entry from the mark before it; the newest segment begins where the last one ended.
    assert scanned_from == sorted(set(scanned_from))
    assert len(scanned_from) == 30


@each_generation
def test_marks_that_were_forgotten_are_found_again(
    tmp_path: Path, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_MARKS_MAX", 2)
    monkeypatch.setattr(growing, "_SEGMENTS_MAX", 1)
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(40)
    reader = stream_of(log.root)
    every = [BEGINNING, *(end for end, _ in batches(reader, limit=ReadMaxRows(1)))]
    assert len(every) == 41
    for first, last in zip(every[30:0:-7], every[39:0:-7], strict=False):
        rows = rows_between(reader, first, last)
        assert indexes(rows) == list(range(first["index"] + 1, last["index"] + 1))
    log.close()


@each_generation
@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_between_batches_each_entry_comes_once(
    tmp_path: Path, generation: Generation, seed: int
) -> None:
    random = Random(seed)
    log = GrowingDirectory(tmp_path / "node", generation)
    reader, offset, term = stream_of(log.root), BEGINNING, 1
    seen: list[Row] = []
    for _ in range(60):
        match random.randrange(6):
            case 0 | 1:
                term += random.random() < 0.2
                log.add(random.randrange(12), term=term)
            case 2 if offset["index"] >= log.directory.log.first:
                log.compact(random.randint(log.directory.log.first, offset["index"]))
            case 3:
                reader = stream_of(log.root)
            case 4 if log.end > 0:
                log.tear()
            case _:
                limit = random.choice([ALL, ReadMaxRows(random.randint(1, 15))])
                end = reader.latestOffset(over(offset), limit)
                rows = rows_between(reader, offset, end)
                if random.random() < 0.3:  # the batch again, after a restart
                    reader = stream_of(log.root)
                    assert rows_between(reader, offset, end) == rows
                seen += rows
                offset = end
    seen += streamed(reader, offset)
    assert indexes(seen) == list(range(log.end))
    assert [row["payload"] for row in seen] == [b"task %d" % n for n in range(log.end)]
    log.close()


# --- restart -------------------------------------------------------------------------------------


@each_generation
def test_a_new_reader_goes_on_where_the_checkpoint_says(
    tmp_path: Path, generation: Generation
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(23)
    reader = stream_of(log.root)
    offset = reader.latestOffset(BEGINNING, ReadMaxRows(17))
    assert offset == {"index": 16, "term": 1}
    before = rows_between(reader, BEGINNING, offset)
    log.add(10, term=2)
    after = streamed(stream_of(log.root), offset)
    assert indexes(before + after) == list(range(33))
    log.close()


@each_generation
def test_a_range_is_replayed_to_the_same_tasks_and_rows(
    tmp_path: Path, generation: Generation
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(30)
    reader = stream_of(log.root)
    first = reader.latestOffset(BEGINNING, ReadMaxRows(7))
    last = reader.latestOffset(first, ALL)
    plans = [task.splits[0] for task in reader.partitions(first, last)]  # type: ignore[attr-defined]
    rows = rows_between(reader, first, last)
    log.add(40, term=2)
    again = stream_of(log.root)
    assert [task.splits[0] for task in again.partitions(first, last)] == plans  # type: ignore[attr-defined]
    assert rows_between(again, first, last) == rows
    log.close()


def test_an_empty_range_has_no_tasks(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root)
    end = reader.latestOffset(BEGINNING, ALL)
    assert reader.partitions(end, end) == []


def test_an_entry_of_another_term_than_the_one_delivered_fails_the_stream(
    grown: GrowingDirectory,
) -> None:
    reader = stream_of(grown.root)
    with pytest.raises(CorruptData, match="entry 20 was delivered with term 7 and now has 1"):
        reader.latestOffset({"index": 20, "term": 7}, ALL)
    with pytest.raises(CorruptData, match="entry 30 was delivered with term 7"):
        reader.partitions(BEGINNING, {"index": 30, "term": 7})


def test_a_log_that_ends_before_the_checkpoint_fails_the_stream(grown: GrowingDirectory) -> None:
    with pytest.raises(CorruptData, match="entry 99 is not where the log must have it"):
        stream_of(grown.root).latestOffset({"index": 99, "term": 1}, ALL)


# --- compaction ----------------------------------------------------------------------------------


@each_generation
def test_a_stream_that_begins_before_the_log_fails(tmp_path: Path, generation: Generation) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(35)
    log.compact(22)
    first = log.directory.log.first
    assert first > 0
    reader = stream_of(log.root)
    with pytest.raises(Compacted, match=f"entries 0 to {first - 1} were compacted away") as caught:
        reader.latestOffset(BEGINNING, ALL)
    assert caught.value.first == first
    from_there = stream_of(log.root, startingIndex=str(first))
    assert indexes(streamed(from_there, from_there.initialOffset())) == list(range(first, 35))
    log.close()


@each_generation
def test_without_failing_it_begins_at_the_first_entry_kept(
    tmp_path: Path, generation: Generation
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(35)
    reader = stream_of(log.root, failOnDataLoss="false")
    offset = reader.latestOffset(BEGINNING, ReadMaxRows(3))
    assert indexes(rows_between(reader, BEGINNING, offset)) == [0, 1, 2]
    log.compact(22)
    first = log.directory.log.first
    ends = list(batches(reader, offset, ReadMaxRows(5)))
    assert indexes([row for _, rows in ends for row in rows]) == list(range(first, 35))
    assert all(len(rows) <= 5 for _, rows in ends)
    assert rows_between(reader, BEGINNING, offset) == []  # a replay of what is gone by now
    log.close()


@each_generation
def test_a_compaction_of_what_was_delivered_is_not_noticed(
    tmp_path: Path, generation: Generation
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(35)
    reader = stream_of(log.root)
    offset = reader.latestOffset(BEGINNING, ReadMaxRows(30))
    log.compact(29)
    log.add(5)
    assert indexes(streamed(reader, offset)) == list(range(30, 40))
    assert indexes(streamed(stream_of(log.root), offset)) == list(range(30, 40))
    log.close()


@each_generation
def test_entries_that_went_away_after_planning_fail_the_task(
    tmp_path: Path, generation: Generation
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(35)
    reader = stream_of(log.root)
    tasks = reader.partitions(BEGINNING, reader.latestOffset(BEGINNING, ALL))
    log.compact(30)
    with pytest.raises(Compacted, match="were compacted away before they were read"):
        list(reader.read(tasks[0]))
    log.close()


def test_entries_that_moved_to_another_file_after_planning_are_read_there(tmp_path: Path) -> None:
    log = GrowingDirectory(tmp_path / "node", TWO)
    log.add(35)
    reader = stream_of(log.root)
    offset = reader.latestOffset(BEGINNING, ReadMaxRows(20))
    tasks = reader.partitions(offset, reader.latestOffset(offset, ALL))
    log.compact(19)
    log.add(5)
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert indexes(rows) == list(range(20, 35))
    assert [row["payload"] for row in rows] == [b"task %d" % n for n in range(20, 35)]
    log.close()


# --- tails and damage ----------------------------------------------------------------------------


@each_generation
@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_torn_tail_is_not_damage_while_the_file_may_grow(
    tmp_path: Path, generation: Generation, mode: str
) -> None:
    log = GrowingDirectory(tmp_path / "node", generation)
    log.add(14)
    log.tear()
    reader = stream_of(log.root, mode=mode)
    assert indexes(streamed(reader)) == list(range(14))
    offset = reader.latestOffset(BEGINNING, ALL)
    log.add(3)  # written over what was torn
    assert indexes(streamed(reader, offset)) == [14, 15, 16]
    log.close()


def test_entries_that_are_not_synced_are_not_there_yet(grown: GrowingDirectory) -> None:
    reader = stream_of(grown.root)
    grown.write()
    assert reader.latestOffset(BEGINNING, ALL)["index"] == 34
    grown.directory.log.sync()
    assert reader.latestOffset(BEGINNING, ALL)["index"] == 35


def test_in_generation_2_entries_that_are_not_committed_are_not_there_yet(tmp_path: Path) -> None:
    log = GrowingDirectory(tmp_path / "node", TWO)
    log.add(3)
    log.write()
    log.directory.log.sync()
    assert stream_of(log.root).latestOffset(BEGINNING, ALL)["index"] == 2
    log.close()


def test_without_a_sync_point_whole_entries_count(grown: GrowingDirectory) -> None:
    grown.write()
    (grown.directory.layout.companions / FILE_NAME).unlink()
    grown.tear()
    reader = stream_of(grown.root)
    assert indexes(streamed(reader)) == list(range(36))
    offset = reader.latestOffset(BEGINNING, ALL)
    grown.add(4)
    assert indexes(streamed(reader, offset)) == list(range(36, 40))


def test_a_log_of_generation_1_streams_too(tmp_path: Path) -> None:
    root = build(tmp_path / "node", ONE)
    rows = streamed(stream_of(root), limit=ReadMaxRows(4))
    assert rows == entries(read_rows(root))
    assert len(rows) == 9


def test_a_record_that_is_damaged_is_a_row_that_says_so(grown: GrowingDirectory) -> None:
    flip(grown, entry=3)
    rows = streamed(stream_of(grown.root))
    assert [(row["log_index"], row["status"]) for row in rows if row["status"] != "ok"] == [
        (3, "bad-checksum")
    ]
    assert indexes(rows) == list(range(35))
    with pytest.raises(CorruptData, match="entry 3, bad-checksum"):
        streamed(stream_of(grown.root, mode="FAILFAST"))


def test_damage_that_hides_entries_fails_the_stream(grown: GrowingDirectory) -> None:
    segment = min(grown.directory.layout.log.glob("*.log"))
    data = bytearray(segment.read_bytes())
    place = data.index(b"task 2") + len(b"task 2")
    data[place : place + 30] = b"\xff" * 30
    segment.write_bytes(data)
    with pytest.raises(CorruptData, match="damage hides some"):
        streamed(stream_of(grown.root))
    left = streamed(stream_of(grown.root, failOnDataLoss="false"))
    assert indexes(left)[:3] == [0, 1, 2]
    assert indexes(left)[-1] == 34


def test_a_snapshot_that_cannot_be_read_hides_where_a_log_of_generation_2_begins(
    tmp_path: Path,
) -> None:
    log = GrowingDirectory(tmp_path / "node", TWO)
    log.add(20)
    log.compact(10)
    log.close()
    log.directory.layout.snapshot.write_bytes(b"no snapshot at all")
    reader = stream_of(log.root, failOnDataLoss="false")
    for _ in range(2):
        with pytest.raises(BadData, match="snapshot"):
            reader.latestOffset(BEGINNING, ALL)


def flip(log: GrowingDirectory, *, entry: int) -> None:
    """Change a byte in an entry's payload."""
    for segment in log.directory.layout.log.glob("*.log"):
        data = segment.read_bytes()
        if b"task %d\xaa" % entry in data:
            segment.write_bytes(data.replace(b"task %d\xaa" % entry, b"tusk %d\xaa" % entry))


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "tasks"}, "is a state, not a stream"),
        ({"uncommitted": "true"}, "never has what may be taken back"),
        ({"files": "one.log"}, "from file to file"),
    ],
)
def test_what_no_stream_can_do_is_refused_at_its_first_use(
    grown: GrowingDirectory, options: dict[str, str], words: str
) -> None:
    reader = stream_of(grown.root, **options)  # Spark would hide the reason if this raised
    with pytest.raises(InvalidValue, match=words):
        reader.initialOffset()
    with pytest.raises(InvalidValue, match=words):
        reader.latestOffset(BEGINNING, ALL)


def test_a_stream_is_of_one_log(tmp_path: Path) -> None:
    for name in ("a", "b"):
        GrowingDirectory(tmp_path / name).close()
    with pytest.raises(InvalidValue, match="follows one log and 2 were named"):
        stream_of(tmp_path / "*").initialOffset()
    with pytest.raises(PathMissing):
        stream_of(tmp_path / "c").initialOffset()
    metadata = build(tmp_path / "d", THREE) / "data" / "tflux.metadata"
    with pytest.raises(PathRefused, match="not of a metadata"):
        stream_of(metadata).initialOffset()


# --- a live node ---------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[NodeProcess]:
    with start(tmp_path / "live") as process:
        yield process


def without_place(rows: list[Row]) -> list[Row]:
    return [row | {"source": None, "path": None, "offset": None} for row in rows]


def fill(node: NodeProcess, count: int) -> None:
    with node.client() as client:
        client.create_queue("orders", exist_ok=True)
        client.enqueue_many("orders", [b"task %d" % n for n in range(count)], key=3)


def node_reader(node: NodeProcess, **options: str) -> Any:
    source = PenstockSource({"node": node.address, **options})
    return source.reader(source.schema())


def all_rows(reader: Any) -> list[Row]:
    """Return the rows of a batch read, each task's by a reader that came from the driver."""
    own = pickle.loads(pickle.dumps(reader))
    return [
        row
        for task in reader.partitions()
        for batch in own.read(pickle.loads(pickle.dumps(task)))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("table", ["entries", "changes"])
def test_a_live_node_has_the_rows_of_its_files(
    live: NodeProcess, table: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(node_module, "ENTRIES_PER_TASK", 100)
    fill(live, 250)
    with live.client() as client:
        client.ack(client.dequeue_many("orders", 10))
    reader = node_reader(live, table=table)
    of_node = all_rows(reader)
    of_files = entries(read_rows(live.data, table=table))
    assert without_place(of_node) == without_place(of_files)
    assert {(row["source"], row["path"], row["offset"]) for row in of_node} == {
        (live.address, None, None)
    }
    assert len(reader.partitions()) > 2
    of_stream = streamed(stream_of(None, node=live.address, table=table), limit=ReadMaxRows(77))
    assert of_stream == of_node


def test_options_narrow_what_a_node_is_asked_for(live: NodeProcess) -> None:
    fill(live, 50)
    everything = all_rows(node_reader(live, table="changes"))
    reader = node_reader(live, table="changes", startingindex="21", ops="add")
    assert all_rows(reader) == [r for r in everything if r["log_index"] > 20 and r["op"] == "add"]
    assert reader.partitions()[0].splits[0].first == 21
    assert all_rows(node_reader(live, files="some.log")) == []


def test_a_stream_has_the_queues_and_ops_that_were_asked_for(live: NodeProcess) -> None:
    fill(live, 5)
    with live.client() as client:
        client.create_queue("mail")
        client.enqueue("mail", b"to: ada")
    for source in ({"node": live.address}, {"path": str(live.data)}):
        given = {name: value for name, value in source.items() if name == "node"}
        path = source.get("path")
        mail = streamed(stream_of(path, **given, table="changes", queues="mail"))
        assert [row["op"] for row in mail] == ["create", "add"]
        added = streamed(stream_of(path, **given, table="changes", ops="add"), limit=ReadMaxRows(3))
        assert [row["queue"] for row in added] == ["orders"] * 5 + ["mail"]


def test_a_stream_of_a_live_node_goes_on_where_it_was(live: NodeProcess) -> None:
    fill(live, 20)
    reader = stream_of(None, node=live.address)
    offset = reader.latestOffset(BEGINNING, ALL)
    assert streamed(reader, offset) == []
    fill(live, 30)
    rows = streamed(stream_of(None, node=live.address), offset)
    assert indexes(rows)[0] == offset["index"] + 1
    assert [row["payload"] for row in rows if row["op"] == "add"] == [
        b"task %d" % n for n in range(30)
    ]
    with pytest.raises(CorruptData, match="was delivered with term 9"):
        reader.latestOffset(offset | {"term": 9}, ALL)


def test_a_stream_of_a_directory_can_go_on_as_one_of_its_node(live: NodeProcess) -> None:
    fill(live, 20)
    of_files = stream_of(live.data)
    offset = of_files.latestOffset(BEGINNING, ReadMaxRows(9))
    rest = streamed(stream_of(None, node=live.address), offset)
    assert without_place(rest) == without_place(streamed(of_files, offset))


def test_a_node_that_compacted_says_so(tmp_path: Path) -> None:
    log = GrowingDirectory(tmp_path / "node")
    log.add(35)
    log.compact(22)
    first = log.directory.log.first
    log.close()
    with start(tmp_path / "node") as node:
        reader = stream_of(None, node=node.address)
        with pytest.raises(Compacted, match=f"entries 0 to {first - 1} were compacted away"):
            reader.latestOffset(BEGINNING, ALL)
        rows = streamed(stream_of(None, node=node.address, failOnDataLoss="false"))
        assert indexes(rows)[:2] == [first, first + 1]
        with pytest.raises(Compacted, match="read its files"):
            node_reader(node).partitions()
        assert all_rows(node_reader(node, failondataloss="false")) == rows
        assert all_rows(node_reader(node, startingindex=str(first))) == rows
