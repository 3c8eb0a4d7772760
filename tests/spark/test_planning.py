"""Planning finds every file once, cuts what is large, groups what is small, and reads only headers."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    BadData,
    Compacted,
    PathMissing,
    PathRefused,
    PenstockError,
    StorageError,
    UnknownFormat,
)
from penstock.families.family import Split
from penstock.families.plan import GROUP_MAX, group
from penstock.families.taskflux.tables.plan import LogPlan
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record, segment_name
from penstock.storage import files
from penstock.storage.files import OsFile, OsFiles
from support.node_files import write_files
from support.report import report
from support.samples import NODES, ONE_A, THREE, TWO
from support.spark_tables import MEMORY, pieces_of, ranges_of, read_rows, reader_of, tasks_of

RECORD = encode_record(LogLayout.THREE, term=1, payload=b"D\x01a")
HEAD = encode_header(LogLayout.THREE)


def segments(root: Path, sizes: list[int]) -> Path:
    """Write segments with so many entries each."""
    first = 0
    files = {}
    for size in sizes:
        files[f"data/log/{segment_name(first)}"] = HEAD + RECORD * size
        first += size
    return write_files(root, files)


# --- splits and groups ---------------------------------------------------------------------------


def test_a_large_file_is_cut_without_gap_or_overlap(tmp_path: Path) -> None:
    root = segments(tmp_path, [1000])
    size = len(HEAD) + 1000 * len(RECORD)
    for split in (1024, 1500, 4096, 10_000):
        ranges = ranges_of(reader_of(root, splitSize=str(split)))
        assert ranges[0][1] == len(HEAD)
        assert ranges[-1][2] == size
        assert [start for _, start, _ in ranges[1:]] == [stop for _, _, stop in ranges[:-1]]
        assert all(stop - start <= split for _, start, stop in ranges)


def test_a_file_that_is_hardly_too_large_stays_whole(tmp_path: Path) -> None:
    root = segments(tmp_path, [60])
    size = 60 * len(RECORD)
    assert len(ranges_of(reader_of(root, split=size))) == 1
    assert len(ranges_of(reader_of(root, split=size * 3 // 4))) == 1
    assert len(ranges_of(reader_of(root, split=size // 2))) == 2


def test_a_log_without_markers_is_never_cut(tmp_path: Path) -> None:
    """No place in its middle tells a record from what looks like one."""
    for name in ("1a", "1b", "1c"):
        root = NODES[name].write(tmp_path / name)
        assert len(ranges_of(reader_of(root, split=1))) == 1


def test_what_a_segment_was_given_in_advance_makes_no_tasks(tmp_path: Path) -> None:
    """Each of them once planned a task for every ``splitSize`` of a hole."""
    root = segments(tmp_path, [100, 100])
    whole = read_rows(root)
    for path in (root / "data" / "log").iterdir():
        os.truncate(path, 20 * 2**20)
    ranges = ranges_of(reader_of(root, splitSize="1k"))
    block = 2**16  # more than a file system keeps track of holes by
    assert len(ranges) <= 2 * block // 1024
    assert {stop for _, _, stop in ranges} >= {20 * 2**20}
    assert read_rows(root, splitSize="1k") == whole


def test_records_behind_a_hole_are_found(tmp_path: Path) -> None:
    root = segments(tmp_path, [100])
    (path,) = (root / "data" / "log").iterdir()
    with path.open("r+b") as file:
        file.seek(5 * 2**20 + 77)
        file.write(RECORD * 100)
    rows = read_rows(root)
    assert [row["status"] for row in rows] == ["ok"] * 100 + ["zeros"] + ["ok"] * 100
    assert read_rows(root, splitSize="1k") == rows
    assert len(ranges_of(reader_of(root, splitSize="1k"))) < 300


@given(seed=st.integers(0, 2**32), split=st.integers(64, 2000))
def test_no_byte_is_left_out_whatever_is_said_of_holes(seed: int, split: int) -> None:
    """The file system is asked for speed alone: one that lies must not hide an entry."""

    def lying(file: OsFile, offset: int) -> int | None:
        ahead = Random(f"{seed} {offset}").randrange(6000)
        return offset + ahead if ahead < 5000 else None

    with TemporaryDirectory(dir=MEMORY) as place:
        root = segments(Path(place), [400])
        reader = reader_of(root, split=split)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OsFile, "next_data", lying)
            tasks = tasks_of(reader)
        plans = [piece.plan for task in tasks for piece in task.splits]
        edges = [plan.start for plan in plans if isinstance(plan, LogPlan)]
        stops = [plan.stop for plan in plans if isinstance(plan, LogPlan)]
        assert edges == sorted(set(edges))
        assert [*edges, len(HEAD) + 400 * len(RECORD)] == [len(HEAD), *stops]
        found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        assert found == read_rows(root)


def test_many_small_files_are_read_by_few_tasks(tmp_path: Path) -> None:
    root = segments(tmp_path, [10] * 200)
    assert len(tasks_of(reader_of(root))) == 1
    tasks = tasks_of(reader_of(root, splitSize="2k"))
    assert 10 * 200 * len(RECORD) // 2048 <= len(tasks) < 30
    assert [row["log_index"] for row in read_rows(root, splitSize="2k")] == list(range(2000))


@given(sizes=st.lists(st.integers(0, 300), max_size=60), limit=st.integers(1, 400))
def test_groups_keep_order_and_are_as_large_as_they_may(sizes: list[int], limit: int) -> None:
    splits = [
        Split(family="f", source="s", size=size, plan=number) for number, size in enumerate(sizes)
    ]
    groups = group(splits, limit)
    assert [piece for one in groups for piece in one] == splits
    for one, following in pairwise(groups):
        assert sum(piece.size for piece in one) + following[0].size > limit
    for one in groups:
        assert len(one) == 1 or sum(piece.size for piece in one) <= limit


def test_a_group_is_bounded_however_small_its_pieces() -> None:
    splits = [Split(family="f", source="s", size=0, plan=None)] * (2 * GROUP_MAX + 1)
    assert [len(one) for one in group(splits, 100)] == [GROUP_MAX, GROUP_MAX, 1]


def test_an_empty_log_is_no_rows_and_no_error(tmp_path: Path) -> None:
    assert read_rows(segments(tmp_path, [0])) == []
    assert len(tasks_of(reader_of(tmp_path))) == 1


# --- what planning reads -------------------------------------------------------------------------


def test_planning_reads_names_sizes_and_headers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    plain = OsFile.read

    def counted(file: OsFile, offset: int, size: int) -> bytes:
        data = plain(file, offset, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(OsFile, "read", counted)
    root = segments(tmp_path, [5000] * 3)
    for table in ("entries", "changes", "tasks"):
        read.clear()
        tasks_of(reader_of(root, table=table))
        assert sum(read) <= 3 * 16


def test_ten_thousand_segments_are_planned_quickly(tmp_path: Path) -> None:
    root = segments(tmp_path, [1] * 10_000)
    reader = reader_of(root)
    start = process_time()
    partitions = reader.partitions()
    taken = process_time() - start
    report(f"planning 10,000 segments: {taken:.2f} s of processor time")
    assert len(partitions) == 1
    assert taken < 5
    start = process_time()
    assert len(pieces_of(reader_of(root, startingIndex="500", endingIndex="509"))) == 10
    assert process_time() - start < 5


# --- paths ---------------------------------------------------------------------------------------


def sources(*paths: object) -> list[str]:
    """Return the sources that are read, each once, in their order."""
    return list(dict.fromkeys(row["source"] for row in read_rows(*paths)))


def test_several_paths_are_several_sources(tmp_path: Path) -> None:
    two, three = TWO.write(tmp_path / "two"), THREE.write(tmp_path / "three")
    assert sources(three, two) == [str(three), str(two)]
    assert len(read_rows(three, two)) == len(read_rows(three)) + len(read_rows(two))


def test_the_same_path_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = THREE.write(tmp_path / "node")
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    whole = read_rows(root)
    for again in (root, "node", "./node/", f"file://{root}", f"{tmp_path}/link", "node/../node"):
        assert read_rows(root, again) == whole


def test_a_pattern_stands_for_what_it_matches(tmp_path: Path) -> None:
    names = [str(THREE.write(tmp_path / f"node-{number}")) for number in (2, 1, 3)]
    assert sources(tmp_path / "node-*") == sorted(names)
    assert sources(tmp_path / "node-[12]") == sorted(names)[:2]
    assert sources(tmp_path / "node-1", tmp_path / "node-?") == sorted(names)


def test_a_name_that_looks_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    root = THREE.write(tmp_path / "node[1]")
    THREE.write(tmp_path / "node1")
    assert sources(root) == [str(root)]


@pytest.mark.parametrize("prefix", ["file://", "file:", "FILE:"])
def test_local_addresses_are_paths(tmp_path: Path, prefix: str) -> None:
    root = THREE.write(tmp_path / "my node")
    assert sources(f"{prefix}{root}") == [str(root)]
    assert sources(f"{prefix}{root}".replace(" ", "%20")) == [str(root)]
    percent = THREE.write(tmp_path / "my%20node")
    assert sources(f"{prefix}{percent}") == [str(percent)]
    assert sources(f"{prefix}{tmp_path}/my*node") == [str(root), str(percent)]


@pytest.mark.parametrize(
    "path", ["s3://bucket/node", "hdfs://host:1/node", "s3a://b/*", "file://host/node", "http://x"]
)
def test_addresses_of_other_machines_are_refused(path: str) -> None:
    with pytest.raises(PathRefused, match=r"only local paths are read; mount or copy it first"):
        reader_of(path).partitions()


def test_a_name_with_a_colon_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = THREE.write(tmp_path / "node:1")
    assert sources("node:1") == sources(root) == [str(root)]
    with pytest.raises(PathMissing):
        reader_of("node:2").partitions()


def test_the_directory_of_segments_can_be_named_itself(tmp_path: Path) -> None:
    """Its metadata and snapshot lie beside it; their rows once could not name their path."""
    root = THREE.write(tmp_path)
    paths = {row["path"] for row in read_rows(root / "data" / "log")}
    assert {"../tflux.metadata", "../tflux.snapshot", segment_name(2)} <= paths


def test_rows_of_a_single_file_bear_its_name(tmp_path: Path) -> None:
    path = THREE.write(tmp_path) / "data" / "log" / segment_name(2)
    rows = read_rows(path)
    assert {(row["source"], row["path"]) for row in rows} == {(str(path), path.name)}
    assert [row["log_index"] for row in rows] == [2, 3]


# --- what is refused, on the driver --------------------------------------------------------------


def refused(*paths: object, **options: Any) -> PenstockError:
    """Return the error of a plan; it is one sentence."""
    reader = reader_of(*paths, **options)
    with pytest.raises(PenstockError) as caught:
        reader.partitions()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("table", ["entries", "changes", "tasks"])
def test_a_path_that_is_nothing_is_refused_when_planned(tmp_path: Path, table: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("just some words")
    (tmp_path / "nothing").write_bytes(b"")
    other = tmp_path / "other"
    other.mkdir()
    (other / "readme").write_text("words")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for name, kind in {
        "missing": PathMissing,
        "missing/deeper": PathMissing,
        "text/deeper": PathMissing,
        "missing-*": PathMissing,
        "dangling": PathMissing,
        "empty": PathRefused,
        "nothing": PathRefused,
        "other": PathRefused,
        "pipe": PathRefused,
        "text": UnknownFormat,
    }.items():
        error = refused(tmp_path / name, table=table)
        assert type(error) is kind, name
        assert str(tmp_path / name) in str(error)


def test_one_bad_path_among_good_ones_is_refused(tmp_path: Path) -> None:
    root = THREE.write(tmp_path / "node")
    assert isinstance(refused(root, tmp_path / "missing"), PathMissing)
    assert isinstance(refused(tmp_path / "*", tmp_path), PathRefused)


@pytest.mark.parametrize("path", ["x" * 5000, "/nul\0byte"])
def test_a_name_that_no_file_can_have_is_refused(path: str) -> None:
    assert isinstance(refused(path), StorageError)


@pytest.mark.parametrize("table", ["entries", "tasks"])
def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    root = THREE.write(tmp_path)
    hidden = segment_name(4)

    class Guarded(OsFiles):
        def open(self, path: Path, *, write: bool, create: bool = False) -> OsFile:
            if path.name == hidden:
                raise PermissionError(13, "Permission denied", str(path))
            return super().open(path, write=write, create=create)

    monkeypatch.setattr(files, "FILES", Guarded())
    error = refused(root, table=table)
    assert isinstance(error, PathRefused)
    assert str(error) == (
        f"{root}/data/log/{hidden}: Permission denied; check that it is there and readable"
    )


def test_a_state_that_the_snapshot_has_overtaken_is_refused_when_planned(tmp_path: Path) -> None:
    for name in ("1b", "1c", "2", "3"):
        root = NODES[name].write(tmp_path / name)
        error = refused(root, table="tasks", at="0")
        assert isinstance(error, Compacted)
        assert str(root) in str(error)
    # Variant 1a keeps what its snapshot covers.
    assert tasks_of(reader_of(ONE_A.write(tmp_path / "1a"), table="tasks", at="0"))


def test_a_snapshot_that_cannot_be_read_is_no_state(tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    (root / "data" / "tflux.snapshot").write_bytes(b"????" * 10)
    error = refused(root, table="tasks")
    assert isinstance(error, BadData)
    assert "tflux.snapshot" in str(error)
