"""A filtered read is the full read, filtered; and what cannot match is not read."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.formats.taskflux.log import (
    LogLayout,
    encode_header,
    encode_record,
    segment_name,
)
from penstock.storage import files as storage_files
from penstock.storage import reading
from penstock.storage.files import OsFile, OsFiles
from support.damage import random_damage
from support.histories import nodes
from support.node_files import write_files
from support.spark_tables import MEMORY, read_rows, reader_of, rows_of

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)

_queues = st.sampled_from(["", "a", "b", "mail", "nobody"])
_ops = st.sampled_from(
    ["add", "remove", "create", "delete", "enqueue", "dequeue", "list", "count", "queue", "task"]
)
_paths = st.sampled_from(
    ["consensus/raft.log", "consensus/log.raft", "data/tflux.snapshot", "consensus/raft.snapshot",
     "data/tflux.metadata", *(f"data/log/{segment_name(first)}" for first in range(4))]
)  # fmt: skip


@each_layout
@given(data=st.data(), ends=st.tuples(st.integers(0, 13), st.integers(0, 13)))
def test_a_range_given_as_options_is_exactly_the_rows_of_those_indexes(
    layout: LogLayout, data: st.DataObject, ends: tuple[int, int]
) -> None:
    node = data.draw(nodes(layout))
    first, last = sorted(ends)
    with TemporaryDirectory(dir=MEMORY) as place:
        root = node.write(Path(place))
        whole = read_rows(root)
        found = read_rows(root, startingIndex=str(first), endingIndex=str(last), split=40)
    expected = [
        row for row in whole if row["log_index"] is not None and first <= row["log_index"] <= last
    ]
    assert found == expected


@each_layout
@pytest.mark.parametrize("table", ["entries", "changes"])
@given(
    data=st.data(),
    queues=st.none() | st.lists(_queues, max_size=2),
    ops=st.none() | st.lists(_ops, max_size=3),
    files=st.none() | st.lists(_paths, max_size=6),
    split=st.integers(8, 300),
)
def test_names_given_as_options_are_exactly_the_rows_that_have_them(
    layout: LogLayout,
    table: str,
    data: st.DataObject,
    queues: list[str] | None,
    ops: list[str] | None,
    files: list[str] | None,
    split: int,
) -> None:
    node = data.draw(nodes(layout))
    random = Random(data.draw(st.integers(0, 2**32)))
    written = node.files()
    name = random.choice(sorted(written))
    start = layout.header_size if "log" in name else 40
    written[name] = random_damage(random, written[name], start=start)
    given = {"queue": queues, "op": ops, "path": files}
    options = {"queues": queues, "ops": ops, "files": files}
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), written)
        try:
            whole = read_rows(root, table=table)
        except PenstockError:
            return  # a directory that nobody can read
        found = read_rows(
            root,
            table=table,
            split=split,
            **{n: json.dumps(v) for n, v in options.items() if v is not None},
        )
    assert found == [
        row
        for row in whole
        if all(values is None or row[column] in values for column, values in given.items())
    ]


# --- what is not read ----------------------------------------------------------------------------


class Opened(OsFiles):
    """Real files, and the names of those that were opened."""

    def __init__(self) -> None:
        self.names_opened: list[str] = []

    def open(self, path: Path, *, write: bool, create: bool = False) -> OsFile:
        self.names_opened.append(path.name)
        return super().open(path, write=write, create=create)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    files = Opened()
    monkeypatch.setattr(storage_files, "FILES", files)
    return files.names_opened


def segments(root: Path, *, count: int, each: int) -> list[str]:
    """Write segments of so many entries each, and return their names."""
    record = encode_record(LogLayout.THREE, term=1, payload=b"D\x01a")
    data = encode_header(LogLayout.THREE) + record * each
    names = [segment_name(number * each) for number in range(count)]
    write_files(root, {f"data/log/{name}": data for name in names})
    return names


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingIndex": "25", "endingIndex": "25"}, [2]),
        ({"startingIndex": "30", "endingIndex": "49"}, [3, 4]),
        ({"startingIndex": "80"}, [8, 9]),
        ({"endingIndex": "10"}, [0, 1]),
        ({"endingIndex": "9"}, [0]),
        ({"files": f"data/log/{segment_name(70)}"}, [7]),
        ({"startingIndex": "500"}, [9]),  # nothing tells where the last one ends
        ({"files": "elsewhere"}, []),
        ({"queues": "[]"}, []),
        ({"ops": '["task", "queue"]'}, []),
        ({"ops": "delete"}, list(range(10))),
    ],
    ids=str,
)
def test_segments_that_cannot_match_are_never_opened(
    tmp_path: Path, opened: list[str], options: dict[str, Any], wanted: list[int]
) -> None:
    names = segments(tmp_path, count=10, each=10)
    reader = reader_of(tmp_path, **options)
    rows = rows_of(reader)
    assert sorted(set(opened)) == [names[number] for number in wanted]
    assert {row["path"].rpartition("/")[2] for row in rows} <= set(opened)


def test_a_read_stops_behind_the_last_entry_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits of one large file that begin behind it end as soon as they know."""
    monkeypatch.setattr(reading, "WINDOW", 1000)
    segments(tmp_path, count=1, each=3000)
    read: list[int] = []
    plain = OsFile.read

    def counted(file: OsFile, offset: int, size: int) -> bytes:
        data = plain(file, offset, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(OsFile, "read", counted)
    reader = reader_of(tmp_path, endingIndex="4", split=10_000)
    assert len(reader.partitions()) > 5
    rows = rows_of(reader)
    assert [row["log_index"] for row in rows] == list(range(5))
    assert sum(read) < 3000 * len(reader.partitions())
