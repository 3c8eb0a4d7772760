"""A filtered read is the full read, filtered; and what cannot match is not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.errors import PenstockError
from penstock.formats.taskflux.log import (
    LogLayout,
    encode_header,
    encode_record,
    segment_name,
)
from penstock.spark.filters import Filters, with_pushed
from penstock.storage import reading
from penstock.storage.files import OsFile, OsFiles
from penstock.tools import target
from support.damage import random_damage
from support.histories import nodes
from support.node_files import write_files
from support.spark_tables import MEMORY, Row, read_rows, reader_of, rows_of

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)

_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda mine, value: mine == value,
    GreaterThan: lambda mine, value: mine > value,
    GreaterThanOrEqual: lambda mine, value: mine >= value,
    LessThan: lambda mine, value: mine < value,
    LessThanOrEqual: lambda mine, value: mine <= value,
    In: lambda mine, value: mine in value,
    StringStartsWith: lambda mine, value: mine.startswith(value),
}


def is_true(one: Filter, row: Row) -> bool:
    """Return whether a filter is true of a row, as SQL has it: null is never true."""
    match one:
        case Not(EqualTo((name,), value)):
            return row[name] is not None and row[name] != value
        case IsNull((name,)):
            return row[name] is None
        case IsNotNull((name,)):
            return row[name] is not None
        case EqualNullSafe((name,), value):
            return bool(row[name] == value)
        case _:
            mine, value = row[one.attribute[0]], one.value  # type: ignore[attr-defined]
            return mine is not None and _COMPARISONS[type(one)](mine, value)


_numbers = st.integers(-2, 16) | st.sampled_from([-(2**63), 2**63 - 1])
_queues = st.sampled_from(["", "a", "b", "mail", "nobody"])
_ops = st.sampled_from(
    ["add", "remove", "create", "delete", "enqueue", "dequeue", "list", "count", "queue", "task"]
)
_paths = st.sampled_from(
    ["consensus/raft.log", "consensus/log.raft", "data/tflux.snapshot", "consensus/raft.snapshot",
     "data/tflux.metadata", *(f"data/log/{segment_name(first)}" for first in range(4))]
)  # fmt: skip


def _of_values(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    equal = st.builds(EqualTo, st.just((name,)), values)
    among = st.builds(In, st.just((name,)), st.lists(st.none() | values, max_size=3).map(tuple))
    safe = st.builds(EqualNullSafe, st.just((name,)), st.none() | values)
    return equal | among | st.builds(Not, equal) | safe


_comparisons = st.sampled_from([GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
_filters: st.SearchStrategy[Filter] = st.one_of(
    st.builds(lambda kind, number: kind(("log_index",), number), _comparisons, _numbers),
    _of_values("log_index", _numbers),
    _of_values("queue", _queues),
    _of_values("op", _ops),
    _of_values("path", _paths),
    st.builds(lambda kind, number: kind(("key",), number), _comparisons, _numbers),
    st.sampled_from(
        [IsNull(("queue",)), IsNotNull(("log_index",)), StringStartsWith(("path",), "data/")]
    ),
)


@each_layout
@pytest.mark.parametrize("table", ["entries", "changes"])
@given(data=st.data(), pushed=st.lists(_filters, min_size=1, max_size=3), split=st.integers(8, 300))
def test_a_filtered_read_holds_all_rows_for_which_the_filters_are_true(
    layout: LogLayout, table: str, data: st.DataObject, pushed: list[Filter], split: int
) -> None:
    node = data.draw(nodes(layout))
    random = Random(data.draw(st.integers(0, 2**32)))
    files = {
        name: random_damage(random, held, start=layout.header_size) if "log" in name else held
        for name, held in node.files().items()
        if not name.endswith("synced")
    }
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), files)
        whole = read_rows(root, table=table)
        found = read_rows(root, table=table, split=split, pushed=pushed)
    # Spark checks every filter again: a row too many costs time, a row too few would be lost.
    expected = [row for row in whole if all(is_true(one, row) for one in pushed)]
    assert [row for row in found if all(is_true(one, row) for one in pushed)] == expected
    usable = [one for one in pushed if isinstance(one, EqualTo)]
    assert all(is_true(one, row) for one in usable for row in found), "and what we use, we use"


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
    monkeypatch.setattr(target, "FILES", files)
    return files.names_opened


def segments(root: Path, *, count: int, each: int) -> list[str]:
    """Write segments of so many entries each, and return their names."""
    record = encode_record(LogLayout.THREE, term=1, payload=b"D\x01a")
    data = encode_header(LogLayout.THREE) + record * each
    names = [segment_name(number * each) for number in range(count)]
    write_files(root, {f"data/log/{name}": data for name in names})
    return names


@pytest.mark.parametrize(
    ("pushed", "wanted"),
    [
        ([EqualTo(("log_index",), 25)], [2]),
        ([GreaterThan(("log_index",), 29), LessThan(("log_index",), 50)], [3, 4]),
        ([GreaterThanOrEqual(("log_index",), 80)], [8, 9]),
        ([LessThanOrEqual(("log_index",), 10)], [0, 1]),
        ([LessThan(("log_index",), 10)], [0]),
        ([In(("log_index",), (33, 41))], [3, 4]),
        ([EqualTo(("path",), f"data/log/{segment_name(70)}")], [7]),
        ([EqualTo(("log_index",), 500)], [9]),  # nothing tells where the last one ends
        ([EqualTo(("log_index",), -5)], []),
        ([EqualTo(("path",), "elsewhere")], []),
        ([In(("queue",), (None,))], []),
        ([In(("op",), ("task", "queue"))], []),
        ([GreaterThan(("log_index",), 50), LessThan(("log_index",), 20)], []),
        ([EqualTo(("op",), "delete")], list(range(10))),
    ],
    ids=str,
)
def test_segments_that_cannot_match_are_never_opened(
    tmp_path: Path, opened: list[str], pushed: list[Filter], wanted: list[int]
) -> None:
    names = segments(tmp_path, count=10, each=10)
    reader = reader_of(tmp_path, pushed=pushed)
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
    reader = reader_of(tmp_path, pushed=[LessThan(("log_index",), 5)], split=10_000)
    assert len(reader.partitions()) > 5
    rows = rows_of(reader)
    assert [row["log_index"] for row in rows] == list(range(5))
    assert sum(read) < 3000 * len(reader.partitions())


# --- what becomes of filters ---------------------------------------------------------------------


def test_filters_that_cannot_be_used_narrow_nothing() -> None:
    useless: list[Filter] = [
        Not(EqualTo(("queue",), "a")),
        IsNull(("op",)),
        IsNotNull(("queue",)),
        EqualNullSafe(("queue",), None),
        EqualTo(("key",), 5),
        EqualTo(("properties", "log_index"), 5),
        StringStartsWith(("path",), "data"),
    ]
    assert with_pushed(Filters(), useless) == Filters()


def test_filters_narrow_what_options_have_narrowed() -> None:
    filters = with_pushed(
        Filters(first=5, last=50), [GreaterThan(("log_index",), 2), LessThan(("log_index",), 9)]
    )
    assert filters == Filters(first=5, last=8)
    twice: list[Filter] = [In(("queue",), ("a", "b")), EqualTo(("queue",), "b")]
    assert with_pushed(Filters(), twice) == Filters(queues=frozenset({"b"}))
    never: list[Filter] = [EqualTo(("op",), "add"), EqualTo(("op",), "remove")]
    assert with_pushed(Filters(), never).is_empty


def test_nothing_equals_null() -> None:
    """A list with a null in it once could not be sorted."""
    some = with_pushed(Filters(), [In(("queue",), ("a", None))])
    assert some == Filters(queues=frozenset({"a"}))
    assert with_pushed(Filters(), [In(("log_index",), (None,))]).is_empty
    assert with_pushed(Filters(), [In(("log_index",), ())]).is_empty
